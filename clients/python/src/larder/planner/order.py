"""The canonical order of an epoch: the item at each position."""

from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from larder.planner.layout import Chunk, Layout
from larder.planner.permutation import permutation
from larder.planner.rotation import chunk_order

GROUPS = ("mixed", "unit")
HELD = 2
"""Chunks whose items are in memory: the current one and the next."""


class EpochOrder:
    """A permutation of ``range(layout.items)``, a pure function of the arguments, computed chunk by chunk on demand.

    Args:
        layout: how the dataset forms chunks.
        seed: the job's seed: determines the order inside striped chunks, and all of a shuffled layout; nothing of a sequential
            one.
        epoch: number of the epoch, from 0; each has its own order.
        chunks: the numbers of all chunks in their order in this epoch, for a job that joins others at the cached chunk. None:
            the computed order.
        group: ``"mixed"``: uniform inside a chunk. ``"unit"``: inside a chunk one stretch of the dataset after the other, in
            random order, each in itself random, so that a mini-batch comes from one stretch where possible (of a dataset
            sorted by length: with little padding; Quiver, section 5.1). There are as many stretches as partitions.

    Raises:
        ValueError: invalid epoch or grouping, or ``chunks`` does not have each chunk once.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        seed: int,
        epoch: int,
        chunks: tuple[int, ...] | None = None,
        group: str = "mixed",
    ) -> None:
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, not {epoch}")
        if chunks is not None and sorted(chunks) != list(range(layout.units)):
            raise ValueError(f"chunks must name each chunk from 0 to {layout.units - 1} once, not {chunks}")
        if group not in GROUPS:
            raise ValueError(f"group must be one of {', '.join(GROUPS)}, not {group!r}")
        self.layout = layout
        self.seed = seed
        self.epoch = epoch
        self.given = chunks
        self.group = group
        self._held: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.layout, self.seed, self.epoch, self.given, self.group)

    def __repr__(self) -> str:
        return (
            f"EpochOrder({self.layout}, seed={self.seed}, epoch={self.epoch}, chunks={self.given}, "
            f"group={self.group!r})"
        )

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that have items, in the order of this epoch; their positions adjoin."""
        found: list[Chunk] = []
        start = 0
        for number in self.numbers:
            stop = start + self.layout.chunk_size(number)
            if stop > start:
                found.append(Chunk(number, start, stop))
            start = stop
        return tuple(found)

    def items(self, start: int, stop: int) -> NDArray[np.uint32]:
        """The items at the positions ``[start, stop)``, clipped to the epoch."""
        return self.at(np.arange(max(0, start), min(stop, self.layout.items), dtype=np.int64))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The item at each position; cheap while positions stay within two chunks.

        Raises:
            IndexError: a position is outside of the epoch.
        """
        found = np.empty(len(positions), np.uint32)
        if not len(positions):
            return found
        if int(positions.min()) < 0 or int(positions.max()) >= self.layout.items:
            raise IndexError(f"positions are from 0 to {self.layout.items - 1}")
        places = np.searchsorted(np.asarray(self._stops), positions, side="right")
        for place in range(int(places.min()), int(places.max()) + 1):
            here = places == place
            if here.any():
                found[here] = self._chunk(place)[positions[here] - self.chunks[place].start]
        return found

    def place_of(self, position: int) -> int:
        """The place in ``chunks`` of a position."""
        return bisect_right(self._stops, position)

    @cached_property
    def _stops(self) -> list[int]:
        return [chunk.stop for chunk in self.chunks]

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all chunks in the order of this epoch, including empty ones."""
        layout = self.layout
        if self.given is not None:
            return self.given
        if not layout.rotates:
            return tuple(range(layout.units))
        return chunk_order(layout.order_seed, layout.units, self.epoch)

    def _chunk(self, place: int) -> NDArray[np.uint32]:
        held = self._held.get(place)
        if held is None:
            while len(self._held) >= HELD:
                self._held.popitem(last=False)
            held = self._held[place] = self._make(self.chunks[place].number)
        self._held.move_to_end(place)
        return held

    def _make(self, number: int) -> NDArray[np.uint32]:
        layout = self.layout
        if not layout.rotates:
            start, stop = number * layout.items // layout.units, (number + 1) * layout.items // layout.units
            in_order = layout.kind == "sequential"
            items = np.arange(start, stop, dtype=np.uint32) if in_order else self._shuffled[start:stop]
        else:
            members = layout.stripe(number)
            items = members[permutation(len(members), "items", self.seed, self.epoch, number)]
        if self.group == "unit":
            rank = permutation(layout.partitions, "units", self.seed, self.epoch, number)
            items = items[np.argsort(rank[layout.stretch_of(items)], kind="stable")]
        return items

    @cached_property
    def _shuffled(self) -> NDArray[np.uint32]:
        return permutation(self.layout.items, "epoch", self.seed, self.epoch)


def _rebuild(layout: Layout, seed: int, epoch: int, chunks: tuple[int, ...] | None, group: str) -> EpochOrder:
    return EpochOrder(layout, seed=seed, epoch=epoch, chunks=chunks, group=group)
