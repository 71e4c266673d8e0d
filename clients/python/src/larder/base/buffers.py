"""Memory for items whose lengths become known one by one.

Large buffers are used again as soon as nothing refers to their bytes: the system has to clear new memory first, which takes as
long as reading the items. Small buffers are left to malloc, which keeps freed memory of such sizes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import numpy as np

SIZE = 32 << 20
"""Bytes of a buffer that items share."""
_LARGE = 4 << 20
"""Bytes of the smallest buffer that is used again: numpy requests huge pages from this size on."""
_HUGE_PAGE = 2 << 20
_MALLOC_KEEPS = 62 << 20
"""Bytes of freed memory that glibc keeps once a mapping of half as many was freed, 32 MiB at most (mallopt(3), M_TRIM_THRESHOLD).
Programs that copy items need it: copying 256 of 1 MiB takes twice as long without."""
_KEPT = 16
"""The most free buffers that one reader keeps: two batches of 256 MiB."""


class Buffers:
    """The buffers of one reader. Safe for threads and to fork; copied and pickled without the memory."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def borrow(self, size: int) -> memoryview:
        """A buffer of ``size`` bytes with arbitrary content.

        Raises:
            MemoryError: out of memory.
        """
        if not _LARGE <= size <= SIZE:
            return np.empty(size, np.uint8).data  # unlike a bytearray, not zeroed first
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _at_huge_page()
        # Any reference to some of the bytes keeps this array.
        lent = np.frombuffer(memory, np.uint8, size)
        weakref.finalize(lent, self._keep, memory).atexit = False
        return lent.data

    def _keep(self, memory: memoryview) -> None:
        if len(self._free) < _KEPT:
            self._free.append(memory)


def _at_huge_page() -> memoryview:
    """New memory that begins at a huge page; malloc's memory begins anywhere, so its first and last pages stay small."""
    np.empty(_MALLOC_KEEPS // 2, np.uint8)
    memory = np.empty(SIZE + _HUGE_PAGE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _HUGE_PAGE
    return memory.data[start : start + SIZE]


class Space:
    """Places for items that arrive one by one, side by side in shared buffers.

    Args:
        allocate: makes a buffer of the given number of bytes.
    """

    def __init__(self, allocate: Callable[[int], memoryview]) -> None:
        self.expected = 0
        """Approximate bytes still to come; a buffer is not made larger than that."""
        self._allocate = allocate
        self._buffer = memoryview(b"")
        self._used = 0

    def places(self, sizes: Iterable[int]) -> Iterator[memoryview]:
        """The addresses of ``SIZE`` bytes each. Consume all of them: only then is the start of the next ones known."""
        buffer, used = self._buffer, self._used
        for size in sizes:
            end = used + size
            if end > len(buffer):
                buffer, used, end = self._allocate(max(size, min(self.expected, SIZE))), 0, size
            self.expected -= size
            yield buffer[used:end]
            used = end
        self._buffer, self._used = buffer, used
