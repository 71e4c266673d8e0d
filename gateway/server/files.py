"""Bytes of files for the event loop: read at once if they are in memory, else in a thread.

Reading a page that is not in memory blocks the caller until the disk answers, and a hung disk never answers. ``RWF_NOWAIT``
(preadv2(2)) reads only from memory; ``cachestat`` (Linux 6.5) tells how much of a span is in memory. On kernels without
``cachestat``, the first and the last page are checked instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Awaitable, Callable

from gateway.model.errors import BlobGone, DiskUnavailable

FileSpan = tuple[int, int, int, int]
"""Bytes of an open file: descriptor, offset, count, and the number of the file's inode."""
ReadCold = Callable[[int, int, int], Awaitable[bytes]]
"""``os.pread`` without blocking the loop; raises DiskUnavailable if the disk hangs, OSError if it fails."""

_CACHESTAT = 451
_PAGE = os.sysconf("SC_PAGE_SIZE")
PIECE = 2 * 1024**2
"""Bytes of a file that are checked together, at multiples of this: a slow reader takes far less at a time."""
_MEMORY_FOR = 1.0
"""Seconds for which a piece that was in memory is assumed to stay there: recently read pages are reclaimed last."""
_MOST_REMEMBERED = 4096
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_LARGEST = 256 * 1024

_libc = ctypes.PyDLL(None)
_span = (ctypes.c_uint64 * 2)()
_counts = (ctypes.c_uint64 * 5)()
_span_at, _counts_at = ctypes.addressof(_span), ctypes.addressof(_counts)
_call = _libc.syscall
_call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
_byte = [bytearray(1)]
SEEN: dict[tuple[int, int], float] = {}
"""Pieces found in memory, by inode and piece number: until when that is assumed, on the loop's clock. Negative: part of the
piece is not in memory. Keyed by inode, because a closed descriptor's number goes to another file, while the memory belongs to
the inode. A new file that gets the number of a removed one was just written, and is in memory too.
"""


async def _in_default_thread(fd: int, count: int, offset: int) -> bytes:
    return await asyncio.to_thread(os.pread, fd, count, offset)


_read_cold: ReadCold = _in_default_thread


def read_cold_by(reader: ReadCold) -> None:
    """Set the reader of spans that are not in memory; it enforces a time limit on the disk."""
    global _read_cold
    _read_cold = reader


def in_memory(fd: int, inode: int, offset: int, count: int, now: float) -> bool:
    """Check whether a span can be read without the disk.

    Args:
        fd: of the file.
        inode: its number.
        offset: first byte.
        count: of bytes, in one piece that ``SEEN`` lacks.
        now: the loop's clock.
    """
    piece = inode, offset // PIECE
    if now >= -SEEN.get(piece, 0.0):
        start = offset - offset % PIECE
        whole = _resident(fd, start, min(start + PIECE, os.fstat(fd).st_size))
        _remember(piece, now + _MEMORY_FOR if whole else -now - _MEMORY_FOR)
        if whole:
            return True
    return _resident(fd, offset, offset + count)


def _resident(fd: int, start: int, stop: int) -> bool:
    """Whether the bytes from ``start`` to before ``stop`` are in memory."""
    if start >= stop:
        return False
    _span[0], _span[1] = start, stop - start
    last = stop - 1
    if _call(_CACHESTAT, fd, _span_at, _counts_at, 0) == 0:
        if _counts[0] < last // _PAGE - start // _PAGE + 1:
            return False
    elif not _readable(fd, start):
        return False
    # Pages being read from the disk count as in memory; they arrive in order.
    return _readable(fd, last)


def _readable(fd: int, offset: int) -> bool:
    try:
        os.preadv(fd, _byte, offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in _NOT_SUPPORTED
    return True


def just_written(span: FileSpan, now: float) -> None:
    """Note that a file was just written up to the end of a span, and so is in memory; ``now`` is the loop's clock."""
    _, offset, count, inode = span
    if len(SEEN) >= _MOST_REMEMBERED:
        SEEN.clear()
    for piece in range(-(-(offset + count) // PIECE)):
        SEEN[inode, piece] = now + _MEMORY_FOR


def _remember(piece: tuple[int, int], until: float) -> None:
    if len(SEEN) >= _MOST_REMEMBERED:
        SEEN.clear()
    SEEN[piece] = until


async def read_exactly(fd: int, count: int, offset: int) -> bytes:
    """Read ``count`` bytes of a file from ``offset``.

    Raises:
        BlobGone: the file ended earlier.
        DiskUnavailable: the file could not be read.
    """
    data = read_at_once(fd, count, offset)
    return bytes(data) if data else await read_slowly(fd, count, offset)


def read_at_once(fd: int, count: int, offset: int) -> bytes | bytearray | None:
    """The bytes of ``read_exactly`` if they are in memory, else ``None``."""
    buffer = bytearray(count)
    try:
        return buffer if os.preadv(fd, (buffer,), offset, os.RWF_NOWAIT) == count else None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            return None
    try:
        data = os.pread(fd, count, offset)
    except OSError:
        return None
    return data if len(data) == count else None


async def read_slowly(fd: int, count: int, offset: int) -> bytes:
    """Like ``read_exactly``, in a thread."""
    data = b""
    while len(data) < count:
        try:
            piece = await _read_cold(fd, min(_LARGEST, count - len(data)), offset + len(data))
        except OSError as error:
            raise DiskUnavailable("disk", str(error)) from None
        if not piece:
            raise BlobGone(f"a file ended {count - len(data)} bytes early")
        data += piece
    return data
