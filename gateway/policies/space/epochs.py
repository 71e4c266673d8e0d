"""What jobs read from origins in whole epochs, compared with the least possible.

An epoch delivers each item of a dataset once. What is not cached when it begins must be read: that is the least, for all jobs on
the dataset together, since one read serves them all. A rank reports the last epoch that it delivered from beginning to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class EpochReads:
    """A whole epoch of a job, or of some of its ranks.

    ``items``: delivered; ``origin_reads``: those of them read from the origin. ``least``: share of the dataset that was not
    cached at the beginning, ``None`` if unknown. ``ranks``: how many ranks are counted.
    """

    epoch: int
    items: int
    origin_reads: int
    least: float | None = None
    ranks: int = 1

    @property
    def per_item(self) -> float:
        """Reads of the origin per item."""
        return self.origin_reads / max(1, self.items)


@dataclass(frozen=True, slots=True)
class SharedEpochs:
    """The last whole epochs of the jobs on a dataset: ``per_item``, reads of all ``jobs`` per item; and the least possible."""

    jobs: int
    per_item: float
    least: float | None


def of_ranks(reads: Sequence[EpochReads]) -> EpochReads | None:
    """The epoch of a job: the earliest that any of its ranks reports; the other ranks will soon catch up or report."""
    if not reads:
        return None
    epoch = min(reader.epoch for reader in reads)
    same = [reader for reader in reads if reader.epoch == epoch]
    items, origin_reads = sum(reader.items for reader in same), sum(reader.origin_reads for reader in same)
    return EpochReads(epoch, items, origin_reads, _mean(same), len(same))


def shared(jobs: Sequence[EpochReads]) -> SharedEpochs | None:
    """The epochs of the jobs on a dataset, which share its reads; ``None`` without any."""
    return SharedEpochs(len(jobs), sum(reader.per_item for reader in jobs), _mean(jobs)) if jobs else None


def _mean(reads: Sequence[EpochReads]) -> float | None:
    known = [reader.least for reader in reads if reader.least is not None]
    return fmean(known) if known else None
