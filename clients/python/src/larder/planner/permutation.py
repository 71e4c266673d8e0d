"""Permutations that are the same on every machine and under every version of numpy.

**Orders of an epoch** (`permutation`). A job that resumes must find the order it left. numpy guarantees that for the raw streams
of its bit generators (NEP 19), not for ``Generator.permutation``, so the step from stream to permutation is done here. The stream
is Philox4x64 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), keyed with the BLAKE2b hash of its purpose.

**The items of a dataset before they are cut into chunks** (`ItemPermutation`). Digest files are sorted by key, and in key-sorted
data the classes follow one another: without a permutation, a hundred classes in a hundred stripe units would give each chunk ten
classes. It depends only on the number of items and the dataset's id, so all jobs and gateways use the same chunks. Gateways
compute it too (``gateway/policies/space/chunk_cut.py``, which explains why it is computed rather than stored);
``wire/item_order.json`` pins both.
"""

import math
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
"""Rounds of the Feistel network."""
_BLOCK = 1 << 16
"""Slots computed at a time: intermediate results stay in the processor's cache, twice as fast as a million at once."""


def raw(count: int, *purpose: str | int) -> NDArray[np.uint64]:
    """``count`` random 64-bit numbers, a pure function of ``purpose``."""
    name = "/".join(["larder", *map(str, purpose)]).encode()
    key = np.frombuffer(blake2b(name, digest_size=16).digest(), "<u8").astype(np.uint64)
    return np.asarray(np.random.Philox(key=key).random_raw(count), np.uint64)


def permutation(count: int, *purpose: str | int) -> NDArray[np.uint32]:
    """A uniform permutation of ``range(count)``, a pure function of ``purpose``; ``count`` is at most 2**32.

    Each number gets random high bits, and the keys are sorted. Equal random bits favour the smaller number, which affects a
    handful of neighbours among ten million; in return all keys differ, so every sorting algorithm gives this order.
    """
    bits = np.uint64(max(1, (count - 1).bit_length()))
    keys = raw(count, *purpose)
    keys <<= bits
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.astype(np.uint32)


def permutations(rows: int, count: int, *purpose: str | int) -> NDArray[np.int64]:
    """``rows`` permutations of ``range(count)``, one per row, a pure function of ``purpose``; for small ``count``."""
    keys = raw(rows * count, *purpose).reshape(rows, count)
    return np.argsort(keys, axis=1, kind="stable").astype(np.int64)


class ItemPermutation:
    """A permutation of ``range(items)``.

    A generalised Feistel network (Black and Rogaway, CT-RSA 2002) with the mixer ``lowbias32`` (Wellons, Hash Prospector).

    Args:
        items: number of items, at most 2**32 - 1.
        seed: the first eight bytes of the dataset's id as a big-endian number.
    """

    def __init__(self, items: int, seed: int) -> None:
        self._items = items
        width = math.isqrt(max(items, 1) - 1) + 1
        self._width, self._height = np.uint32(width), np.uint32(max(1, -(-items // width)))
        digest = blake2b(f"larder/items/{seed}".encode(), digest_size=4 * ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u4").astype(np.uint32)

    def items_at(self, slots: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The items at these slots of the permuted order."""
        found = slots.copy()
        for start in range(0, len(found), _BLOCK):
            block = self._forward(found[start : start + _BLOCK])
            while (beyond := block >= self._items).any():
                block[beyond] = self._forward(block[beyond])
            found[start : start + _BLOCK] = block
        return found

    def _forward(self, slots: NDArray[np.uint32]) -> NDArray[np.uint32]:
        column, row = slots % self._width, slots // self._width
        for number, key in enumerate(self._keys):
            if number % 2:
                row = (row + _mixed(column, key)) % self._height
            else:
                column = (column + _mixed(row, key)) % self._width
        return row * self._width + column


def _mixed(words: NDArray[np.uint32], key: np.uint32) -> NDArray[np.uint32]:
    """24 random bits of each word, so that sums with them stay below 2**32."""
    words = words ^ key
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray((words ^ (words >> np.uint32(16))) >> np.uint32(8), np.uint32)
