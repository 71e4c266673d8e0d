"""Counts the reads of datasets that are kept by importance, by tenths of their items, for views of the fleet.

It shows whether importance pays: with good scores, the upper tenths have most of the reads and nearly all are hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.space.item_scores import ItemScores
from gateway.model.access import Access
from gateway.model.keys import ObjectKey
from gateway.policies.items.importance import Scores, deciles
from gateway.store.datasets.content import Content
from gateway.store.shared.decile_reads import ROWS, DecileReads

_MOST = 65_536
"""Reads kept between two turns; further reads are not counted."""
_SAMPLE = 100_000
"""Maximum items from which tenths are computed."""

Places = NDArray[np.int64]


class ReadTally:
    """The reads of one worker.

    Args:
        scores: the items' scores.
        reads: the counters of reads.
    """

    def __init__(self, scores: ItemScores, reads: DecileReads) -> None:
        self.reads = reads
        self._scores = scores
        self._seen: list[tuple[ObjectKey | str, int, bool]] = []

    def hear(self, accesses: Sequence[Access]) -> None:
        """Record reads (store/shared/accesses.py)."""
        datasets = {access.key for access in accesses if isinstance(access.key, str)}
        # Asked once for all these reads, because every hit pays for it.
        counted = {dataset for dataset in datasets if self._scores.order(dataset) is not None}
        if counted:
            room = _MOST - len(self._seen)
            self._seen.extend((key, number, hit) for key, number, _, hit, _, _ in accesses[:room] if key in counted)

    def count(self, contents: Iterable[Content]) -> None:
        """Count the reads since the last turn."""
        seen, self._seen = self._seen, []
        of_dataset: dict[ObjectKey | str, list[tuple[int, bool]]] = {}
        for dataset, number, hit in seen:
            of_dataset.setdefault(dataset, []).append((number, hit))
        for content in contents if of_dataset else ():
            reads = of_dataset.pop(content.id, None)
            if reads is not None and self._scores.order(content.id) is not None:
                self._count(content, np.array(reads, dtype=np.int64))

    def _count(self, content: Content, reads: Places) -> None:
        scores = self._scores.some(content, reads[:, 0])
        bounds = deciles(self._scores.some(content, _sample(content.items)))
        places = _places(scores, bounds)
        counts = np.stack((np.bincount(places, minlength=ROWS), np.bincount(places, reads[:, 1], minlength=ROWS)))
        try:
            self.reads.add(content.id, counts.astype(np.uint64))
        except OSError:
            return  # no memory: the counts are only informative


def _sample(items: int) -> Places:
    return np.arange(0, items, max(1, items // _SAMPLE))


def _places(scores: Scores, bounds: Scores) -> Places:
    """The row of each score: its tenth, or the last row for a missing score."""
    places = np.searchsorted(bounds, scores)
    places[np.isnan(scores)] = ROWS - 1
    return places
