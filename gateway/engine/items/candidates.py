"""The candidates of a substitutable batch that are not at hand: which of them to ask for next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.items.underway import FETCHES_PER_BATCH, AskWindow


class Candidates:
    """What is left to choose from.

    Attributes:
        residents: believed to be in a cache, this node's or their home's, to be had first and in this order.
        promised: residents of other nodes that are about to be asked for; with what is under way they count as delivered.

    Args:
        residents: see there.
        promised: see there.
        others: in nobody's cache, in the order in which to fetch them.
        far: by position, whether another node is asked.
        lengths: of the items in bytes, by position.
        nodes: how many other nodes are home of some.
    """

    def __init__(
        self,
        residents: deque[int],
        promised: deque[int],
        others: Sequence[int],
        far: NDArray[np.bool_],
        lengths: NDArray[np.uint64],
        nodes: int,
    ) -> None:
        self.residents = residents
        self.promised = promised
        self._hits = AskWindow(lengths)
        self._fetches = AskWindow(lengths, max(1, FETCHES_PER_BATCH * nodes))
        self._far = far
        self._near_others: deque[tuple[int, int]] = deque()
        self._far_others: deque[tuple[int, int]] = deque()
        self._last = 0
        self._reading: set[int] = set()
        for position in others:
            self.add_other(position)

    def add_other(self, position: int) -> None:
        """One more that has to be fetched, after all others."""
        self._last += 1
        (self._far_others if self._far[position] else self._near_others).append((self._last, position))

    def next_promised(self) -> int | None:
        """The next item to ask another node's cache for, if it may be now."""
        if self.promised and self._hits.takes(self.promised[0]):
            return self.promised.popleft()
        return None

    def next_other(self) -> int | None:
        """The next item to have fetched, if it may be now."""
        near = self._near_others if len(self._reading) < FETCHES_PER_BATCH else None
        far = self._far_others
        if near and (not far or near[0] < far[0]):
            position = near.popleft()[1]
            self._reading.add(position)
            return position
        if far and self._fetches.takes(far[0][1]):
            return far.popleft()[1]
        if near:
            position = near.popleft()[1]
            self._reading.add(position)
            return position
        return None

    def ended(self, position: int) -> None:
        """An item that was asked for has come, or will not."""
        self._reading.discard(position)
        self._hits.come(position)
        self._fetches.come(position)
