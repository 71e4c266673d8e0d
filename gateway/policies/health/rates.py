"""Rates and histories of a fleet, from the counters that its nodes reported.

Counters only grow, and begin at 0 when a node is started; for a node started between two samples, the later sample is its count.
Counts between two samples belong to the step in which the later one was taken: either end of a history may lack up to one
interval, and nothing is counted twice. After a longer gap without samples, because Redis was down, the counts are spread over the
gap, so that it is not shown as a spike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.model.counters import Counters, Sample

WINDOW = 60.0
"""Seconds that count as "now"."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over about the last minute. ``hit_ratio`` is of bytes; ``None`` when nothing was sent."""

    requests: float = 0.0
    batch_items: float = 0.0
    cache_bytes: float = 0.0
    origin_bytes: float = 0.0
    origin_requests: float = 0.0
    hit_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a history, which begins at ``at``, and its counts."""

    at: float
    counted: Counters


def ratio(counted: Counters) -> float | None:
    """The share of bytes that came from the cache; ``None`` when none were sent."""
    return counted.cache_bytes / counted.sent_bytes if counted.sent_bytes else None


def gained(before: Sample, after: Sample) -> Counters:
    """The difference between two samples of a node."""
    same = after.counters.since(before.counters) if after.boot == before.boot else None
    return after.counters if same is None else same


def total(samples: Sequence[Sample]) -> Counters:
    """The difference between the first and the last of a node's samples, oldest first."""
    counted = Counters()
    for before, after in itertools.pairwise(samples):
        counted = counted.plus(gained(before, after))
    return counted


def lately(samples: Sequence[Sample], now: float, window: float = WINDOW) -> tuple[Counters, float]:
    """Counts within about the last ``window`` seconds, and the seconds that they cover.

    Args:
        samples: of one node, in the order of time.
        now: seconds, by the clock of the samples.
        window: seconds.
    """
    within = [sample for sample in samples if sample.at >= now - window]
    if len(within) < 2:
        return Counters(), 0.0
    return total(within), within[-1].at - within[0].at


def rates(nodes: Iterable[Sequence[Sample]], now: float) -> Rates:
    """The rates of a fleet: the sum over its nodes, each over the time covered by its samples."""
    together, per_second = Counters(), Counters()
    for samples in nodes:
        counted, seconds = lately(samples, now)
        if seconds > 0:
            together = together.plus(counted)
            per_second = per_second.plus(Counters.of([value / seconds for value in counted.values()]))
    return Rates(
        per_second.requests,
        per_second.batch_items,
        per_second.cache_bytes,
        per_second.origin_bytes,
        per_second.origin_requests,
        ratio(together),
    )


def _steps(before: Sample, after: Sample, step: float) -> Iterable[tuple[float, float]]:
    """The steps to which the difference of two samples belongs: a moment in each, and its share."""
    gap = after.at - before.at
    if after.boot != before.boot or gap < 2 * step:
        return ((after.at, 1.0),)
    parts = int(gap // step)
    return ((after.at - place * step, 1 / parts) for place in range(parts))


def history(nodes: Iterable[Sequence[Sample]], start: float, step: float, count: int) -> list[Point]:
    """The fleet's counts in ``count`` steps of ``step`` seconds from ``start`` on.

    Args:
        nodes: the samples of each, in the order of time.
        start: seconds.
        step: seconds.
        count: of steps.
    """
    counted = [Counters()] * count
    for samples in nodes:
        for before, after in itertools.pairwise(samples):
            for at, share in _steps(before, after, step):
                place = int((at - start) // step)
                if 0 <= place < count:
                    counted[place] = counted[place].plus(gained(before, after).times(share))
    return [Point(start + place * step, counters) for place, counters in enumerate(counted)]
