"""The shares of an epoch: the arithmetic that makes it impossible to deliver an item twice.

An epoch's order is divided three times. Items that earlier sessions delivered under another world size (the *base*) are left out;
of the rest, the ``j``-th goes to rank ``j % world``, as its *place* ``j // world``; a rank's undelivered places form *blocks* of
a batch's size, and block ``i`` goes to worker ``i % workers``. Each division is a partition, so shares are disjoint and complete,
whatever happens within them. Memory is needed only for the ragged edges of the delivered items; everything else is computed.
"""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from larder.planner.numbers import NumberSet
from larder.planner.steps import share_size


class RankShare:
    """One rank's share of an epoch, as places from 0, and the places that are left."""

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
        """The places that are left, by their ordinals from 0."""
        return self._done.nth_missing(ordinals)


def block_starts(blocks: NDArray[np.int64], left: int, batches: int, batch_size: int) -> NDArray[np.int64]:
    """The ordinal of the first item of each of ``batches`` blocks that share the ``left`` items of a rank."""
    fair = np.minimum(blocks * batch_size, left - (batches - blocks))
    return np.asarray(np.maximum(fair, np.minimum(blocks, left)), np.int64)


class Share:
    """One worker's items: numbered from 0 to ``size``, in the epoch's order, in ``batches`` batches.

    All blocks except the last few are full. If items run short, each of the last blocks has at least one item if possible, so
    that the rank has its ``batches`` (a rank with one item less than the others splits its last block). Blocks that get no item
    are filled with repetitions. Items beyond all blocks (a tail to be dropped) belong to the worker of the last block.
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
        starts = block_starts(np.arange(full, batches + 1, dtype=np.int64), left, batches, self._batch_size)
        mine = [
            np.arange(starts[number - full], starts[number - full + 1])
            for number in range(full, batches)
            if number % self._workers == self._worker
        ]
        if (max(batches, 1) - 1) % self._workers == self._worker:
            mine.append(np.arange(starts[-1], left))
        return np.concatenate(mine).astype(np.int64) if mine else np.zeros(0, np.int64)

    def places(self, start: int, stop: int) -> NDArray[np.int64]:
        """The places, in the rank's share, of this worker's items ``[start, stop)``."""
        return self.places_of(np.arange(start, min(stop, self.size), dtype=np.int64))

    def places_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places, in the rank's share, of these items of this worker."""
        regular = self._full * self._batch_size
        block, within = np.divmod(numbers, self._batch_size)
        ordinals = (block * self._workers + self._worker) * self._batch_size + within
        late = numbers >= regular
        if late.any():
            ordinals[late] = self._rest[numbers[late] - regular]
        return self._rank_share.places(ordinals)

    def positions(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position in the epoch's order of each place."""
        return self._rank_share.positions(places)

    def first_place(self, place: int) -> int:
        """The smallest number whose place is not below ``place``."""
        return bisect_left(range(self.size), place, key=lambda n: int(self.places(n, n + 1)[0]))
