"""The open files that come with an answer in frames, over the unix socket of a gateway on this machine.

An entry then names the places of its bytes: in which file, from where on, how many. Files are numbered over the answer in the
order in which they come. A record before them says how many have come by then: a process that has too few descriptors left gets
only some of them, and would read every later entry from the wrong file. Only the last files stay open, as many as the request
said.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from larder.base.checksums import crc32
from larder.http.local import close_all

ARRIVE = struct.pack("<I4s", 0xFFFFFFFF, b"LFIL")
"""The beginning of the record with which files come."""
_FILES = struct.Struct("<I4sQQ")
_PLACE = struct.Struct("<IIQQ")
_TRAILER = struct.Struct("<IHH")
_INLINE = 0xFFFFFFFE
"""In the place of a file's number: the bytes follow."""


class OpenFiles(Protocol):
    """The open files that came with an answer."""

    def take_descriptors(self) -> list[int]:
        """Their descriptors, in the order of the items; the caller closes them."""


class PassedFiles:
    """The files of one answer.

    Args:
        files: where they arrive; ``None``: no files come.
        most: how many of them the answer may name at a time.
    """

    def __init__(self, files: OpenFiles | None, most: int) -> None:
        self.files = files if most > 0 else None
        self._most = max(0, most)
        self._open: deque[int] = deque()
        self.count = 0
        """How many have come."""

    def __enter__(self) -> PassedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._take()
        close_all(self._open)
        self._open.clear()

    def arrive(self, record: bytes) -> bool:
        """Take the files that come with a record; returns whether all of them have come."""
        count: int = _FILES.unpack(record)[2]
        self._take()
        close_all(self._open.popleft() for _ in range(len(self._open) - self._most))
        return self.count == count

    def _take(self) -> None:
        arrived = [] if self.files is None else self.files.take_descriptors()
        self._open += arrived
        self.count += len(arrived)

    def read(self, read: Callable[[int], bytes], head: bytes, length: int) -> tuple[memoryview | None, bytes]:
        """Read an entry, which its trailer verifies.

        Args:
            read: reads records of the answer.
            head: the entry's header.
            length: its bytes.

        Returns:
            the bytes, or ``None`` if a file lacks some of them; and the trailer.

        Raises:
            ValueError: the places are impossible or damaged.
        """
        crc, left, pieces = crc32(head), length, list[bytes | None]()
        while left:
            record = read(_PLACE.size)
            if record[:8] == ARRIVE:
                if not self.arrive(record):
                    raise ValueError(f"only {self.count} open files came with it")
                continue
            crc = crc32(record, crc)
            number, _, offset, count = _PLACE.unpack(record)
            if not 0 < count <= left:
                raise ValueError(f"{count} bytes of an entry that lacks {left}")
            left -= count
            if number == _INLINE:
                piece = read(count)
                crc = crc32(piece, crc)
                pieces.append(piece)
            else:
                pieces.append(_bytes_at(self._file(number), offset, count))
        trailer = read(_TRAILER.size)
        if _TRAILER.unpack(trailer) != (crc, 0, 0):
            raise ValueError("the places of an entry are damaged")
        there = [piece for piece in pieces if piece is not None]
        if len(there) < len(pieces):
            return None, trailer
        return memoryview(there[0] if len(there) == 1 else b"".join(there)), trailer

    def _file(self, number: int) -> int:
        at = number - (self.count - len(self._open))
        if not 0 <= at < len(self._open):
            raise ValueError(f"file {number}, of {self.count} that came")
        return self._open[at]


def _bytes_at(file: int, offset: int, count: int) -> bytes | None:
    """Bytes of an open file; ``None`` if it cannot be read or lacks some."""
    try:
        data = os.pread(file, count, offset)
        while len(data) < count and (more := os.pread(file, count - len(data), offset + len(data))):
            data += more
    except (OSError, OverflowError, MemoryError):
        return None
    return data if len(data) == count else None
