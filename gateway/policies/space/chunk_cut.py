"""Which item of a dataset is in which chunk.

Digest files are sorted by key, and in key-sorted data the classes come one after the other. So the items are permuted first: the
item at *slot* ``s`` of the permuted order is ``item_at(s)``. The slots, not the items, are cut into ``partitions`` and each of
these into ``units`` stripe units, and chunk ``c`` is unit ``c`` of every partition (Quiver, FAST 2020, section 5.1). Every chunk
is then a uniform sample of the dataset, however the dataset is sorted.

Where samples have several items, such as an image and its label, these are adjacent, and samples take the place of items.

The permutation depends on the number of items and the dataset's id only, so all jobs and nodes use the same chunks. The client
computes it too (``larder.planner.permutation``); tests/wire/item_order.json pins both.

It is a generalised Feistel network over ``width * height >= items`` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002) with the 32-bit mixer ``lowbias32`` (Wellons, Hash Prospector), and walks the cycle past slots beyond the last item.
A slot is computed when it is needed and nothing is stored. For ten million items that takes 0.3 s of CPU per epoch; a sorted
array of random keys takes 0.8 s, a peak of 160 MB, and then 40 MB in every process of every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
"""Of the network. Four leave the chunks of 100,000 sorted items measurably uneven by class (chi-squared), six do not."""
_MASK = 0xFFFFFFFF
SAMPLE = 1 << 16
"""Resident items that are counted to find the fullest chunk."""
_BLOCK = 1 << 16
"""Slots computed at a time, so that intermediate results stay in the processor's cache: twice as fast as a million at once."""

Words = Any
"""A Python integer, which is quick for one item, or an array of ``uint32``, which wraps around by itself."""


class ItemPermutation:
    """A permutation of ``range(items)``, a pure function of its arguments.

    Args:
        items: how many, at most 2**32 - 1.
        seed: the first eight bytes of the dataset's id as a big-endian number.
    """

    def __init__(self, items: int, seed: int) -> None:
        self.items = items
        self._width = math.isqrt(max(items, 1) - 1) + 1
        self._height = max(1, -(-items // self._width))
        digest = blake2b(f"larder/items/{seed}".encode(), digest_size=4 * ROUNDS).digest()
        self._keys = [int(key) for key in np.frombuffer(digest, "<u4")]

    def items_at(self, slots: NDArray[np.integer]) -> NDArray[np.uint32]:
        """The items at these slots."""
        return self._walked(self._forward, slots)

    def slots_of(self, items: NDArray[np.integer]) -> NDArray[np.uint32]:
        """The slots of these items."""
        return self._walked(self._backward, items)

    def slot_of(self, item: int) -> int:
        """The slot of one item."""
        found: int = self._backward(item)
        while found >= self.items:
            found = self._backward(found)
        return found

    def _walked(self, step: Callable[[Words], Words], numbers: NDArray[np.integer]) -> NDArray[np.uint32]:
        found = numbers.astype(np.uint32)
        for start in range(0, len(found), _BLOCK):
            block = step(found[start : start + _BLOCK])
            while (beyond := block >= self.items).any():
                block[beyond] = step(block[beyond])
            found[start : start + _BLOCK] = block
        return found

    def _forward(self, slots: Words) -> Words:
        column, row = slots % self._width, slots // self._width
        for number, key in enumerate(self._keys):
            if number % 2:
                row = (row + _mixed(column, key)) % self._height
            else:
                column = (column + _mixed(row, key)) % self._width
        return row * self._width + column

    def _backward(self, items: Words) -> Words:
        column, row = items % self._width, items // self._width
        for number, key in reversed(list(enumerate(self._keys))):
            if number % 2:
                row = (row + self._height - _mixed(column, key) % self._height) % self._height
            else:
                column = (column + self._width - _mixed(row, key) % self._width) % self._width
        return row * self._width + column


def _mixed(word: Words, key: int) -> Words:
    """24 random bits: what is added to them stays below 2**32."""
    word = word ^ key
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK
    return (word ^ (word >> 16)) >> 8


class ChunkCut:
    """One dataset cut into chunks.

    Args:
        dataset: its id, in hexadecimal.
        items: how many it has.
        partitions: parts of the permuted order.
        units: stripe units of a partition, which is the number of chunks.
        members: adjacent items of a sample, which are in one chunk.
    """

    def __init__(self, dataset: str, items: int, partitions: int, units: int, members: int = 1) -> None:
        self.items = items
        self.units = units
        self._members = members
        self._samples = items // members
        self._permutation = ItemPermutation(self._samples, int(dataset[:16], 16))
        self._starts = unit_starts(self._samples, partitions, units)

    def chunk_of(self, item: int) -> int:
        """The chunk of one item."""
        slot = self._permutation.slot_of(item // self._members)
        return int(np.searchsorted(self._starts, slot, "right") - 1) % self.units

    def chunks_of(self, items: NDArray[np.integer]) -> NDArray[np.int64]:
        """The chunk of each of these items."""
        slots = self._permutation.slots_of(items // self._members)
        units = np.searchsorted(self._starts, slots, "right") - 1
        return np.asarray(units % self.units, np.int64)

    def items_of(self, chunk: int) -> NDArray[np.uint32]:
        """The items of one chunk, in the permuted order; none if there is no such chunk."""
        ends = np.append(self._starts[1:], self._samples)
        units = range(chunk, len(self._starts), self.units)
        parts = [np.arange(self._starts[unit], ends[unit], dtype=np.uint32) for unit in units]
        samples = self._permutation.items_at(np.concatenate(parts)) if parts else np.empty(0, np.uint32)
        members = np.arange(self._members, dtype=np.uint32)
        return np.asarray((samples[:, None] * np.uint32(self._members) + members).reshape(-1), np.uint32)


def unit_starts(items: int, partitions: int, units: int) -> NDArray[np.int64]:
    """The first slot of each stripe unit, partition by partition: ``partitions * units`` slots, in ascending order.

    The client cuts in the same way (``larder.planner.Layout.cell``): sizes differ by at most one at each level, and which
    units of a partition are the larger ones goes round, so that chunks are of equal size too.
    """
    numbers = np.arange(partitions + 1, dtype=np.int64)
    bounds = numbers * items // partitions
    shifts = numbers[:-1, None] * units // partitions
    within = (np.arange(units, dtype=np.int64) * np.diff(bounds)[:, None] + shifts) // units
    return (bounds[:-1, None] + within).reshape(-1)


def fullest_chunk(resident: NDArray[np.integer], cut: ChunkCut) -> int:
    """The chunk with most of the ``resident`` items, where a job that joins had better begin; -1 if there are none.

    Of more than ``SAMPLE`` items only that many are counted, evenly spaced, because requests wait for the answer.
    """
    if not len(resident):
        return -1
    sample = resident[:: -(-len(resident) // SAMPLE)]
    return int(np.bincount(cut.chunks_of(sample), minlength=cut.units).argmax())
