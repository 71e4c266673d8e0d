"""Bodies of batch answers: the index form, and frames as they arrive.

The server sends files without copying them through this process where it can. Frames that are ready together leave together, in
pieces of at least 256 KiB, because many small chunks slow the reader down. Ready frames do not wait for pending items.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from gateway.base import metrics
from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.wanted import FailedItem, InMemoryItem, ItemStream, LargeItem, Outcome, StoredItem, Wanted
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.frames import FrameEntry, FrameSequence, ItemFlag, ItemStatus, resident_head
from gateway.server.asgi_types import RawHeaders, Scope, Send
from gateway.server.channel import SMALL
from gateway.server.cycle import Piece
from gateway.server.files import read_exactly
from gateway.server.send import send_pieces
from gateway.store.files.blobs import OpenBlob
from gateway.store.items import ItemFile, close_files

PIECE = 256 * 1024
RESULTS = {
    ItemStatus.MISSING: "missing",
    ItemStatus.CHANGED: "changed",
    ItemStatus.ORIGIN_ERROR: "origin-error",
    ItemStatus.NOT_RESIDENT: "not-resident",
    ItemStatus.REFUSED: "refused",
}
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}\Z")


class ItemTally:
    """Counts the items of answers by result; ``sent`` counts their bytes."""

    def __init__(self, items: Counter, sent: Counter | None = None) -> None:
        self._items = items
        self._sent = sent

    def item(self, flags: ItemFlag, status: ItemStatus, size: int) -> None:
        """Count one item of an answer."""
        if status is ItemStatus.OK:
            self.delivered(
                "hit" if ItemFlag.HIT in flags else "joined" if ItemFlag.JOINED in flags else "fetched", 1, size
            )
        else:
            self._items.labels(RESULTS[status]).inc()

    def delivered(self, result: str, count: int, size: int) -> None:
        """Count ``count`` items of ``size`` bytes in total."""
        self._items.labels(result).inc(count)
        if self._sent is not None:
            self._sent.labels(result).inc(size)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Options of an answer: the tally of its items, and the largest item to send, in bytes; ``None``: any."""

    tally: ItemTally
    largest: int | None = None


TO_CLIENTS = SendOptions(ItemTally(metrics.BATCH_ITEMS, metrics.BATCH_BYTES))
TOO_LARGE = "too large for a batch; request its blob"


async def send_resident(
    scope: Scope, send: Send, ask: BatchAsk, opened: Resident, headers: RawHeaders, options: SendOptions = TO_CLIENTS
) -> None:
    """Send the index form and close the files.

    Raises:
        BrokenBody: a file was truncated after it was opened; the connection must be broken.
    """
    try:
        head, end, size = _head(ask, opened)
        length = len(head) + size + len(end)
        start: dict[str, Any] = {"type": "http.response.start", "status": 200}
        start["headers"] = [*headers, (b"content-length", b"%d" % length)]
        await send(start)
        pieces: list[Piece] = [head, *[(file.fd, 0, file.size, file.inode) for file in opened.files], end]
        await send_pieces(scope, send, pieces)
        options.tally.delivered("hit", len(opened.files), size)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        opened.close()


def _head(ask: BatchAsk, opened: Resident) -> tuple[bytes, bytes, int]:
    """Index, end record, and the items' bytes."""
    _, sizes, crcs, _ = zip(*opened.files, strict=True) if opened.files else ((), (), (), ())
    return resident_head(opened.positions, ask.indices[opened.positions], sizes, crcs)


@dataclass(frozen=True, slots=True)
class Framing:
    """Sources and options of frames: ``fetches`` read large items."""

    fetches: ItemFetches
    options: SendOptions = TO_CLIENTS


async def send_frames(
    scope: Scope, send: Send, ask: BatchAsk, answer: Arriving, framing: Framing, headers: RawHeaders
) -> None:
    """Send frames as items arrive.

    Raises:
        BrokenBody: an item that had begun could not be completed; the connection must be broken.
    """
    frames = FrameSequence()
    outgoing = Outgoing(scope, send)
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        outgoing.add(frames.preamble())
        async for arrival in as_ready(answer.arrivals, outgoing):
            await _frame(ask, arrival, frames, framing, outgoing)
            await outgoing.flush_if_full()
        outgoing.add(frames.end(answer.status))
        await outgoing.flush(more=False)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        outgoing.close()
        await answer.aclose()


async def _frame(ask: BatchAsk, arrival: Arrival, frames: FrameSequence, framing: Framing, outgoing: Outgoing) -> None:
    position, index = arrival.position, int(ask.indices[arrival.position])
    content = _within(arrival.content, framing.options.largest)
    tally = framing.options.tally
    if isinstance(content, LargeItem):
        await outgoing.flush()
        wanted = Wanted(ask.registration, index, ask.identity, ask.caching, here=ask.here)
        stream = await framing.fetches.stream(wanted)
        if isinstance(stream, ItemStream):
            entry = FrameEntry(position, index, stream.length, 0, ItemFlag.STREAMED)
            status = await _streamed(entry, stream, frames, outgoing)
            tally.item(ItemFlag.NONE, status, stream.length)
            return
        content = stream
    if isinstance(content, FailedItem):
        location = ask.registration.locations.of(index)
        outgoing.add(frames.failure(position, index, content.status, location.bucket, location.key, content.detail))
        tally.item(ItemFlag.NONE, content.status, 0)
        return
    flags, size, crc = described(content)
    await outgoing.add_item(frames.item(FrameEntry(position, index, size, crc, flags)), content)
    tally.item(flags, ItemStatus.OK, size)


def _within(content: ItemFile | Outcome, largest: int | None) -> ItemFile | Outcome:
    """The item, unless it is larger than ``largest`` bytes."""
    if largest is None or isinstance(content, FailedItem):
        return content
    if not isinstance(content, LargeItem) and described(content)[1] <= largest:
        return content
    if isinstance(content, ItemFile):
        close_files([content])
    return FailedItem(ItemStatus.NOT_RESIDENT, TOO_LARGE)


async def _streamed(entry: FrameEntry, stream: ItemStream, frames: FrameSequence, outgoing: Outgoing) -> ItemStatus:
    try:
        outgoing.add(frames.item(entry))
        async for piece in stream.pieces():
            outgoing.add(piece)
            await outgoing.flush_if_full()
    finally:
        stream.close()
    crc, status = stream.verdict()
    outgoing.add(frames.trailer(entry, crc, status))
    return status


Content = ItemFile | StoredItem | InMemoryItem


def described(content: Content) -> tuple[ItemFlag, int, int]:
    """Flags, size in bytes and CRC of a delivered item."""
    if isinstance(content, InMemoryItem):
        return content.flags, len(content.data), content.crc32
    if isinstance(content, StoredItem):
        return content.flags, content.blob.size, content.blob.crc32
    return ItemFlag.HIT, content.size, content.crc32


class Outgoing:
    """Pieces waiting to be sent together, and the files they need until then."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.size = 0
        self._scope = scope
        self._send = send
        self._pieces: list[Piece] = []
        self._files: list[ItemFile] = []
        self._kept: list[Content] = []

    def add(self, piece: bytes) -> None:
        """Append bytes."""
        self._pieces.append(piece)
        self.size += len(piece)

    async def add_item(self, head: bytes, content: Content) -> None:
        """Append an item, header and bytes; it is released when they are sent.

        Raises:
            BlobGone: its file was truncated.
            DiskUnavailable: its file cannot be read.
        """
        self.add(head)
        if isinstance(content, InMemoryItem):
            self._kept.append(content)
            self.add(content.data)
            return
        if isinstance(content, ItemFile):
            self._files.append(content)
            file: ItemFile | OpenBlob = content
        else:
            self._kept.append(content)
            file = content.blob
        fd, size = file.fd, file.size
        if size > SMALL:
            self._pieces.append((fd, 0, size, file.inode))
            self.size += size
            return
        # Small files would be read one by one anyway; reading them now keeps thousands of them from being open at once.
        self.add(await read_exactly(fd, size, 0))
        if isinstance(content, ItemFile):
            close_files([self._files.pop()])
        else:
            self._kept.pop()

    async def flush_if_full(self) -> None:
        """Send the waiting pieces once they are worth a write."""
        if self.size >= PIECE:
            await self.flush()

    async def flush(self, *, more: bool = True) -> None:
        """Send the waiting pieces."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        try:
            if pieces or not more:
                await send_pieces(self._scope, self._send, pieces, more)
        finally:
            self.close()

    def close(self) -> None:
        """Release the items that were sent, or will not be."""
        files, self._files, self._kept = self._files, [], []
        close_files(files)


async def as_ready(arrivals: AsyncGenerator[Arrival], outgoing: Outgoing) -> AsyncIterator[Arrival]:
    """Yields each arrival, and flushes ``outgoing`` before waiting for the next one."""
    loop = asyncio.get_running_loop()
    upcoming: asyncio.Task[Arrival | None] | None = None
    try:
        while True:
            upcoming = loop.create_task(_next(arrivals))
            await asyncio.sleep(0)  # let it run: an arrival that needs no waiting is then ready
            if not upcoming.done():
                await outgoing.flush()
            arrival = await upcoming
            upcoming = None
            if arrival is None:
                return
            yield arrival
    finally:
        if upcoming is not None:
            upcoming.cancel()
            [unused] = await asyncio.gather(upcoming, return_exceptions=True)
            if isinstance(unused, Arrival) and isinstance(unused.content, ItemFile):
                close_files([unused.content])


async def _next(arrivals: AsyncGenerator[Arrival]) -> Arrival | None:
    """The next arrival, ``None`` at the end. Catching the exception here frees its frames, and with them their files, at once."""
    return await anext(arrivals, None)


def suffix_of(key: str) -> str:
    """The last extension of a key, for names of TAR members; empty if it is unusual in a file name."""
    match = _SUFFIX.search(key)
    return match.group() if match else ""


def headers_of(pairs: Sequence[tuple[str, str]]) -> RawHeaders:
    """Headers as ASGI wants them."""
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs]
