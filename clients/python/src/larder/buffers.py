"""Memory for items whose lengths become known little by little.

Free buffers are not kept for the next batch, although that would spare the system from clearing new pages. Measured with items of
110 KiB and of 1 MiB, reading into memory that was used for an earlier batch takes a fifth longer: it has left the processor's
caches since, while pages that were just cleared are in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

SIZE = 31 << 20
"""Bytes of a buffer that items share. glibc maps buffers of 32 MiB and more anew each time, page by page. It keeps the memory of
smaller ones, up to twice the largest that was freed (mallopt(3), M_TRIM_THRESHOLD): with smaller buffers it keeps too little."""


class Space:
    """Places for items that come one after the other, side by side in shared buffers.

    Args:
        allocate: makes a buffer of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], memoryview]) -> None:
        self.expected = 0
        """Bytes that are to come, about; a buffer is not made larger than that."""
        self._allocate = allocate
        self._buffer = memoryview(b"")
        self._used = 0

    def places(self, sizes: Iterable[int]) -> Iterator[memoryview]:
        """Places of so many bytes each. Take all of them: where the next ones begin is known after the last."""
        buffer, used = self._buffer, self._used
        for size in sizes:
            end = used + size
            if end > len(buffer):
                buffer, used, end = self._allocate(max(size, min(self.expected, SIZE))), 0, size
            self.expected -= size
            yield buffer[used:end]
            used = end
        self._buffer, self._used = buffer, used
