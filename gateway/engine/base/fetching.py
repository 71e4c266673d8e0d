"""The bytes of one read of the origin, or of another node.

A ``ByteStream`` yields exactly the promised number of bytes, and reopens the answer when it breaks off. Blobs of objects and
items are filled from it (gateway/store/files/growing.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import BrokenBody, LarderError, OriginUnavailable
from gateway.net.exchange import StreamedResponse

RESUMES = 2
"""Times that a stream may continue with another answer, unless its owner sets another number."""

_TURNS = 3
"""Turns of the event loop within which bytes that the kernel has will arrive."""

Reopen = Callable[[int], Awaitable[StreamedResponse]]
"""Opens an answer with the bytes of a stream from an offset on; raises LarderError."""


async def pause(turn: int = 1) -> None:
    """Wait before the next attempt at the origin: 50 to 250 ms times ``turn``, so that many clients do not retry at once."""
    await asyncio.sleep(random.uniform(0.05, 0.25) * turn)  # noqa: S311 - jitter, not a secret


class ItemBytes(Protocol):
    """The bytes of an item, like a ``ByteStream``."""

    async def next_chunk(self, most: int | None = None) -> bytes:
        """The next bytes, at most ``most``, waiting for at least one; ``b""`` at the end. Raises LarderError."""

    def at_once(self, length: int) -> bytes | memoryview | None:
        """All ``length`` bytes, if they have arrived."""

    async def comes(self) -> bool:
        """Whether the next bytes are worth waiting for: they have arrived, or are being sent from this machine."""

    async def read(self) -> bytes:
        """All bytes. Raises what ``next_chunk`` raises."""

    def release(self) -> None:
        """Discard the rest, if any."""


class ByteStream:
    """The bytes of one read. End it with ``release`` or ``abort``.

    Args:
        response: an open answer with the bytes from the first one on; ``None`` for an empty stream.
        length: the number of bytes; ``None`` if unknown: the end of the answer is the end of the stream.
        reopen: opens another answer when the current one breaks off; ``None`` if that is impossible.

    Attributes:
        length: as given.
        received: bytes so far.
        resumes: how often the stream may still continue with another answer.
        resumed: whether it has continued with one.
    """

    def __init__(self, response: StreamedResponse | None, length: int | None, reopen: Reopen | None = None) -> None:
        self.received = 0
        self.resumes = RESUMES
        self.resumed = False
        self._response = response
        self.length = length
        self._reopen = reopen
        self._left = b""

    @classmethod
    def of(cls, data: bytes) -> ByteStream:
        """A stream of bytes already in memory."""
        stream = cls(None, len(data))
        stream.received, stream._left = len(data), data
        return stream

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

    async def comes(self) -> bool:
        """See ``ItemBytes``."""
        for _ in range(_TURNS):
            if self._left or (self._response is not None and self._response.pieces):
                return True
            await asyncio.sleep(0)
        return False

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
