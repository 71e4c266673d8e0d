"""Repetitions that fill up the last batch of a rank whose share does not divide."""

import numpy as np
from numpy.typing import NDArray

from larder.planner.layout import Shard
from larder.planner.order import EpochOrder


class Padding:
    """Every ``world``-th item of the epoch's order, from the rank's own first one on, round and round."""

    def __init__(self, order: EpochOrder, shard: Shard) -> None:
        self._order = order
        self._shard = shard
        self._cursor = 0
        self._excluded = np.zeros(0, np.uint32)
        self.exhausted = order.layout.items == 0
        """Whether there is nothing that could be repeated."""

    def items(self, count: int) -> NDArray[np.uint32]:
        """Up to ``count`` distinct items; none only if none can be had, and then it is exhausted."""
        total = self._order.layout.items
        tried = 0
        while tried <= total // self._shard.world + 1 and total:
            turns = np.arange(self._cursor, self._cursor + count, dtype=np.int64)
            items = self._order.at((self._shard.rank + self._shard.world * turns) % total)
            items = items[~np.isin(items, self._excluded)]
            if len(items):
                _, firsts = np.unique(items, return_index=True)
                return np.asarray(items[np.sort(firsts)], np.uint32)
            self._cursor += count
            tried += count
        self.exhausted = True
        return np.zeros(0, np.uint32)

    def used(self, count: int) -> None:
        """So many of the last answer were used; the next one goes on after them."""
        self._cursor += count

    def exclude(self, items: NDArray[np.uint32]) -> None:
        """These cannot be had."""
        self._excluded = np.concatenate([self._excluded, items])
