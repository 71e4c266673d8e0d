"""Residency by true next use, where jobs follow orders that their homes know: Belady's MIN (1966) with bypass, over all jobs.

The home knows each follower's order of this epoch and the next, how far it is, and its pace. So it knows in how many seconds some
job uses each item next. An item that is loaded into a full cache replaces residents that are used later than itself, the last
used first; if it is used last of all, it is not stored.

Jobs that take substitutes have no order. They take residents before anything else, so a resident that such a job has not consumed
is used within the time in which the job consumes all of them, on average within half of it.

A single job uses each item once per epoch, so all residents give equally many hits: nothing is replaced for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.epoch_order import ItemPositions

Seconds = NDArray[np.float64]
"""By item, the time until it is used next."""
RAGGED = 8
"""A job's ranks and workers progress unevenly: unconsumed items up to an eighth of an epoch behind its front are expected now.
Those further behind were consumed before the home knew the job."""
_STEADY = 10.0
"""Seconds over which a pace is averaged."""
_LEAST = 0.5
"""Seconds between two measurements of a pace."""


@dataclass(frozen=True, slots=True)
class OrderedJob:
    """A job that follows an order.

    Args:
        bit: of the job.
        pace: positions per second.
        front: the first position that it has not reached.
        length: positions of an epoch.
        this: by item, its position in this epoch.
        following: the same in the next epoch; ``None`` while unknown: then all positions are equally likely.
    """

    bit: int
    pace: float
    front: int
    length: int
    this: ItemPositions
    following: ItemPositions | None

    def uses(self, indices: NDArray[np.int64], consumed: NDArray[np.bool_]) -> Seconds:
        """Seconds until the job uses each item. ``consumed``: those that it has consumed in this epoch."""
        ahead = self.this[indices].astype(np.float64) - self.front
        over = consumed | (ahead < -(self.length // RAGGED))
        again = self.length / 2 if self.following is None else self.following[indices].astype(np.float64)
        later = again + (self.length - self.front)
        return np.where(over, later, np.maximum(ahead, 0.0)) / self.pace


@dataclass(frozen=True, slots=True)
class TakingJob:
    """A job that takes substitutes; ``wait``: mean seconds until it takes a resident that it has not consumed."""

    bit: int
    wait: float


@dataclass(frozen=True, slots=True)
class NextUses:
    """The jobs that read a dataset now, as far as its home knows them."""

    followers: Sequence[OrderedJob]
    takers: Sequence[TakingJob] = ()

    def of(self, indices: NDArray[np.int64], bits: NDArray[np.uint16]) -> Seconds:
        """Seconds until each item is used next. ``bits``: by item, the jobs that have consumed it."""
        soonest = np.full(len(indices), np.inf)
        for job in self.followers:
            np.minimum(soonest, job.uses(indices, (bits & np.uint16(job.bit)) != 0), out=soonest)
        for taker in self.takers:
            np.minimum(soonest, np.where((bits & np.uint16(taker.bit)) == 0, taker.wait, np.inf), out=soonest)
        return soonest


def replaced(use: float, size: int, residents: deque[tuple[int, float, int]]) -> list[int]:
    """The residents that an item replaces; they are taken from ``residents``. Empty if it must not be stored.

    Args:
        use: seconds until the item is used next, after the read that loads it.
        size: bytes of the item.
        residents: the last used first: each with the seconds until its use and its bytes.
    """
    chosen: list[int] = []
    freed = 0
    for index, later, room in residents:
        if later <= use or freed >= size:
            break
        chosen.append(index)
        freed += room
    if freed < size:
        return []
    for _ in chosen:
        residents.popleft()
    return chosen


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """How fast a job reads: ``pace`` in items per second, 0 while unknown, and the point from which it is measured."""

    pace: float = 0.0
    progress: float = 0.0
    at: float = 0.0

    def measured(self, progress: float, now: float, silent: float) -> ReadingPace:
        """The pace after ``progress`` was reached; a pause of ``silent`` seconds begins the measurement again."""
        seconds = now - self.at
        if not self.at or seconds > silent or progress < self.progress:
            return ReadingPace(self.pace, progress, now)
        if seconds < _LEAST:
            return self
        latest = (progress - self.progress) / seconds
        weight = min(1.0, seconds / _STEADY) if self.pace else 1.0
        return ReadingPace(self.pace + weight * (latest - self.pace), progress, now)


def usual_pace(paces: Sequence[float]) -> float:
    """The pace assumed for a job without one: the mean of the known paces."""
    known = [pace for pace in paces if pace > 0]
    return sum(known) / len(known) if known else 1.0
