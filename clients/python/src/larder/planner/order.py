"""The canonical order of an epoch: the item at each position."""

from collections import OrderedDict
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from larder.planner.layout import Layout, Slice
from larder.planner.permutation import permutation

GROUPS = ("mixed", "unit")
HELD = 2
"""Slices whose items are in memory: the current one and the next."""


class EpochOrder:
    """A permutation of ``range(layout.items)``, a pure function of the arguments, computed slice by slice on demand.

    Args:
        layout: the kind of order, and its slices.
        seed: the job's seed, which determines a shuffled order.
        epoch: number of the epoch, from 0; each has its own order.
        group: ``"mixed"``: uniform. ``"unit"``: a slice has one stretch of the dataset after another, in random order, each
            shuffled by itself, so that a mini-batch comes from one stretch where possible (with little padding if the dataset is
            sorted by length; Quiver, section 5.1). There are as many stretches as partitions.

    Raises:
        ValueError: invalid epoch or grouping.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        seed: int,
        epoch: int,
        group: str = "mixed",
    ) -> None:
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, not {epoch}")
        if group not in GROUPS:
            raise ValueError(f"group must be one of {', '.join(GROUPS)}, not {group!r}")
        self.layout = layout
        self.seed = seed
        self.epoch = epoch
        self.group = group
        self._held: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.layout, self.seed, self.epoch, self.group)

    def __repr__(self) -> str:
        return f"EpochOrder({self.layout}, seed={self.seed}, epoch={self.epoch}, group={self.group!r})"

    @property
    def name(self) -> str:
        """The name by which gateways compute the same order; empty if they cannot."""
        if self.group != "mixed":
            return ""
        return {"sequential": "sequential", "shuffled": f"shuffled:{self.seed}"}.get(self.layout.kind, "")

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The slices that have items; their positions adjoin."""
        slices = (Slice(number, *self.layout.slice(number)) for number in range(self.layout.units))
        return tuple(part for part in slices if part.stop > part.start)

    def items(self, start: int, stop: int) -> NDArray[np.uint32]:
        """The items at the positions ``[start, stop)``, clipped to the epoch."""
        return self.at(np.arange(max(0, start), min(stop, self.layout.items), dtype=np.int64))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The item at each position; cheap while positions stay within two slices.

        Raises:
            IndexError: a position is outside of the epoch.
        """
        items = np.empty(len(positions), np.uint32)
        if not len(positions):
            return items
        if int(positions.min()) < 0 or int(positions.max()) >= self.layout.items:
            raise IndexError(f"positions are from 0 to {self.layout.items - 1}")
        places = np.searchsorted(np.asarray(self._stops), positions, side="right")
        for place in range(int(places.min()), int(places.max()) + 1):
            here = places == place
            if here.any():
                items[here] = self._slice(place)[positions[here] - self.slices[place].start]
        return items

    @cached_property
    def _stops(self) -> list[int]:
        return [part.stop for part in self.slices]

    def _slice(self, place: int) -> NDArray[np.uint32]:
        held = self._held.get(place)
        if held is None:
            while len(self._held) >= HELD:
                self._held.popitem(last=False)
            held = self._held[place] = self._make(self.slices[place].number)
        self._held.move_to_end(place)
        return held

    def _make(self, number: int) -> NDArray[np.uint32]:
        layout = self.layout
        start, stop = layout.slice(number)
        in_order = layout.kind == "sequential"
        items = np.arange(start, stop, dtype=np.uint32) if in_order else self._shuffled[start:stop]
        if self.group == "unit":
            rank = permutation(layout.partitions, "units", self.seed, self.epoch, number)
            items = items[np.argsort(rank[layout.stretch_of(items)], kind="stable")]
        return items

    @cached_property
    def _shuffled(self) -> NDArray[np.uint32]:
        return permutation(self.layout.items, "epoch", self.seed, self.epoch)


def _rebuild(layout: Layout, seed: int, epoch: int, group: str) -> EpochOrder:
    return EpochOrder(layout, seed=seed, epoch=epoch, group=group)
