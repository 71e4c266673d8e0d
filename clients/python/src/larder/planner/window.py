"""The pending items of a share that are within reach, and the count of those that are not yet."""

import numpy as np
from numpy.typing import NDArray

from larder.planner.numbers import NumberSet
from larder.planner.order import EpochOrder
from larder.planner.share import Share


class Window:
    """A share's pending items in order, looked up only as far as somebody asked."""

    def __init__(self, order: EpochOrder, share: Share) -> None:
        self._order = order
        self._share = share
        self._next = 0  # number in the share of the first item beyond the window
        self._places = np.zeros(0, np.int64)
        self._positions = np.zeros(0, np.int64)
        self._items = np.zeros(0, np.uint32)

    @property
    def left(self) -> int:
        """How many items are pending."""
        return len(self._items) + self._share.size - self._next

    @property
    def removed(self) -> int:
        """How many items were taken out."""
        return self._share.size - self.left

    def position_after(self, number: int) -> int:
        """The position in the epoch's order of the share's item of this number, from 0; -1 if it has not so many."""
        if number >= self._share.size:
            return -1
        return int(self._share.positions(self._share.places(number, number + 1))[0])

    def position(self) -> int:
        """The position in the epoch's order of the first pending item; -1 if there is none."""
        if len(self._positions):
            return int(self._positions[0])
        if self._next >= self._share.size:
            return -1
        return int(self._share.positions(self._share.places(self._next, self._next + 1))[0])

    def first(self, count: int, bound: int) -> NDArray[np.uint32]:
        """The first ``count`` pending items whose positions are below ``bound``, which must not go down between calls."""
        missing = count - len(self._items)
        if missing > 0 and self._next < self._share.size:
            places = self._share.places(self._next, self._next + missing)
            positions = self._share.positions(places)
            within = int(np.searchsorted(positions, bound))
            self._next += within
            self._extend(places[:within], positions[:within])
        return self._items[:count]

    def peek(self, count: int) -> NDArray[np.uint32]:
        """The first ``count`` pending items; beyond the window they are looked up for this answer only."""
        missing = max(0, count - len(self._items))
        ahead = self._share.positions(self._share.places(self._next, self._next + missing))
        return np.concatenate([self._items[:count], self._order.at(ahead)])

    def remove(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take pending items out, by where they are in the window; returns their places in the rank's share."""
        places = self._places[slots]
        self._places = np.delete(self._places, slots)
        self._positions = np.delete(self._positions, slots)
        self._items = np.delete(self._items, slots)
        return places

    def between(self, start: int, stop: int) -> NDArray[np.uint32]:
        """The pending items at positions ``[start, stop)``; beyond the window they are looked up for this answer only."""
        share = self._share
        low, high = np.searchsorted(self._positions, [start, stop])
        begin = max(self._next, share.first_at(start))
        ahead = share.positions(share.places(begin, max(begin, share.first_at(stop))))
        return np.concatenate([self._items[low:high], self._order.at(ahead)])

    def resume(self, done: NumberSet) -> NDArray[np.int64]:
        """Take out all of the share that is in ``done``; returns the places that were."""
        end = self._share.first_place(done.stop)
        places = self._share.places(0, end)
        gone = done.contains(places)
        self._next = end
        pending = places[~gone]
        self._extend(pending, self._share.positions(pending))
        return places[gone]

    def _extend(self, places: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self._places = np.concatenate([self._places, places])
        self._positions = np.concatenate([self._positions, positions])
        self._items = np.concatenate([self._items, self._order.at(positions)])
