"""Importance on one node: the combined scores of jobs, and their effect (SHADE, FAST 2023, section 4.2, Algorithm 1).

Algorithm 1 keeps two queues: the cached items, and all items ever scored, the ghost cache. Here the first is the index
(``eviction/importance.py``), the second a table per job: one float16 for each item of the dataset, never scored or its last
score, and how often the job's list still draws it. So the ghost cache is complete, costs 3 bytes an item and job, and needs no
eviction.

*Need.* The list of an epoch is known when it begins, and each read takes one of its draws. An item with *r* draws left is read
again after a part of about 1 / (r + 1) of the rest of the epoch, and one without any not before the next epoch, whose draws
follow the scores. So draws left decide, then scores: that is Belady's order, as far as counts tell it. Residency by scores alone
keeps items that are not in the list, or have had their draws.

*Several jobs on one dataset.* The need of an item is the sum over the jobs, each times its share of all reads (``JobWeight``).
Scores are divided by the job's mean, so that a job's range counts as much as another's.

*What may enter* (lines 9 to 22). While a pool has room everything does. Then a miss enters if it is needed at least as much,
after its read, as the least needed resident; an item that is neither drawn nor scored does not enter.

*Aging.* Scores predict the next epoch; a job sends new ones with each epoch. A late job loses weight from ``LATE`` times its
usual interval on, and all of it at ``LIFETIME`` times. When no job is left, the pool has the order that it would have without
scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LATE = 1.5
LIFETIME = 3.0
"""Times the interval between a job's last two parts."""
SHORTEST_INTERVAL = 1200.0
"""Seconds: the scores of a job that sends more often count as long as at this interval."""
FIRST_INTERVAL = 14_400.0
"""Seconds that the first epoch of a job is assumed to take."""
DRAW = 16.0
"""The part of a score, or of its ratio to the mean, that counts as much as one draw. Scores are below it, as the logarithms of
ranks in a mini-batch."""
AHEAD = 0.25
"""The part of an epoch, from its beginning, in which items are loaded ahead."""
BINS = 128
"""Steps of the distribution of a node's bytes over scores."""

Scores = NDArray[np.float32]
"""By item; NaN where no job has scored it."""


@dataclass(frozen=True, slots=True)
class JobWeight:
    """Weight of one job: its share of the reads of all jobs with scores, 0 to 1, and the factor of its scores."""

    share: float
    factor: float


class PartVerdict(Enum):
    """The decision on a part."""

    APPLY = "applied"
    REPEATED = "repeated"
    """It repeats the last part."""
    UNKNOWN_BASE = "unknown-base"
    """It extends a part that this node does not have."""


@dataclass(frozen=True, slots=True)
class Received:
    """The last part that came from one sender; sequence 0: none."""

    sequence: int = 0
    checksum: int = 0


def verdict(last: Received, sequence: int, base: int, checksum: int, *, whole: bool) -> PartVerdict:
    """The decision on a part.

    A whole part is always valid: a job that restarts counts from 1 again. So a known sequence is a repetition only if the bytes
    are the same.
    """
    if last.sequence and (sequence, checksum) == (last.sequence, last.checksum):
        return PartVerdict.REPEATED
    if whole or (base == last.sequence and sequence > base):
        return PartVerdict.APPLY
    return PartVerdict.UNKNOWN_BASE


def freshness(age: float, interval: float) -> float:
    """Weight of a job's scores by their age, 1 to 0.

    Args:
        age: seconds since its last part.
        interval: seconds from one epoch's part to the next one's, 0 in the first epoch.
    """
    usual = max(interval, SHORTEST_INTERVAL) if interval else FIRST_INTERVAL
    return float(min(1.0, max(0.0, (LIFETIME - age / usual) / (LIFETIME - LATE))))


def combined(jobs: Sequence[tuple[NDArray[np.float16], float]], items: int) -> Scores:
    """The scores of several jobs combined, each by its factor; an item that a job has not scored counts 0 for that job."""
    if len(jobs) == 1 and jobs[0][1] == 1.0:
        return jobs[0][0].astype(np.float32)
    total = np.full(items, np.nan, dtype=np.float32)
    for scores, factor in jobs:
        known = ~np.isnan(scores)
        total[known] = np.nan_to_num(total[known]) + np.float32(factor) * scores[known].astype(np.float32)
    return total


def needed(jobs: Sequence[tuple[NDArray[np.float16], NDArray[np.unsignedinteger], JobWeight]], items: int) -> Scores:
    """The need of items: draws left, then scores, summed over the jobs.

    Args:
        jobs: for each, scores and draws left by item, and its weight.
        items: number of items.
    """
    total = np.full(items, np.nan, dtype=np.float32)
    for scores, draws, weight in jobs:
        known = ~np.isnan(scores) | (draws > 0)
        need = np.float32(weight.share) * draws[known].astype(np.float32)
        need += np.float32(weight.factor / DRAW) * np.nan_to_num(scores[known].astype(np.float32))
        total[known] = np.nan_to_num(total[known]) + need
    return total


@dataclass(frozen=True, slots=True)
class PoolLevel:
    """Fill level of a pool: bytes it holds and may hold, and the rank that leaves first (below 0: no need; ``None``: empty)."""

    size: int
    target: int
    least: float | None


def may_enter(need: float | None, size: int, level: PoolLevel) -> bool:
    """Whether a miss may be stored (Algorithm 1, lines 9 to 22).

    Args:
        need: of the item after the miss; ``None`` when no job draws it or has scored it.
        size: bytes of the item.
        level: of its pool.
    """
    if level.size + size <= level.target:
        return True
    return need is not None and level.least is not None and need >= level.least


class ScoreStep(NamedTuple):
    """Some bytes of a node's items of about one score, and the lowest score among them."""

    score: float
    bytes: int


def steps_of(scores: Scores, lengths: NDArray[np.uint64]) -> tuple[ScoreStep, ...]:
    """Distribution of bytes over scores: at most about ``BINS`` steps, the highest score first; unscored items are left out.

    Equal scores are in one step, so steps of discrete scores are exact.
    """
    known = ~np.isnan(scores)
    values, inverse = np.unique(scores[known], return_inverse=True)
    if not len(values):
        return ()
    sizes = np.bincount(inverse, weights=lengths[known].astype(np.float64))[::-1]
    upto = np.cumsum(sizes)
    number = np.minimum((upto - sizes) * BINS // max(1.0, float(upto[-1])), BINS - 1).astype(np.int64)
    ends = np.flatnonzero(np.diff(number, append=BINS))
    before = np.concatenate(([0.0], upto[ends][:-1]))
    descending = values[::-1]
    return tuple(
        ScoreStep(float(descending[end]), int(size))
        for end, size in zip(ends, upto[ends] - before, strict=True)
        if size > 0
    )


def ahead(
    needs: Scores,
    draws: NDArray[np.unsignedinteger],
    lengths: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    room: int,
) -> NDArray[np.uint32]:
    """The items to load for an epoch that begins, the most needed first: as many as fit beside the residents that it draws.

    So each load saves a miss, and takes the place of nothing that the epoch reads.

    Args:
        needs: of items that are at home here; NaN for others, and for those without a need.
        draws: how often the epoch draws each item.
        lengths: in bytes.
        resident: items in the cache.
        room: bytes that the pool may hold.
    """
    left = room - float(lengths[resident & (draws > 0)].sum(dtype=np.float64))
    missing = np.flatnonzero(~resident & (draws > 0) & ~np.isnan(needs))
    order = missing[np.argsort(-needs[missing], kind="stable")]
    return order[np.cumsum(lengths[order].astype(np.float64)) <= left].astype(np.uint32)


def due(count: int, passed: float) -> int:
    """How many of an epoch's loads ahead may have begun when a part of it has passed: at a constant rate, as every load beside a
    mini-batch makes it wait."""
    return min(count, 1 + int(count * passed / AHEAD))


def deciles(scores: Scores) -> Scores:
    """The nine scores that divide the scored items into tenths, ascending; empty when fewer than ten are scored."""
    known = scores[~np.isnan(scores)]
    if len(known) < 10:
        return np.empty(0, dtype=np.float32)
    return np.quantile(known, np.arange(1, 10) / 10).astype(np.float32)
