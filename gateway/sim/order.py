"""In which order a job reads its dataset, and which items are within reach: as the client's planner has it, for one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.sim.items import Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One epoch: ``items`` in order; ``chunks`` are their chunks in order, and each ends before position ``stops``."""

    items: Numbers
    chunks: tuple[int, ...]
    stops: tuple[int, ...]


def shuffled(count: int, generator: np.random.Generator) -> Order:
    """Everything in random order."""
    return Order(generator.permutation(count), (0,), (count,))


def striped(chunk_of: Numbers, chunks: Sequence[int], generator: np.random.Generator) -> Order:
    """One chunk after the other, each in random order."""
    parts = [generator.permutation(np.flatnonzero(chunk_of == chunk)) for chunk in chunks]
    stops = np.cumsum([len(part) for part in parts])
    return Order(np.concatenate(parts), tuple(chunks), tuple(int(stop) for stop in stops))


class Window:
    """The first pending items of an epoch, from no later chunk than the one after that of the first (``larder.planner``)."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._next = 0
        self._positions = np.zeros(0, np.int64)
        self._place = 0  # of the first pending item's chunk

    @property
    def left(self) -> int:
        """How many items are pending."""
        return len(self._positions) + len(self.order.items) - self._next

    @property
    def position(self) -> int:
        """How many items were taken, which is about how far the job is in the order."""
        return len(self.order.items) - self.left

    def candidates(self, count: int) -> Numbers:
        """The first ``count`` pending items, as far as they are within reach."""
        self._settle()
        bound = self.order.stops[min(self._place + 1, len(self.order.stops) - 1)]
        stop = min(bound, self._next + count - len(self._positions))
        if stop > self._next:
            self._positions = np.concatenate([self._positions, np.arange(self._next, stop)])
            self._next = stop
        return self.order.items[self._positions[:count]]

    def take(self, slots: Numbers) -> None:
        """Deliver these of the candidates."""
        self._positions = np.delete(self._positions, slots)

    def upcoming(self) -> tuple[int, ...]:
        """The chunks from that of the first pending item to the end of the epoch."""
        self._settle()
        return self.order.chunks[self._place :]

    def turn_to(self, chunk: int) -> None:
        """Go on with this pending chunk and those after it; what is pending before it comes last."""
        order, place = self.order, self.order.chunks.index(chunk)
        self._settle()
        pending = np.concatenate([self._positions, np.arange(self._next, len(order.items))])
        start = order.stops[place - 1] if place else 0
        turned = np.concatenate([pending[pending >= start], pending[pending < start]])
        chunks = (*order.chunks[place:], *order.chunks[self._place : place])
        starts = np.concatenate([[0], order.stops])[:-1]
        sizes = [
            int(np.count_nonzero((pending >= starts[at]) & (pending < order.stops[at])))
            for at in (*range(place, len(order.chunks)), *range(self._place, place))
        ]
        done = len(order.items) - len(pending)
        items = np.concatenate([np.setdiff1d(order.items, order.items[turned]), order.items[turned]])
        self.order = Order(items, (-1, *chunks), tuple(int(stop) for stop in np.cumsum([done, *sizes])))
        self._positions = np.zeros(0, np.int64)
        self._next, self._place = done, 1

    def _settle(self) -> None:
        first = int(self._positions[0]) if len(self._positions) else self._next
        while self._place < len(self.order.stops) and self.order.stops[self._place] <= first:
            self._place += 1
