"""Opens an ``index`` file: the digests and lengths of a dataset, mapped, in either form of the file."""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.store.datasets.layout import (
    HEADER,
    INDEX_FORM,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_MAGIC_1,
    NONE,
    Damaged,
    IndexForm,
    index_size_1,
)

_ONE = np.uint64(1)


class Repeated:
    """Digests with many duplicates, each stored once. Indexed like an array of n rows."""

    def __init__(self, distinct: NDArray[np.uint8], numbers: NDArray[Any]) -> None:
        self.distinct = distinct
        self.numbers = numbers

    def __getitem__(self, key: Any) -> NDArray[np.uint8]:
        rows, *columns = key if isinstance(key, tuple) else (key,)
        digests: NDArray[np.uint8] = self.distinct[(self.numbers[rows], *columns)]
        return digests


class Lengths:
    """Lengths at the width of the largest, each stored plus one. Indexed like an array of n 64-bit numbers."""

    def __init__(self, stored: NDArray[Any]) -> None:
        self._stored = stored

    def __getitem__(self, key: Any) -> NDArray[np.uint64]:
        # Not ``-``: for a scalar it warns about the overflow that turns 0 into NONE.
        values: NDArray[np.uint64] = np.subtract(self._stored[key], _ONE, dtype=np.uint64)
        return values


class Index:
    """The items of a dataset by number and by digest.

    Attributes:
        items: their number.
        size: bytes of all items of known length.
        members: adjacent items of a sample.
        id: SHA-256 over the digests in order.
        digests: (items, 32).
        lengths: in bytes, ``layout.NONE`` where the digest file has none.

    Args:
        table: the file.

    Raises:
        Damaged: its size contradicts its header.
    """

    def __init__(self, table: mmap.mmap | bytes) -> None:
        if len(table) < HEADER:
            raise Damaged("an index has no header")
        magic, self.items, size, self.id = INDEX_HEADER.unpack_from(table)
        self.size = int.from_bytes(size, "little")
        self.members = 1
        self.digests: NDArray[np.uint8] | Repeated
        self.lengths: NDArray[np.uint64] | Lengths
        if magic == INDEX_MAGIC and len(table) >= 2 * HEADER:
            self._open(table)
        elif magic == INDEX_MAGIC_1 and len(table) == index_size_1(self.items):
            self._open_1(table)
        else:
            raise Damaged("an index does not match its header")

    def _open(self, table: mmap.mmap | bytes) -> None:
        distinct, width, members = INDEX_FORM.unpack_from(table, HEADER)
        self.members = max(1, members)
        form = IndexForm(self.items, distinct, width)
        wrong = width not in (0, 1, 2, 4, 8) or distinct > self.items or self.items % self.members
        if wrong or len(table) != form.size:
            raise Damaged("an index does not have the length in its header")
        digests = np.frombuffer(table, np.uint8, 32 * distinct, form.digests).reshape(distinct, 32)
        self.lengths = Lengths(_numbers(table, form.lengths, width, self.items))
        if form.plain:
            self.digests = digests
            self.prefixes: NDArray[np.uint64] = np.frombuffer(table, np.uint64, self.items, form.second)
            self.order: NDArray[np.uint32] = np.frombuffer(table, np.uint32, self.items, form.third)
        else:
            self.order = np.frombuffer(table, np.uint32, self.items, form.second)
            width = form.number_width
            zeros = np.broadcast_to(np.uint8(0), (self.items,))
            self.digests = Repeated(digests, _numbers(table, form.third, width, self.items) if width else zeros)

    def _open_1(self, table: mmap.mmap | bytes) -> None:
        items = self.items
        self.digests = np.frombuffer(table, np.uint8, 32 * items, HEADER).reshape(items, 32)
        self.lengths = np.frombuffer(table, np.uint64, items, HEADER + 32 * items)
        self.prefixes = np.frombuffer(table, np.uint64, items, HEADER + 40 * items)
        self.order = np.frombuffer(table, np.uint32, items, HEADER + 48 * items)

    def digest(self, item: int) -> bytes:
        """The SHA-256 of an item's bytes.

        Raises:
            IndexError: the number is out of range.
        """
        return bytes(self.digests[item])

    def digests_of(self, items: Sequence[int] | NDArray[np.uint32]) -> list[bytes]:
        """The SHA-256 of several items' bytes."""
        rows = self.digests[items].tobytes()
        return [rows[start : start + 32] for start in range(0, len(rows), 32)]

    def items_of(self, digest: bytes) -> NDArray[np.uint32]:
        """All items with these bytes, in ascending order; empty if there are none."""
        if isinstance(self.digests, Repeated):
            return self._repeated(digest, self.digests)
        prefix = np.uint64(int.from_bytes(digest[:8], "big"))
        first = int(np.searchsorted(self.prefixes, prefix, "left"))
        last = int(np.searchsorted(self.prefixes, prefix, "right"))
        # A hostile file may have millions of digests with one prefix: hence no scan.
        low = bisect_left(self.order, digest, first, last, key=self.digest)
        return self.order[low : bisect_right(self.order, digest, low, last, key=self.digest)]

    def _repeated(self, digest: bytes, digests: Repeated) -> NDArray[np.uint32]:
        number = bisect_left(range(len(digests.distinct)), digest, key=lambda row: bytes(digests.distinct[row]))
        low = bisect_left(self.order, number, key=lambda item: int(digests.numbers[item]))
        high = bisect_right(self.order, number, low, key=lambda item: int(digests.numbers[item]))
        items = self.order[low:high]
        return items if high > low and self.digest(int(items[0])) == digest else self.order[:0]


def total_of(lengths: NDArray[np.uint64]) -> int:
    """The sum of all known lengths, added in halves, because it may exceed 64 bits."""
    known = lengths[lengths != NONE]
    return (int((known >> np.uint64(32)).sum()) << 32) + int((known & np.uint64(0xFFFFFFFF)).sum())


def _numbers(table: mmap.mmap | bytes, start: int, width: int, count: int) -> NDArray[Any]:
    """Stored numbers; at width 0, a single 64-bit number is the value of all items."""
    if width:
        return np.frombuffer(table, f"<u{width}", count, start)
    return np.broadcast_to(np.frombuffer(table, np.uint64, 1, start), (count,))
