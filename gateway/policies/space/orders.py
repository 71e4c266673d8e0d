"""The plan's types: the order of a pool, the treatment of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.policies.eviction.uniform import Uniform
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.importance import JobWeight


class Phase(StrEnum):
    """The phase of a job's measurement (Quiver, section 4.5 and 5.3)."""

    PROBE_MISS = "probe-miss"
    """Its time per mini-batch without hits is measured: hits are refused; a job on a cold cache has none."""
    MEASURE = "measure"
    """It reads as usual, until its time with hits is measured."""
    STEADY = "steady"
    """It reads as usual, and measuring continues."""


class WhyCaching(StrEnum):
    """Why a dataset has the space that it has."""

    OVERRIDE = "override"
    """An operator pinned it, forbade it, or set a quota that it does not fit."""
    REQUESTED = "requested"
    """Its registration asks for this mode."""
    BENEFIT = "benefit"
    """Its benefit per byte is high enough."""
    NO_BENEFIT = "no-benefit"
    """None of its jobs gains anything."""
    NO_ROOM = "no-room"
    """Others gain more from the space."""
    NO_JOBS = "no-jobs"
    """No job uses it now."""


@dataclass(frozen=True, slots=True)
class ImportanceOrder:
    """Contents of a pool of the order ``importance`` in the fleet (policies/space/importance.py).

    ``jobs`` are those whose scores count, by ``tenant/job``. ``threshold`` is the lowest score that fits the pool, ``None`` while
    all scored items fit; ``shares`` are the bytes of the pool by node; ``partial``: not the whole dataset fits.
    """

    jobs: Mapping[str, JobWeight]
    threshold: float | None = None
    shares: Mapping[str, int] = field(default_factory=dict)
    partial: bool = False


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """The plan for one pool. ``target`` and ``minimum`` are bytes of all nodes together.

    ``caching`` is the mode of the pool's dataset, and ``why`` its reason; ``minimum`` equals the target if an operator pinned it.
    ``order`` is the eviction order of a stream's pool; that of a dataset follows from ``caching``, unless jobs score its items
    (``importance``).
    """

    caching: CachingMode
    why: WhyCaching
    target: int = 0
    minimum: int = 0
    order: str = ""
    importance: ImportanceOrder | None = None

    @property
    def held(self) -> CachingMode:
        """The mode under which its jobs' times are measured: ``PART`` if importance keeps only a part of the dataset."""
        return CachingMode.PART if self.importance is not None and self.importance.partial else self.caching

    @property
    def eviction(self) -> str:
        """The eviction order of the pool."""
        return self.order or Uniform.name


@dataclass(frozen=True, slots=True)
class JobOrder:
    """The plan for one job: whether it gets hits, and which measurement is under way. ``benefit``: t_miss / t_full, 0 if
    unknown."""

    cache: bool
    phase: Phase
    benefit: float = 0.0

    @property
    def refused(self) -> bool:
        """Whether hits are refused for a measurement. Reads are stored and shared as usual."""
        return not self.cache and self.phase is Phase.PROBE_MISS
