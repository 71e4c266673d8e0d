"""Whether a pipeline's results are stored, and at which of its marks: what costs the least worker time per epoch.

Cachew (ATC 2022), section 4.4 and Figure 5. One worker profiles the pipeline: for each mark and for its end, the seconds per
element that all work up to there takes, and the bytes per element. With N elements at the end and M at a mark,

    compute        N x seconds at the end
    cache at mark  M x g(bytes per element at the mark) + what comes after the mark
    after the mark N x seconds at the end - M x seconds at the mark

where g is the time that reading an element from the cache takes. The smallest wins. A mark early in the pipeline is the paper's
*source cache*, one at its end its *full cache*.

The read model g is a line, latency plus time per byte, fitted to reads that the gateway has served; without reads there is no
projection, and the pipeline computes.

Where the paper is silent:

- *Space.* Results have a pool like everything else. If its target holds only a share of a mark's results, that share is read
  and the rest is computed, and the projection is the mixture. So a small pool may favour a mark with small elements over one
  that would be faster if it fitted.
- *A tie is no reason.* Storing costs an epoch of writes and space that others could use, so it must save more than ``margin``.
- *Marks whose results are not shared*, for want of a fingerprint, are left out by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

COMPUTE = 0
"""In the place of a mark's number: nothing is stored."""


class CacheReason(StrEnum):
    """Why a pipeline caches where it does, or does not."""

    FASTEST = "fastest"
    NOTHING_TO_GAIN = "nothing-to-gain"
    NO_MARKS = "no-marks"
    NO_ROOM = "no-room"
    NOT_MEASURED = "not-measured"
    """No reads from the cache are known yet."""
    PROFILING = "profiling"
    """Too few elements were computed yet."""
    SHARED = "shared"
    """Another job has stored these results."""
    OVERRIDE = "override"
    """An operator decided."""


@dataclass(frozen=True, slots=True)
class StageProfile:
    """The costs of one point of a pipeline (Table 1).

    Args:
        stage: number of the stage.
        seconds: time per element that all stages up to this one take.
        bytes: size of an element there.
        elements: number of elements per epoch there.
    """

    stage: int
    seconds: float
    bytes: float
    elements: int


@dataclass(frozen=True, slots=True)
class ReadModel:
    """Seconds that reading one element from the cache takes: ``latency + bytes x per_byte``."""

    latency: float
    per_byte: float

    def seconds(self, size: float) -> float:
        """For an element of ``size`` bytes."""
        return self.latency + size * self.per_byte


@dataclass(frozen=True, slots=True)
class Projection:
    """Worker seconds per epoch if results are stored at ``stage``; ``share`` of them fits the pool."""

    stage: int
    seconds: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """The decision: the mark, or ``COMPUTE``, with the projections that it was made from, ``COMPUTE`` first."""

    stage: int
    reason: CacheReason
    projections: tuple[Projection, ...] = ()


class ReadSums(NamedTuple):
    """Elements of similar size that were read from the cache: their number, bytes, and seconds."""

    elements: float
    bytes: float
    seconds: float


def fit_reads(reads: Iterable[ReadSums]) -> ReadModel | None:
    """The read model that fits these reads best, by least squares over their means, weighted by elements.

    Args:
        reads: sums over reads of similar sizes, or single reads.

    Returns:
        ``None`` without reads. Neither latency nor time per byte is negative: where the best line has such a one, it is zero.
    """
    samples = [
        (one.elements, one.bytes / one.elements, one.seconds / one.elements)
        for one in reads
        if one.elements > 0 and one.bytes >= 0 and one.seconds >= 0
    ]
    if not samples:
        return None
    count = sum(weight for weight, _, _ in samples)
    mean_size = sum(weight * size for weight, size, _ in samples) / count
    mean_seconds = sum(weight * seconds for weight, _, seconds in samples) / count
    spread = sum(weight * (size - mean_size) ** 2 for weight, size, _ in samples)
    common = sum(weight * (size - mean_size) * (seconds - mean_seconds) for weight, size, seconds in samples)
    per_byte = max(0.0, common / spread) if spread else 0.0
    latency = mean_seconds - per_byte * mean_size
    if latency < 0:
        squares = sum(weight * size * size for weight, size, _ in samples)
        return ReadModel(0.0, sum(weight * size * seconds for weight, size, seconds in samples) / squares)
    return ReadModel(latency, per_byte)


def choose_mark(
    end: StageProfile, marks: Sequence[StageProfile], reads: ReadModel | None, room: float, margin: float = 0.02
) -> CacheChoice:
    """The mark at which results are stored.

    Args:
        end: profile of the last stage.
        marks: profiles of the marks whose results can be shared.
        reads: time of reads from the cache.
        room: bytes that the pool of the results may take.
        margin: share of the compute time that storing must save.
    """
    compute = Projection(COMPUTE, end.elements * end.seconds)
    if not marks:
        return CacheChoice(COMPUTE, CacheReason.NO_MARKS, (compute,))
    if reads is None or not end.elements:
        return CacheChoice(COMPUTE, CacheReason.NOT_MEASURED, (compute,))
    projections = [compute, *(_projected(compute.seconds, mark, reads, room) for mark in marks)]
    best = min(projections, key=lambda each: (each.seconds, each.stage))
    if all(not each.share for each in projections[1:]):
        return CacheChoice(COMPUTE, CacheReason.NO_ROOM, tuple(projections))
    if best.seconds >= compute.seconds * (1 - margin):
        return CacheChoice(COMPUTE, CacheReason.NOTHING_TO_GAIN, tuple(projections))
    return CacheChoice(best.stage, CacheReason.FASTEST, tuple(projections))


def _projected(total: float, mark: StageProfile, reads: ReadModel, room: float) -> Projection:
    size = mark.elements * mark.bytes
    share = 1.0 if size <= room else max(0.0, room) / size
    # Times are measured apart, so that a mark may seem to take longer than the whole pipeline.
    after = max(0.0, total - mark.elements * mark.seconds)
    cached = mark.elements * reads.seconds(mark.bytes) + after
    return Projection(mark.stage, share * cached + (1 - share) * total, share)
