"""The bodies of batch answers on their way out: the index form, frames as they come, and TAR for people.

Bytes of files never pass through this process where the server can avoid it. Frames that are ready together leave together, in
pieces of at least 256 KiB: many small chunks would cost the reader most of his speed. What is ready does not wait for the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from gateway import metrics
from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.wanted import FailedItem, InMemoryItem, ItemStream, LargeItem, Outcome, StoredItem, Wanted
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.frames import FrameEntry, FrameSequence, ItemFlag, ItemStatus, index_head
from gateway.server.channel import SMALL
from gateway.server.cycle import Piece
from gateway.server.files import read_exactly
from gateway.server.refusals import Scope, Send
from gateway.server.send import send_pieces
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
RawHeaders = list[tuple[bytes, bytes]]


class ItemTally:
    """Counts the items of answers, by what became of them; ``sent`` counts their bytes too."""

    def __init__(self, items: Counter, sent: Counter | None = None) -> None:
        self._items = items
        self._sent = sent

    def item(self, flags: ItemFlag, status: ItemStatus, size: int) -> None:
        """One item of an answer."""
        if status is ItemStatus.OK:
            self.delivered(
                "hit" if ItemFlag.HIT in flags else "joined" if ItemFlag.JOINED in flags else "fetched", 1, size
            )
        else:
            self._items.labels(RESULTS[status]).inc()

    def delivered(self, result: str, count: int, size: int) -> None:
        """So many items of ``size`` bytes together."""
        self._items.labels(result).inc(count)
        if self._sent is not None:
            self._sent.labels(result).inc(size)


@dataclass(frozen=True, slots=True)
class Manner:
    """How an answer is made: who counts its items, and the most bytes of one that is sent at all; ``None``: any."""

    tally: ItemTally
    largest: int | None = None


TO_CLIENTS = Manner(ItemTally(metrics.BATCH_ITEMS, metrics.BATCH_BYTES))
TOO_LARGE = "it is too large to go with others; ask for its blob"


async def send_resident(
    scope: Scope, send: Send, ask: BatchAsk, opened: Resident, headers: RawHeaders, manner: Manner = TO_CLIENTS
) -> None:
    """Send the index form and close the files.

    Raises:
        BrokenBody: a file was shorter than it was when it was opened; the connection must be broken.
    """
    try:
        indices = ask.indices
        entries = [
            FrameEntry(position, int(indices[position]), file.size, file.crc32)
            for position, file in zip(opened.positions, opened.files, strict=True)
        ]
        head, end, size = index_head(entries)
        length = len(head) + size + len(end)
        start: dict[str, Any] = {"type": "http.response.start", "status": 200}
        start["headers"] = [*headers, (b"content-length", b"%d" % length)]
        await send(start)
        pieces: list[Piece] = [head, *[(file.fd, 0, file.size) for file in opened.files], end]
        await send_pieces(scope, send, pieces)
        manner.tally.delivered("hit", len(entries), size)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        opened.close()


@dataclass(frozen=True, slots=True)
class Framing:
    """What frames are made with: how large items are read, and the manner."""

    fetches: ItemFetches
    manner: Manner = TO_CLIENTS


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
    content = _within(arrival.content, framing.manner.largest)
    tally = framing.manner.tally
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
    """The item, unless it is too large to be sent."""
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
    """Flags, size and CRC of an item that is delivered."""
    if isinstance(content, InMemoryItem):
        return content.flags, len(content.data), content.crc32
    if isinstance(content, StoredItem):
        return content.flags, content.blob.size, content.blob.crc32
    return ItemFlag.HIT, content.size, content.crc32


class Outgoing:
    """Pieces that wait to be sent together, and what they need until then."""

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
        """Append an item: its header and its bytes; it is let go when they are sent.

        Raises:
            BlobGone: its file is shorter than it was.
            DiskUnavailable: its file cannot be read.
        """
        self.add(head)
        if isinstance(content, InMemoryItem):
            self._kept.append(content)
            self.add(content.data)
            return
        if isinstance(content, ItemFile):
            self._files.append(content)
            fd, size = content.fd, content.size
        else:
            self._kept.append(content)
            fd, size = content.blob.fd, content.blob.size
        if size > SMALL:
            self._pieces.append((fd, 0, size))
            self.size += size
            return
        # Small files would be read one by one in any case; read now, thousands of them need not be open together.
        self.add(await read_exactly(fd, size, 0))
        if isinstance(content, ItemFile):
            close_files([self._files.pop()])
        else:
            self._kept.pop()

    async def flush_if_full(self) -> None:
        """Send what waits once it is worth a piece."""
        if self.size >= PIECE:
            await self.flush()

    async def flush(self, *, more: bool = True) -> None:
        """Send what waits."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        try:
            if pieces or not more:
                await send_pieces(self._scope, self._send, pieces, more)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of what was sent, or will not be."""
        files, self._files, self._kept = self._files, [], []
        close_files(files)


async def as_ready(arrivals: AsyncGenerator[Arrival], outgoing: Outgoing) -> AsyncIterator[Arrival]:
    """Each arrival; what waits to be sent is sent before anything is waited for."""
    loop = asyncio.get_running_loop()
    upcoming: asyncio.Task[Arrival | None] | None = None
    try:
        while True:
            upcoming = loop.create_task(_next(arrivals))
            await asyncio.sleep(0)  # it has a turn; what needs no waiting is there then
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
    """``None`` at the end: an exception keeps the frames that it passed through, and their files, until it is collected."""
    return await anext(arrivals, None)


def suffix_of(key: str) -> str:
    """The last extension of a key, for names of TAR members; nothing that is unusual in a file's name."""
    found = _SUFFIX.search(key)
    return found.group() if found else ""


def headers_of(pairs: Sequence[tuple[str, str]]) -> RawHeaders:
    """Headers as they go out."""
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs]
