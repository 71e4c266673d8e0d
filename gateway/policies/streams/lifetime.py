"""Time that a stream may be idle before all of it is released (IGTCache, section 3.3).

The gaps between the reads of a training job are about normal. A gap that is longer than all but 1 in 100 of that distribution, by
more than a minute, means that the job has ended. Its data makes room at once, where LRU would take it item by item.

The same gap means that a skewed stream is not queried at present, or that a scan is over. Such a stream is not released, because
people come back. But others may take its space, blob by blob, as in one LRU.

Jobs pause: to evaluate, to write a checkpoint. A stream that came back after a pause may pause as long again.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from operator import mul, sub
from typing import NamedTuple

from gateway.policies.streams.pattern import Pattern

QUANTILE = 2.3263
"""Standard deviations that a normal value exceeds with probability 0.01."""
BASE = 60.0
"""Seconds added, to tolerate small disturbances."""
PAUSE_BASE = 10.0
"""The same for a stream that only pauses: nothing is deleted, so a mistake costs only the space that other streams took in the
meantime."""
PAUSES = 1.5
"""Longest idle time of a stream, in multiples of its longest pause."""


class ReadGaps(NamedTuple):
    """Seconds between the reads of a stream: mean and standard deviation of the last window, and the longest ever."""

    mean: float = 0.0
    deviation: float = 0.0
    longest: float = 0.0


def gaps_of(times: Iterable[float], longest: float = 0.0) -> ReadGaps:
    """The gaps of a window; ``longest`` is that of earlier windows."""
    ordered = sorted(times)
    gaps = list(map(sub, ordered[1:], ordered))
    if not gaps:
        return ReadGaps(longest=longest)
    mean = sum(gaps) / len(gaps)
    away = [gap - mean for gap in gaps]
    deviation = sqrt(sum(map(mul, away, away)) / len(gaps))
    return ReadGaps(mean, deviation, max(longest, *gaps))


def time_to_live(pattern: Pattern | None, gaps: ReadGaps) -> float | None:
    """Seconds of idleness after which a random stream has ended, and another one pauses; ``None`` without a pattern."""
    if pattern is None:
        return None
    base = BASE if pattern is Pattern.RANDOM else PAUSE_BASE
    return max(gaps.mean + QUANTILE * gaps.deviation, PAUSES * gaps.longest) + base
