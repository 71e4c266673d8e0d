"""A block of an object that is being written by a fill and read by any number of readers at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.model.errors import LarderError
from gateway.model.objects import BlobRef
from gateway.store.writer import BlobWriter


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file that is ready to be sent: ``count`` bytes at ``offset`` of the open descriptor ``fd``."""

    fd: int
    offset: int
    count: int


class GrowingBlock:
    """One block on its way from the origin to the disk.

    Readers call ``available`` for the number of bytes they may take by ``part``. The block ends *finished*
    (all bytes are there; ``ref`` names the blob once it is committed) or *failed* (no more bytes will come).
    """

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length
        self.writer: BlobWriter | None = None
        self.gathered = b""
        """What has come of a small block, which is written in one step when it is whole."""
        self.ref: BlobRef | None = None
        self.failure: LarderError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._users = 1  # the fill itself

    def join(self) -> None:
        """Keep the bytes readable until ``leave``, whatever becomes of the fill and of the file's name."""
        self._users += 1

    def leave(self) -> None:
        """Undo one ``join``; the last one out closes the file."""
        self._users -= 1
        if self._users == 0 and self.writer is not None:
            self.writer.release()

    @property
    def received(self) -> int:
        """Bytes that can be read now."""
        return len(self.gathered) + (self.writer.written if self.writer is not None else 0)

    def part(self, start: int, stop: int) -> Span | bytes:
        """The bytes [start, stop) of those that are ``available``."""
        if self.gathered:
            return self.gathered[start:stop]
        assert self.writer is not None
        return Span(self.writer.fd, start, stop - start)

    def progress(self) -> None:
        """Wake the readers: bytes came, or the block ended."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, failure: LarderError) -> None:
        """No more bytes will come; readers learn why."""
        if self.received < self.length:
            self.failure = failure
        self.progress()

    async def available(self, beyond: int) -> int:
        """Wait until more than ``beyond`` bytes are there, and return how many.

        Raises:
            LarderError: the failure of the fill, when it ended before that.
        """
        while self.received <= beyond:
            if self.failure is not None:
                raise self.failure
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.received
