"""Importance on one node: the combined scores of jobs, and their effect (SHADE, FAST 2023, section 4.2, Algorithm 1).

Algorithm 1 keeps two queues: the cached items, and all items ever scored, the ghost cache. Here the first is the index
(``eviction/importance.py``), the second a table per job: one float16 for each item of the dataset, never scored or its last
score, and how often the next epoch draws it. So the ghost cache is complete, costs 3 bytes an item and job, and needs no
eviction.

*Several jobs on one dataset.* What counts is how often an item is read next. A job draws items in proportion to their scores
(section 4.2.1, PADS), so job *j* reads item *i* at ``rate_j * score_j(i) / sum of score_j``. The combined score is the sum of
these over the jobs, up to a common factor: scores divided by the job's mean, times its share of all reads (``JobWeight``). With
one job it is the job's own score.

*What may enter* (lines 9 to 22). While a pool has room everything does. Then a miss enters if its score is at least that of the
least important resident; an unscored item does not enter.

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


@dataclass(frozen=True, slots=True)
class PoolLevel:
    """Fill level of a pool: bytes it holds and may hold, and the rank that leaves first (below 0: no score; ``None``: empty)."""

    size: int
    target: int
    least: float | None


def may_enter(score: float | None, size: int, level: PoolLevel) -> bool:
    """Whether a miss may be stored (Algorithm 1, lines 9 to 22).

    Args:
        score: of the item; ``None`` when no job has scored it.
        size: bytes of the item.
        level: of its pool.
    """
    if level.size + size <= level.target:
        return True
    return score is not None and level.least is not None and score >= level.least


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


def ahead(scores: Scores, draws: NDArray[np.uint8], lengths: NDArray[np.uint64], room: int) -> NDArray[np.uint32]:
    """The items to load before the next epoch, the most important first: those it draws among the items that fill the room best.

    Args:
        scores: of items that are at home here; NaN for others, and for those without a score.
        draws: how often the next epoch draws each item.
        lengths: in bytes.
        room: bytes that the pool may hold.
    """
    known = np.flatnonzero(~np.isnan(scores))
    order = known[np.argsort(-scores[known], kind="stable")]
    fitting = order[np.cumsum(lengths[order].astype(np.float64)) <= room]
    return fitting[draws[fitting] > 0].astype(np.uint32)


def deciles(scores: Scores) -> Scores:
    """The nine scores that divide the scored items into tenths, ascending; empty when fewer than ten are scored."""
    known = scores[~np.isnan(scores)]
    if len(known) < 10:
        return np.empty(0, dtype=np.float32)
    return np.quantile(known, np.arange(1, 10) / 10).astype(np.float32)
