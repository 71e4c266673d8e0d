"""The bytes of one answer, block by block: from blobs on disk, from blocks that are still growing, or from the origin.

Each step looks at the present state: a block that was resident when the read began may have been evicted, and an expected fill
may have failed. Only blocks that the disk cannot supply are read from the origin without being kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from gateway.engine.base.object_runs import Gathered
from gateway.engine.objects.entries import ObjectEntry
from gateway.engine.objects.fill import Fill, FillEnded
from gateway.engine.objects.ranged import ReaderRefused
from gateway.engine.objects.small_ranges import StoredPart
from gateway.model.errors import DiskUnavailable
from gateway.model.keys import OriginIdentity
from gateway.model.outcomes import Reason
from gateway.model.s3.ranges import block_span
from gateway.net.exchange import StreamedResponse
from gateway.store.files.blobs import OpenBlob, Span
from gateway.store.files.growing import GrowingBlob

MAX_SPAN = 8 * 1024**2


class BlockSource(Protocol):
    """The source of a body's blocks; the engine implements it."""

    async def block(self, body: Body, number: int) -> OpenBlob | tuple[Fill, GrowingBlob]:
        """A resident block, held for the caller; or a growing block, joined for it, and its fill.

        Raises:
            DiskUnavailable: the block cannot be kept on disk.
            LarderError: the block is unavailable everywhere.
        """

    async def small_range(self, body: Body) -> bytes | StoredPart | None:
        """All bytes of a body that is read without its blocks, or the stored part that has them, held for it; ``None`` if its
        blocks must be filled.

        Raises:
            LarderError: the bytes are unavailable.
        """

    async def gathered(self, body: Body, position: int) -> Gathered | None:
        """Bytes from a position on that items have; ``None`` if no item has the first, or its block is here or being filled."""

    async def direct(self, body: Body, start: int, stop: int) -> StreamedResponse:
        """The bytes [start, stop) straight from the origin, without keeping them."""


class Body:
    """The bytes [start, stop) of one object, for one reader.

    ``numbers`` are the blocks it needs; ``direct`` says that bytes came from the origin and were kept nowhere. ``data`` has all
    bytes of a range that was read without its blocks, ``stored`` is the blob that has them; ``alone`` says that this reader
    caused the read. ``gathers``: items have the body's bytes, as far as known. ``prepare`` does everything that can fail before
    the first byte; ``pieces`` then yields spans (valid until the next one is asked for), or bytes that are in no file.
    ``following`` is the first block, joined for this body, and its fill; ``memory`` has all of the body's bytes, if they are in
    memory as well as in the file.
    """

    def __init__(
        self,
        source: BlockSource,
        entry: ObjectEntry,
        identity: OriginIdentity,
        start: int,
        stop: int,
        following: tuple[Fill, GrowingBlob] | None = None,
    ) -> None:
        self.entry = entry
        self.identity = identity
        self.start = start
        self.stop = stop
        record = entry.record
        if start == 0 and stop == record.meta.size:
            self.numbers = range(record.block_count)
        else:
            self.numbers = block_span(start, stop, record.block_size) or range(1)
        self.first = start % entry.record.block_size
        """The number of the first byte in its block."""
        self.joined = False
        self.missed = following is not None
        self.partial = False
        self.direct = False
        self.alone = False
        self.gathers = False
        self.data: bytes | None = None
        self.stored: StoredPart | None = None
        self.memory: memoryview | None = None
        self._source = source
        self._fill: Fill | None = None
        self._ready: OpenBlob | tuple[Fill, GrowingBlob] | None = following
        self._gathered: Gathered | None = None
        if following is not None:
            self._fill = following[0]
            self._fill.readers += 1

    async def prepare(self) -> None:
        """Open the first block, or get all bytes of a small range.

        Raises:
            LarderError: the bytes are unavailable. Nothing was sent yet, so the caller can answer with an error.
        """
        while True:
            if self._ready is None:
                if self.gathers:
                    self._gathered = await self._source.gathered(self, self.start)
                    if self._gathered is not None:
                        return
                if self.missed:
                    alone = await self._source.small_range(self)
                    self.stored = alone if isinstance(alone, StoredPart) else None
                    self.data = alone if isinstance(alone, bytes) else None
                if self.data is not None or self.stored is not None:
                    return
                self._ready = await self._source.block(self, self.numbers[0])
                self._attach(self._ready)
            if isinstance(self._ready, OpenBlob):
                return
            try:
                await self._ready[1].available(min(self.first, self._ready[1].length - 1))
                return
            except FillEnded:
                self._release_ready()
            except ReaderRefused as refused:
                if refused.identity == self.identity:
                    raise
                self._release_ready()

    def whole(self) -> tuple[int, int, int, int] | None:
        """The part of one file with all bytes, if there is one after ``prepare``: descriptor, offset, count, inode; until
        ``close``.
        """
        if self.stored is not None:
            return self.stored.blob.fd, self.start - self.stored.start, self.stop - self.start, self.stored.blob.inode
        if self._ready is None or len(self.numbers) > 1 or self.start == self.stop:
            return None
        file = self._ready if isinstance(self._ready, OpenBlob) else self._ready[1].blob
        return None if file is None else (file.fd, self.first, self.stop - self.start, file.inode)

    def close(self) -> None:
        """Release held resources; the fill loses one reader."""
        if self.stored is not None:
            self.stored.blob.release()
            self.stored = None
        if self._ready is not None:
            self._release_ready()
        if self._fill is not None:
            self._fill.readers -= 1
            self._fill = None
        self._gathered = None

    async def pieces(self) -> AsyncGenerator[Span | bytes]:
        """Every byte of the body, in order.

        Raises:
            LarderError: the rest is unavailable; the connection must be broken.
        """
        if self.data is not None:
            yield self.data
            return
        if self.stored is not None:
            yield Span(self.stored.blob.fd, self.start - self.stored.start, self.stop - self.start)
            return
        position = self.start
        block_size = self.entry.record.block_size
        while position < self.stop:
            number = position // block_size
            end = min(self.stop, (number + 1) * block_size)
            try:
                gathered, self._gathered = self._gathered, None
                if gathered is None and self.gathers and self._ready is None:
                    gathered = await self._source.gathered(self, position)
                if gathered is not None:
                    yield gathered.data
                    position += len(gathered.data)
                    continue
                if self._ready is None:
                    if self._fill is not None and self._fill.disk_failed:
                        raise DiskUnavailable(Reason.DISK, "another fill would fare no better")
                    self._ready = await self._source.block(self, number)
                    self._attach(self._ready)
                ready = self._ready
                if isinstance(ready, OpenBlob):
                    yield Span(ready.fd, position - number * block_size, end - position)
                    position = end
                else:
                    block, first = ready[1], number * block_size
                    while position < end:
                        stop = min(first + await block.available(position - first), end, position + MAX_SPAN)
                        yield block.part(position - first, stop - first)
                        position = stop
            except FillEnded:
                continue
            except ReaderRefused as refused:
                if refused.identity == self.identity:
                    raise
            except DiskUnavailable:
                async for chunk in self._rest(position):
                    yield chunk
                return
            finally:
                self._release_ready()

    async def _rest(self, position: int) -> AsyncIterator[bytes]:
        self.direct = True
        response = await self._source.direct(self, position, self.stop)
        try:
            async for chunk in response.chunks():
                yield chunk
        finally:
            response.abort()

    def _attach(self, ready: OpenBlob | tuple[Fill, GrowingBlob]) -> None:
        if isinstance(ready, OpenBlob):
            return
        fill, _block = ready
        if fill is not self._fill:
            if self._fill is not None:
                self._fill.readers -= 1
            fill.readers += 1
            self._fill = fill

    def _release_ready(self) -> None:
        ready, self._ready = self._ready, None
        if isinstance(ready, OpenBlob):
            ready.release()
        elif ready is not None:
            ready[1].leave()
