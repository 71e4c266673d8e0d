"""Reads a batch answer of another node, item by item (the format: gateway/model/frames.py).

A malformed answer counts as broken off: complete items before the error are valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from zlib import crc32

from gateway.model.errors import LarderError
from gateway.model.frames import (
    END,
    END_MAGIC,
    END_POSITION,
    ENTRY,
    FRAME,
    FRAMES_MAGIC,
    INDEX_MAGIC,
    PREAMBLE,
    TRAILER,
    VERSION,
    FrameEntry,
    ItemFlag,
    ItemStatus,
)

_FLAGS = ItemFlag.HIT | ItemFlag.JOINED | ItemFlag.STREAMED


class PeerAnswerBroken(LarderError):
    """A node's answer ended early, or is malformed."""


class AnswerReader:
    """One answer; ``items`` yields only requested items.

    Args:
        next_chunk: returns more of the body, ``b""`` at its end.
        indices: the requested ones, by position.
    """

    def __init__(self, next_chunk: Callable[[], Awaitable[bytes]], indices: list[int]) -> None:
        self._next_chunk = next_chunk
        self._indices = indices
        self._buffer = bytearray()
        self._entries: list[tuple[FrameEntry, ItemStatus]] | None = None
        self._crc = 0
        self.status = ItemStatus.OK
        """The status of the whole answer, once it has ended: ORIGIN_ERROR if the home gave up."""

    async def begin(self) -> None:
        """Read the preamble, and the index if there is one.

        Raises:
            PeerAnswerBroken: like every other method.
        """
        magic, version, _, count, _ = PREAMBLE.unpack(await self.take(PREAMBLE.size))
        if version != VERSION or magic not in (INDEX_MAGIC, FRAMES_MAGIC) or count > len(self._indices):
            raise PeerAnswerBroken("not a batch answer, or an unsupported version")
        if magic == INDEX_MAGIC:
            block = await self.take(ENTRY.size * count)
            self._crc = crc32(block)
            self._entries = [
                self._entry(position, index, length, crc, status, flags)
                for position, index, _, length, crc, status, flags in reversed(list(ENTRY.iter_unpack(block)))
            ]

    async def next(self) -> tuple[FrameEntry, ItemStatus] | None:
        """The head of the next item, whose bytes the caller must take next; ``None`` at the end of a complete answer."""
        if self._entries:
            return self._entries.pop()
        if self._entries is not None:
            self._end(await self.take(END.size))
            return None
        head = await self.take(FRAME.size)
        if int.from_bytes(head[:4], "little") == END_POSITION:
            self._end(head + await self.take(END.size - FRAME.size))
            return None
        self._crc = crc32(head, self._crc)
        return self._entry(*FRAME.unpack(head))

    async def trailer(self) -> tuple[int, ItemStatus]:
        """The trailer of a streamed item: its CRC, and its status."""
        record = await self.take(TRAILER.size)
        self._crc = crc32(record, self._crc)
        crc, status, _ = TRAILER.unpack(record)
        return crc, _status(status)

    async def take(self, count: int) -> bytes:
        """The next bytes."""
        while len(self._buffer) < count:
            self._buffer += await self._more()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def skip(self, count: int) -> None:
        """Discard bytes."""
        while len(self._buffer) < count:
            count -= len(self._buffer)
            self._buffer[:] = await self._more()
        del self._buffer[:count]

    async def _more(self) -> bytes:
        chunk = await self._next_chunk()
        if not chunk:
            raise PeerAnswerBroken("the answer ended early")
        return chunk

    def _entry(
        self, position: int, index: int, length: int, crc: int, status: int, flags: int
    ) -> tuple[FrameEntry, ItemStatus]:
        if position >= len(self._indices) or self._indices[position] != index or flags & ~int(_FLAGS):
            raise PeerAnswerBroken("it contains an item that was not requested")
        return FrameEntry(position, index, length, crc, ItemFlag(flags)), _status(status)

    def _end(self, record: bytes) -> None:
        position, magic, _, _, _, crc, status, _ = END.unpack(record)
        if position != END_POSITION or magic != END_MAGIC or crc != self._crc:
            raise PeerAnswerBroken("its end record does not match the answer")
        self.status = _status(status)


def _status(number: int) -> ItemStatus:
    try:
        return ItemStatus(number)
    except ValueError:
        raise PeerAnswerBroken(f"unknown status {number}") from None
