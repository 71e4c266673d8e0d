"""The order of an epoch over several datasets, each with a share of its own.

Every dataset has an endless stream of passes over all its items, each in the order that the dataset would have alone. An epoch
takes the next ``taken`` items of each stream. If it takes as many as a dataset has, each of its items comes exactly once per
epoch; otherwise every item comes once before any comes again, over all epochs. No state is needed: a stream's position follows
from the epoch's number.

The epoch is cut into segments. Each has its share of every stream, in random order: batches have the proportions of the epoch,
and each stream keeps to the order of its dataset.

Items are numbered through all datasets, and through the passes that one epoch touches: number ``n`` is item ``n % total`` of the
concatenated datasets. So numbers are distinct within an epoch, although a small dataset may come several times.
"""

from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.planner.layout import MOST_ITEMS, Layout, Slice
from larder.planner.order import EpochOrder
from larder.planner.permutation import permutation

SEGMENT = 4096
"""The fewest positions of a segment; enough for the candidates of a batch of several hundred items."""
MOST_SEGMENTS = 1000
"""The most segments of an epoch: the time to look up a position is proportional to their number."""


class MixturePart(NamedTuple):
    """One dataset of a mixture: its layout, and how many items of its stream an epoch takes."""

    layout: Layout
    taken: int


class Numbering:
    """The numbers of items in a mixture.

    Args:
        sizes: items of each dataset.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.datasets = len(sizes)
        self.total = sum(sizes)
        self._starts = np.array([0, *accumulate(sizes)], np.int64)

    def number(self, part: int, passed: int, items: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The numbers of a dataset's items in the pass ``passed`` after the first one of the epoch."""
        return np.asarray(items + np.uint32(passed * self.total + int(self._starts[part])), np.uint32)

    def parts(self, numbers: NDArray[np.uint32]) -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
        """The dataset of each number, from 0, and its item there."""
        places = numbers.astype(np.int64) % max(1, self.total)
        parts = np.searchsorted(self._starts, places, side="right") - 1
        return parts.astype(np.uint16), (places - self._starts[parts]).astype(np.uint32)


def shares(weights: tuple[float, ...], items: int) -> tuple[int, ...]:
    """Number of an epoch's items from each dataset: in proportion to the weights, rounded by largest remainder.

    Raises:
        ValueError: a weight is not a positive number, or so small that its dataset gets no item.
    """
    if not all(0 < weight < float("inf") for weight in weights):
        raise ValueError(f"weights must be positive numbers, not {', '.join(map(str, weights))}")
    exact = [weight / sum(weights) * items for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(counts)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: items - sum(counts)]:
        counts[part] += 1
    if not all(counts):
        raise ValueError(
            f"an epoch of {items} items has none for the weight {weights[counts.index(0)]}: give it more items"
        )
    return tuple(counts)


def check_numbers(parts: tuple[MixturePart, ...]) -> None:
    """Refuse mixtures whose items cannot be numbered.

    Raises:
        ValueError: a dataset without items has a share, or small datasets come so often that numbers exceed 32 bits.
    """
    if any(part.taken and not part.layout.items for part in parts):
        raise ValueError("a dataset without items cannot be mixed with others")
    passes = max((-(-part.taken // part.layout.items) + 1 for part in parts if part.taken), default=1)
    total = sum(part.layout.items for part in parts)
    if passes * total > MOST_ITEMS:
        raise ValueError(
            f"a dataset would come {passes} times in an epoch of {total} different items; give it fewer items"
        )


class MixedOrder(EpochOrder):
    """The order of an epoch of a mixture; items are numbers, see `Numbering`.

    Args:
        layout: of the mixture: kind ``"mixed"``, with as many items as the parts give together.
        parts: the datasets.
        seed: the job's seed.
        epoch: number of the epoch, from 0.
    """

    def __init__(self, layout: Layout, parts: tuple[MixturePart, ...], *, seed: int, epoch: int) -> None:
        super().__init__(layout, seed=seed, epoch=epoch)
        self._parts = parts
        self._numbering = Numbering(tuple(part.layout.items for part in parts))
        self._passes: dict[tuple[int, int], EpochOrder] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.layout, self._parts, self.seed, self.epoch)

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The segments."""
        segments = self._segments
        stops = [self._start(number + 1) for number in range(segments)]
        parts = (Slice(number, start, stop) for number, (start, stop) in enumerate(pairwise([0, *stops])))
        return tuple(part for part in parts if part.stop > part.start)

    @property
    def _segments(self) -> int:
        return max(1, min(MOST_SEGMENTS, self.layout.items // SEGMENT))

    def _start(self, segment: int) -> int:
        """The first position of a segment."""
        return sum(segment * part.taken // self._segments for part in self._parts)

    def _make(self, number: int) -> NDArray[np.uint32]:
        segments = self._segments
        items = np.concatenate(
            [
                self._stream(index, number * part.taken // segments, (number + 1) * part.taken // segments)
                for index, part in enumerate(self._parts)
            ]
        )
        return items[permutation(len(items), "mixture", self.seed, self.epoch, number)]

    def _stream(self, index: int, start: int, stop: int) -> NDArray[np.uint32]:
        """The numbers of a dataset's items from ``start`` to ``stop`` of the epoch."""
        layout, count = self._parts[index]
        first, numbers = self.epoch * count, [np.zeros(0, np.uint32)]
        at, end = first + start, first + stop
        while at < end:
            turn, place = divmod(at, layout.items)
            taken = min(end - at, layout.items - place)
            items = self._pass(index, turn).items(place, place + taken)
            numbers.append(self._numbering.number(index, turn - first // layout.items, items))
            at += taken
        return np.concatenate(numbers)

    def _pass(self, index: int, turn: int) -> EpochOrder:
        known = self._passes.get((index, turn))
        if known is None:
            # Segments are computed in order: earlier passes of this dataset are over.
            self._passes = {key: order for key, order in self._passes.items() if key[0] != index}
            known = self._passes[index, turn] = EpochOrder(self._parts[index].layout, seed=self.seed, epoch=turn)
        return known


def _rebuild(layout: Layout, parts: tuple[MixturePart, ...], seed: int, epoch: int) -> MixedOrder:
    return MixedOrder(layout, parts, seed=seed, epoch=epoch)
