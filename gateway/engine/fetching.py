"""Bytes on their way from the origin, or from another node, into a blob and to its readers.

Objects and items of datasets are fetched by the same two classes. A ``ByteStream`` yields exactly the promised number of bytes,
and continues with another answer when one breaks off. A ``GrowingBlob`` writes one blob from a stream, verifies it if the
digest is known, and lets any number of readers follow it while it grows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import BrokenBody, LarderError, OriginUnavailable
from gateway.model.objects import BlobRef
from gateway.net.exchange import StreamedResponse
from gateway.store.disk.writer import SMALL, BlobWriter

RESUMES = 2
"""Times that a stream continues with another answer, unless its owner sets another number."""

Reopen = Callable[[int], Awaitable[StreamedResponse]]
"""Opens an answer with the bytes of a stream from an offset on; raises LarderError."""


async def pause(turn: int = 1) -> None:
    """Wait before the next attempt at the origin: 50 to 250 ms times ``turn``, so that many clients do not retry at once."""
    await asyncio.sleep(random.uniform(0.05, 0.25) * turn)  # noqa: S311 - jitter, not a secret


class ByteStream:
    """The bytes of one read. End it with ``release`` or ``abort``.

    Args:
        response: an open answer with the bytes from the first one on; ``None`` for an empty stream.
        length: the number of bytes; ``None`` if unknown: the end of the answer is the end of the stream.
        reopen: opens another answer when one breaks off; ``None`` if that is impossible.

    Attributes:
        length: as given.
        received: bytes so far.
        resumes: how often the stream may still continue with another answer.
        resumed: whether it has.
    """

    def __init__(self, response: StreamedResponse | None, length: int | None, reopen: Reopen | None = None) -> None:
        self.received = 0
        self.resumes = RESUMES
        self.resumed = False
        self._response = response
        self.length = length
        self._reopen = reopen
        self._left = b""

    async def next_chunk(self, most: int | None = None) -> bytes:
        """The bytes received since the last call, at most ``most``, waiting for at least one; ``b""`` at the end.

        Raises:
            LarderError: the rest cannot be read.
        """
        chunk = self._left
        while not chunk and most != 0 and self.received != self.length:
            try:
                if self._response is None:
                    assert self._reopen is not None
                    self._response = await self._reopen(self.received)
                chunk = await self._response.next_chunk()
                self.received += len(chunk)
                if chunk or self.length is None:
                    break
                raise OriginUnavailable("the connection was closed early")
            except (OriginUnavailable, PeerUnavailable) as failure:
                await self._interrupted(failure)
        if self.length is not None and self.received > self.length:
            raise BrokenBody(f"a body of {self.length} bytes has {self.received}")
        self._left = b""
        if most is not None and len(chunk) > most:
            chunk, self._left = chunk[:most], chunk[most:]
        return chunk

    def at_once(self, length: int) -> bytes | memoryview | None:
        """All ``length`` bytes of the stream if the answer has them in one piece; ``None`` if ``next_chunk`` must get them."""
        if self.received or self.length != length or self._response is None:
            return None
        whole = self._response.at_once(length)
        if whole is not None:
            self.received = length
        return whole

    async def _interrupted(self, failure: LarderError) -> None:
        """Continue with another answer, or raise the failure."""
        self.abort()
        if self._reopen is None or self.length is None or self.received >= self.length or not self.resumes:
            raise failure
        self.resumes -= 1
        self.resumed = True
        if isinstance(failure, OriginUnavailable):
            await pause()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The bytes as they arrive. Raises what ``next_chunk`` raises."""
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self) -> bytes:
        """All bytes. Raises what ``next_chunk`` raises."""
        return b"".join([chunk async for chunk in self.chunks()])

    def release(self) -> None:
        """Return the connection for reuse, or close it if bytes are outstanding."""
        if self._response is not None:
            self._response.release()

    def abort(self) -> None:
        """Close the connection; the stream may continue over another one."""
        if self._response is not None:
            self._response.abort()
            self._response = None


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file, ready to be sent: ``count`` bytes at ``offset`` of the open descriptor ``fd``."""

    fd: int
    offset: int
    count: int


class GrowingBlob:
    """A blob being written to disk: block ``number`` of an object, or an item.

    ``available`` tells readers the number of bytes that they may read by ``part``. The blob ends *finished* (all ``received``;
    ``ref`` names it once it is committed) or *failed* (no more bytes will come).
    """

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length
        self.received = 0
        self.writer: BlobWriter | None = None
        self.gathered = b""
        """The bytes of a small blob, which is written in one step when complete."""
        self.ref: BlobRef | None = None
        self.failure: LarderError | None = None
        self.on_progress: Callable[[], None] | None = None
        """Called once: when the first bytes arrived, or the blob ended before."""
        self._waiters: list[asyncio.Future[None]] = []
        self._users = 1  # the filler

    async def fill(self, writer: BlobWriter, stream: ByteStream, digest: bytes | None = None) -> BlobRef:
        """Write the blob; the caller calls ``progress`` once it has recorded the reference.

        So a reader that gets the last bytes and reads again gets a hit.

        Args:
            writer: of the blob.
            stream: positioned at the blob's first byte.
            digest: the required SHA-256; ``None``: any.

        Raises:
            DiskUnavailable: the disk failed.
            WrongDigest: the bytes have another digest and were discarded.
            LarderError: the stream failed.
        """
        self.writer = writer
        writer.hold()
        small = self.length <= SMALL
        while True:
            room = self.length - self.received
            chunk = (small and stream.at_once(room)) or await stream.next_chunk(room)
            if len(chunk) == room:
                if self.gathered:
                    chunk = self.gathered + chunk
                self.ref = await writer.commit(chunk, digest)
                self.gathered, self.received = b"", self.length
                return self.ref
            if small:
                self.gathered += chunk
            else:
                await writer.write(chunk)
            self.received += len(chunk)
            self.progress()

    def join(self) -> bool:
        """Keep the bytes readable until ``leave``, even if the fetch ends or the file is unlinked; ``False`` if it is closed."""
        if not self._users:
            return False
        self._users += 1
        return True

    def leave(self) -> None:
        """Undo one ``join``; the last call closes the file."""
        self._users -= 1
        if self._users == 0 and self.writer is not None:
            self.writer.release()

    def part(self, start: int, stop: int) -> Span | bytes:
        """The bytes [start, stop), which must be ``available``."""
        if self.gathered:
            return self.gathered[start:stop]
        assert self.writer is not None
        return Span(self.writer.fd, start, stop - start)

    def progress(self) -> None:
        """Wake the readers: bytes arrived, or the blob ended."""
        if self.on_progress is not None:
            self.on_progress()
            self.on_progress = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def end(self, failure: LarderError | None = None) -> None:
        """Tell readers that no more bytes will come, and why. The filler calls it once."""
        if self.ref is None:
            if self.writer is not None:
                self.writer.abort()
            self.failure = failure
            self.progress()
        self.leave()

    async def available(self, beyond: int) -> int:
        """Wait until more than ``beyond`` bytes are available; returns their number.

        Raises:
            LarderError: the failure of the fetch, if it ended before.
        """
        while self.received <= beyond:
            if self.failure is not None:
                raise self.failure
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.received
