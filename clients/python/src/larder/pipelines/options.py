"""The options of a pipeline, and the number of its elements under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from larder.base.errors import UnevenRanks
from larder.base.options import as_whole_number, whole_number
from larder.pipelines.hosts import WorkerChoice
from larder.pipelines.ray_pool import WorkerPool
from larder.pipelines.stages import FILTER
from larder.pipelines.stream import PipelineStages
from larder.planner import Progress

AUTO, COMPUTE = "auto", "compute"
"""Modes of results: let the fleet decide, or compute them in every epoch."""


@dataclass(frozen=True)
class RunOptions:
    """The checked options of a pipeline that runs; see `larder.pipelines.PipelineOptions`.

    Raises:
        ValueError: an option is out of range.
    """

    seed: int = 0
    workers: int | str | None = None
    ray_options: Mapping[str, Any] | None = None
    pool: WorkerPool | None = None
    keys: bool = False
    on_error: str = "raise"
    on_missing: str = "raise"
    timeout: float = 300.0
    queue: int = 8
    queue_bytes: int = 256 << 20
    cache: str | int = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        if self.cache not in (AUTO, COMPUTE):
            number = as_whole_number(self.cache)
            if number is None:
                raise ValueError(
                    f'cache must be "{AUTO}", "{COMPUTE}" or the stage number of a mark, not {self.cache!r}'
                )
            object.__setattr__(self, "cache", number)
        for name in ("on_error", "on_missing"):
            if getattr(self, name) not in ("raise", "skip"):
                raise ValueError(f'{name} must be "raise" or "skip", not {getattr(self, name)!r}')
        for name in ("queue", "queue_bytes"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        timeout: object = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float | np.number) or not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
        WorkerChoice.of(self.workers, self.ray_options, self.pool)

    @property
    def skips(self) -> bool:
        """Whether elements may be left out without an error."""
        return "skip" in (self.on_error, self.on_missing)


def filtered(stages: PipelineStages, options: RunOptions) -> bool:
    """Whether the number of elements of an epoch is known only at its end."""
    return options.skips or any(stage.kind == FILTER for stage in stages.elements)


def refuse_uneven_elements(start: Progress, *, filtered: bool) -> None:
    """Refuse single elements if ranks would not have equally many of them.

    Raises:
        UnevenRanks: elements may be left out, or the items do not divide by the ranks.
    """
    world = start.world or 1
    left = start.layout.items - len(start.base)
    if world > 1 and (filtered or left % world):
        why = "elements are filtered or skipped" if filtered else f"{left} items do not divide by {world} ranks"
        raise UnevenRanks(f"{why}, so ranks would have different numbers of elements: add .batch(size)")
