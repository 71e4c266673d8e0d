"""What a job gains from the cache, found out by refusing it hits for a while."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """What a job did in one phase since it began; ``seconds`` is all time, ``waited`` the part of it without data."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How jobs are probed; times in seconds."""

    batches: int = 100
    """Mini-batches that each side is measured for; 0 switches probing off."""
    every: float = 1800.0
    """From one measurement to the next."""
    soonest: float = 60.0
    """The same when the job's time per mini-batch has drifted: doubled each time until it is ``every``."""
    drift: float = 0.25
    """Share by which the time per mini-batch must change to count as drifted."""
    stall: float = 300.0
    """A job being refused hits that takes no step for so long gives its turn to another."""
