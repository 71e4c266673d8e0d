"""Operators' overrides of the manager's decisions, as the catalog has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.policies.pools import STREAM

_PIPELINE = "pipeline:"
_MODE = re.compile(r"pin(:[1-9][0-9]{0,5})?|never")
"""The prefix of a pipeline's pin that names the stage of a mark."""


def pipeline_name(job: str) -> str:
    """The name of a job's pipeline among overrides; ``job`` is ``tenant/job``."""
    return f"{_PIPELINE}{job}"


@dataclass(frozen=True, slots=True)
class Overrides:
    """The overrides in force.

    Attributes:
        modes: pin or never, by the id of a dataset, or the name of a pool.
        quotas: the most bytes that it may have, by the same names.
        pipelines: pin, ``pin:`` with the stage of a mark, or never, by job.
    """

    modes: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str | None, int | None]]) -> Overrides:
        """Read the catalog's rows: name, mode and quota. An unknown mode, of a later version, is ignored."""
        modes, quotas, pipelines = {}, {}, {}
        for name, mode, quota in rows:
            if quota is not None:
                quotas[name] = quota
            if mode is None or not _MODE.fullmatch(mode):
                continue
            if name.startswith(_PIPELINE):
                pipelines[name.removeprefix(_PIPELINE)] = mode
            else:
                modes[name] = mode
        return cls(modes, quotas, pipelines)

    @property
    def names(self) -> set[str]:
        """The datasets and pools that have an override."""
        return {*self.modes, *self.quotas}

    @property
    def pins(self) -> dict[str, int]:
        """The bytes of pinned prefixes by name, and 0 for those that get no space."""
        decided = {pool: self.quotas.get(pool, 0) if mode == "pin" else 0 for pool, mode in self.modes.items()}
        return {
            pool.removeprefix(STREAM): size
            for pool, size in decided.items()
            if pool.startswith(STREAM) and (size or self.modes[pool] == "never")
        }
