"""The shares of an epoch: the arithmetic that makes it impossible to deliver an item twice.

An epoch's order is divided three times. Items that earlier sessions delivered under another world size (the *base*) are left
out; of the rest, the ``j``-th goes to rank ``j % world``, as its *place* ``j // world``; a rank's undelivered places form
*blocks* of a batch's size, and block ``i`` goes to worker ``i % workers``. Each division is a partition, so shares are
disjoint and complete, whatever happens within them. Memory is needed only for the ragged edges of what was delivered;
everything else is computed.
"""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from larder.planner.numbers import NumberSet

TAILS = ("short", "drop", "pad")


def share_size(items: int, rank: int, world: int) -> int:
    """Number of the ``items`` that go to this rank."""
    return max(0, (items - rank + world - 1) // world)


def batches_left(items: int, world: int, *, left: int, delivered: int, batch_size: int, tail: str) -> int:
    """Number of batches left for this rank; equal for all ranks that delivered equally many items, for every tail.

    Args:
        items: items of the epoch without its base.
        world: number of ranks.
        left: pending items of the rank's share.
        delivered: items that the rank has delivered, repetitions included.
        batch_size: items of a full batch.
        tail: as in ``EpochPlan``.
    """
    if tail == "drop":
        return min(max(0, items // world - delivered) // batch_size, left)
    largest = share_size(items, 0, world)
    count = max(-(-max(0, largest - delivered) // batch_size), -(-left // batch_size))
    return count if tail == "pad" else min(count, left)


class RankShare:
    """One rank's share of an epoch, as places from 0, and which of these are left."""

    def __init__(self, items: int, base: NumberSet, done: NumberSet, rank: int, world: int) -> None:
        self.size = share_size(items - len(base), rank, world)
        self.left = self.size - len(done)
        self._base = base
        self._done = done
        self._rank = rank
        self._world = world

    def positions(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position in the epoch's order of each place."""
        return self._base.nth_missing(self._rank + self._world * places)

    def places(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the first, second, ... that is left, by ordinals from 0."""
        return self._done.nth_missing(ordinals)


class Share:
    """One worker's items: numbered from 0 to ``size``, in the epoch's order, in ``batches`` batches.

    All blocks but the last few are full. If items are short, each of the last ones has at least one item, so that the rank
    has its ``batches`` (a rank with one item less than the others splits its last block rather than having one batch less).
    Items beyond all blocks (a tail to be dropped) belong to the worker of the last block.
    """

    def __init__(self, rank_share: RankShare, batches: int, batch_size: int, worker: int, workers: int) -> None:
        left = rank_share.left
        self._rank_share = rank_share
        self._batch_size = batch_size
        self._worker = worker
        self._workers = workers
        self.batches = share_size(batches, worker, workers)
        spare = max(0, left - batches)
        full = batches if batch_size == 1 else spare // (batch_size - 1)
        full = min(full, batches, left // batch_size)
        self._full = share_size(full, worker, workers)
        self._rest = self._tail(left, batches, full)
        self.size = self._full * batch_size + len(self._rest)

    def _tail(self, left: int, batches: int, full: int) -> NDArray[np.int64]:
        """This worker's ordinals in the blocks from number ``full`` on, and possibly those beyond all blocks."""
        blocks = np.arange(full, batches + 1, dtype=np.int64)
        fair = np.minimum(blocks * self._batch_size, left - (batches - blocks))
        starts = np.maximum(fair, np.minimum(blocks, left))
        mine = [
            np.arange(starts[number - full], starts[number - full + 1])
            for number in range(full, batches)
            if number % self._workers == self._worker
        ]
        if (max(batches, 1) - 1) % self._workers == self._worker:
            mine.append(np.arange(starts[-1], left))
        return np.concatenate(mine).astype(np.int64) if mine else np.zeros(0, np.int64)

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """The places in the rank's share of numbers ``[start, stop)`` of this one."""
        numbers = np.arange(start, min(stop, self.size), dtype=np.int64)
        regular = self._full * self._batch_size
        even = numbers[numbers < regular]
        block, within = np.divmod(even, self._batch_size)
        ordinals = (block * self._workers + self._worker) * self._batch_size + within
        rest = self._rest[numbers[len(even) :] - regular]
        return self._rank_share.places(np.concatenate([ordinals, rest]))

    def positions(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position in the epoch's order of each place."""
        return self._rank_share.positions(places)

    def first_at(self, position: int) -> int:
        """The smallest number whose position is not below ``position``."""
        return bisect_left(range(self.size), position, key=lambda n: int(self.positions(self.places(n, n + 1))[0]))

    def first_place(self, place: int) -> int:
        """The smallest number whose place is not below ``place``."""
        return bisect_left(range(self.size), place, key=lambda n: int(self.places(n, n + 1)[0]))
