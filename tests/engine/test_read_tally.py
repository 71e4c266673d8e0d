"""The reads of datasets that are kept by importance, counted by tenths of their items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.read_tally import ReadTally
from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.store.datasets.content import Content
from gateway.store.shared.decile_reads import DecileReads

ITEMS = 100


class Scored:
    """Item n of the dataset "scored" has the score n, and no other dataset has any."""

    id, items = "scored", ITEMS

    def __init__(self) -> None:
        self.looks = 0

    def order(self, dataset: str) -> object | None:
        """The order of importance, of that dataset."""
        self.looks += 1
        return self if dataset == self.id else None

    def some(self, content: object, items: NDArray[np.int64]) -> NDArray[np.float32]:
        """The scores of some items."""
        return items.astype(np.float32)


def reads(key: ObjectKey | str, *numbers: int, hit: bool = True) -> list[Access]:
    """One read of each of these items."""
    return [Access(key, number, b"", hit, 0.0, OriginIdentity("", "")) for number in numbers]


def tally_of(scores: Scored, folder: Path) -> tuple[ReadTally, DecileReads]:
    """A tally of the reads, and where it counts."""
    counts = DecileReads(folder / "table")
    return ReadTally(cast(ItemScores, scores), counts), counts


def counted(tally: ReadTally, counts: DecileReads, scores: Scored) -> list[list[int]]:
    """The counts after a turn: a list of reads and one of hits."""
    content: Any = scores
    tally.count([cast(Content, content)])
    return cast(list[list[int]], counts.all(scores.id).tolist())


def test_reads_count_in_the_tenth_of_their_item(tmp_path: Path) -> None:
    """Rule: reads and hits of a dataset kept by importance are counted by tenth; other datasets and objects are not."""
    scores = Scored()
    tally, counts = tally_of(scores, tmp_path)
    tally.hear([*reads("scored", 1, 2, 95), *reads("other", 3), *reads(ObjectKey("o", "b", "k"), 4)])
    tally.hear(reads("scored", 96, hit=False))
    assert counted(tally, counts, scores) == [[2, *[0] * 8, 2, 0], [2, *[0] * 8, 1, 0]]


def test_the_plan_is_looked_up_once_for_many_reads(tmp_path: Path) -> None:
    """Rule: many reads share one look-up of the plan."""
    scores = Scored()
    tally, _ = tally_of(scores, tmp_path)
    tally.hear(reads("other", *range(ITEMS)) + reads(ObjectKey("o", "b", "k"), *range(ITEMS)))
    assert scores.looks == 1
