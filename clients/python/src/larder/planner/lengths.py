"""Batches of items of nearly equal length, to reduce padding.

The next pending items of a share, a pool of up to a hundred batches, are sorted by length and cut into slices. One slice is the
next batch, drawn by seed, epoch and number of the batch, so

* every item of the pool is equally likely to be in the next batch, and the lengths of batches come in random order;
* ranks and workers at the same step draw the same range of lengths, so none waits for one with longer items;
* a batch depends only on the pending items and its number: a resumed epoch continues with the same batches.

The pool is the next part of the epoch's order, at most a fifth of a share. So it differs in each epoch, and a batch is a new
choice among the items of its length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from larder.planner.permutation import raw

POOL = 100
"""The most batches of a pool."""
MOST = 2**32 - 1
"""The greatest length. Longer items count as this long."""


class ItemLengths:
    """The length of each item, in any unit.

    Args:
        lengths: whole numbers from 0, by item.

    Raises:
        ValueError: the lengths are not whole numbers from 0.
    """

    def __init__(self, lengths: ArrayLike) -> None:
        values = np.asarray(lengths)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ValueError("lengths must be a flat list of whole numbers, one for each item")
        if len(values) and int(values.min()) < 0:
            raise ValueError(f"lengths must be at least 0, not {int(values.min())}")
        self._values = np.minimum(values.astype(np.uint64), MOST).astype(np.uint32)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ItemLengths({len(self)} items)"

    def of(self, items: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The lengths of items; for a mixture, of numbers (`larder.planner.mixing.Numbering`)."""
        if len(items) and int(items.max()) >= len(self._values):
            items = items % np.uint32(max(1, len(self._values)))
        lengths: NDArray[np.int64] = self._values[items].astype(np.int64)
        return lengths


class LengthSlices:
    """Draws the slices of one epoch.

    Args:
        lengths: of the items.
        seed: of the job.
        epoch: its number.
        batch_size: items of a slice.
    """

    def __init__(self, lengths: ItemLengths, seed: int, epoch: int, batch_size: int) -> None:
        self._lengths = lengths
        self._purpose = ("lengths", seed, epoch)
        self._size = batch_size

    def arrange(self, pool: NDArray[np.uint32], take: int, wanted: int, batch: int) -> NDArray[np.intp]:
        """Places in the pool: ``take`` items of a slice, then the items nearest to them in length, ``wanted`` in total.

        Args:
            pool: the next pending items, in the order of the epoch.
            take: items that the batch still needs, at most as many as in the pool.
            wanted: number of candidates.
            batch: number of the batch in the epoch, the same on all ranks at the same step.
        """
        keys = self._lengths.of(pool) * (len(pool) + 1) + np.arange(
            len(pool)
        )  # equal lengths keep the order of the epoch
        slices = max(1, len(pool) // self._size)
        drawn = int(raw(1, *self._purpose, batch)[0] >> np.uint64(11)) * slices >> 53
        start = min(drawn * self._size, len(pool) - take)
        low = max(0, min(start - (wanted - take) // 2, len(pool) - wanted))
        order = np.argpartition(keys, sorted({low, start, start + take - 1, low + wanted - 1}))
        own, rest = (
            np.sort(order[start : start + take]),
            np.concatenate([order[low:start], order[start + take : low + wanted]]),
        )
        distance = np.abs(keys[rest] - np.sort(keys[own])[take // 2])
        return np.concatenate([own, rest[np.argsort(distance)]])

    def alike(self, items: NDArray[np.uint32], others: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Those of ``others`` whose length is between the shortest and the longest of ``items``."""
        lengths, known = self._lengths.of(others), self._lengths.of(items)
        alike: NDArray[np.uint32] = others[(lengths >= known.min()) & (lengths <= known.max())]
        return alike
