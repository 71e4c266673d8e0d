"""Chooses whether a pipeline's results are stored, and at which of its marks: the choice with the least worker time per epoch.

Cachew (ATC 2022), section 4.4 and Figure 5. One worker profiles the pipeline: for each mark and for the end, the seconds per
element of all work up to that point, and the bytes per element. With N elements at the end and M at a mark,

    compute        N x seconds at the end
    cache at mark  M x g(bytes per element at the mark) + what comes after the mark
    after the mark N x seconds at the end - M x seconds at the mark

where g is the time that reading an element from the cache takes. The smallest wins. A mark early in the pipeline is the paper's
*source cache*, one at its end its *full cache*.

The read model g is a line, latency plus time per byte, fitted to what the readers of results report (``read_model.py``). Our
workers read ahead, so the sum holds only for g's processor time; but an epoch takes at least M x g.

Where the paper is silent:

- *Space.* Results have a pool like everything else. If its target holds only a share of a mark's results, that share is read
  and the rest is computed, and the projection is the mixture. So a small pool may favour a mark with small elements over one
  that would be faster if it fitted.
- *A tie is no reason.* Storing costs an epoch of writes and space that others could use, so it must save more than ``margin``.
- *Versions* (section 7). A mark may have several elements per item, of which an epoch uses one. Their results take so many times
  the space, and so many epochs compute before any reads. The first of these epochs is the price of any mark; the further ones
  count as a part of ``EPOCHS``, because the fleet does not know how long a job trains.
- *Marks without a fingerprint*, whose results are not shared, are left out by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.policies.space.read_model import ReadModel

COMPUTE = 0
"""In place of a mark's number: nothing is stored."""
EPOCHS = 50
"""Epochs over which the cost of computing versions is spread."""


class CacheReason(StrEnum):
    """Why a pipeline caches where it does, or does not."""

    FASTEST = "fastest"
    NOTHING_TO_GAIN = "nothing-to-gain"
    NO_MARKS = "no-marks"
    NO_ROOM = "no-room"
    PROFILING = "profiling"
    """Too few elements were computed yet."""
    SHARED = "shared"
    """Another job has stored these results."""
    OVERRIDE = "override"
    """An operator decided."""

    @classmethod
    def _missing_(cls, value: object) -> CacheReason | None:
        """Accept a reason of an earlier version, from before any read was known; such a decision is made again."""
        return cls.PROFILING if value == "not-measured" else None


@dataclass(frozen=True, slots=True)
class StageProfile:
    """The costs of one point of a pipeline (Table 1).

    Args:
        stage: number of the stage.
        seconds: time per element that all stages up to this one take.
        bytes: size of an element there.
        elements: number of elements per epoch there.
        versions: of a mark: elements of an item, of which an epoch uses one.
    """

    stage: int
    seconds: float
    bytes: float
    elements: int
    versions: int = 1

    @property
    def size(self) -> float:
        """Bytes of all its elements."""
        return self.elements * self.bytes * self.versions


@dataclass(frozen=True, slots=True)
class Projection:
    """Worker seconds per epoch if results are stored at ``stage``; ``share`` of them fits the pool.

    ``filling`` is the mean additional time, over ``EPOCHS``, of the epochs that compute further versions.
    """

    stage: int
    seconds: float
    share: float = 1.0
    filling: float = 0.0

    @property
    def whole(self) -> float:
        """Worker seconds per epoch for a job that begins to store the results."""
        return self.seconds + self.filling


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """The decision: the mark, or ``COMPUTE``, with the projections that it was made from, ``COMPUTE`` first."""

    stage: int
    reason: CacheReason
    projections: tuple[Projection, ...] = ()


def choose_mark(
    end: StageProfile, marks: Sequence[StageProfile], reads: ReadModel, room: float, margin: float = 0.02
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
    if not end.elements:
        return CacheChoice(COMPUTE, CacheReason.PROFILING, (compute,))
    projections = [compute, *(_projected(compute.seconds, mark, reads, room) for mark in marks)]
    best = min(projections, key=lambda projection: (projection.whole, projection.stage))
    if all(not projection.share for projection in projections[1:]):
        return CacheChoice(COMPUTE, CacheReason.NO_ROOM, tuple(projections))
    if best.whole >= compute.seconds * (1 - margin):
        return CacheChoice(COMPUTE, CacheReason.NOTHING_TO_GAIN, tuple(projections))
    return CacheChoice(best.stage, CacheReason.FASTEST, tuple(projections))


def _projected(total: float, mark: StageProfile, reads: ReadModel, room: float) -> Projection:
    share = 1.0 if mark.size <= room else max(0.0, room) / mark.size
    # Times are measured separately, so a mark may seem to take longer than the whole pipeline.
    after = max(0.0, total - mark.elements * mark.seconds)
    reading = mark.elements * reads.seconds(mark.bytes)
    cached = max(reading, reads.busy * reading + after)
    seconds = share * cached + (1 - share) * total
    filling = min(EPOCHS, mark.versions - 1) / EPOCHS * max(0.0, total - seconds)
    return Projection(mark.stage, seconds, share, filling)
