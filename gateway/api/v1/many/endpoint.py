"""``POST /-/v1/batch``: objects of any bucket, ranges of them and members of TAR archives, in one answer.

Each entry is a GET by the caller (gateway/api/s3/inner.py), so it is refused, limited, counted and logged like one, and its
failure affects no other entry. Several entries are opened concurrently, and ready entries are sent first. The number of open,
unsent answers is bounded. A body is read when it is next to be sent: a small one into memory, for its CRC, any other piece by
piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import NamedTuple
from zlib import crc32

from gateway.api.s3.answer import Answer
from gateway.api.s3.hot import Hit
from gateway.api.s3.inner import CallerReads, InnerRead, InnerReads, fields_of, release
from gateway.api.v1.batch_body import Outgoing, headers_of
from gateway.api.v1.batch_files import WHY_BYTES
from gateway.api.v1.many.attaching import Attaching, outgoing_of
from gateway.api.v1.many.entries import ManyEntry, parse_entries
from gateway.api.v1.many.members import ATTEMPTS, CHANGED, Archives, WalkRefused, changing
from gateway.api.v1.many.parts import MOST_BYTES, document_of, flags_of, gathered, part_of, placed, slice_of
from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.errors import BrokenBody, ClientGone, LarderError, S3Error
from gateway.model.frames import MEDIA_TYPE, FrameEntry, FrameSequence, ItemFlag, ItemStatus
from gateway.model.keys import Principal
from gateway.server.asgi_types import Receive, Scope, Send

AT_ONCE = 32
"""The most entries of one batch that are being opened, or open and unsent."""
SMALL = 256 * 1024
"""The most bytes of an entry that is read into memory before it is sent."""
_GOOD = (200, 206)
_STATUS = {404: ItemStatus.MISSING, 401: ItemStatus.REFUSED, 403: ItemStatus.REFUSED, 429: ItemStatus.ORIGIN_ERROR}
_FAULT = 500
_DIGITS = 6
_LATER = f"the answer has {MOST_BYTES} bytes already: ask for this entry in another request"


class _Opened(NamedTuple):
    """An entry that can be sent: its bytes, or its refusal."""

    position: int
    read: InnerRead
    answer: Answer | Hit
    entry: ManyEntry
    """The part of the object to send; for a member, its place in the archive."""
    empty: bool = False
    """Whether it is a member without bytes."""


class ManyEndpoint:
    """Answers batches of keys, after the caller is known.

    Args:
        reads: reads objects like GETs.
    """

    def __init__(self, reads: InnerReads) -> None:
        self._reads = reads
        self._archives = Archives()

    async def answer(self, scope: Scope, receive: Receive, send: Send, principal: Principal, body: bytes) -> None:
        """Answer one request.

        Raises:
            ApiError: the request is refused.
            BrokenBody: an entry that had begun could not be completed; the connection must be broken.
            ClientGone: the client has left; everything held for it has been released.
        """
        if scope["query_string"]:
            raise ApiError("InvalidRequest", "A batch of keys takes no parameters; entries are in the body.")
        entries = parse_entries(body)
        reads = self._reads.within(scope, principal)
        metrics.BATCHES.labels("keys", "frames").inc()
        with metrics.BATCH_LATENCY.labels("keys").time():
            outgoing, bytes_because = outgoing_of(scope, send)
            lines = [("content-type", MEDIA_TYPE)]
            if bytes_because:
                lines.append((WHY_BYTES, bytes_because))
            await send({"type": "http.response.start", "status": 200, "headers": headers_of(lines)})
            await unless_left(receive, _Sending(entries, reads, self._archives, outgoing).run())


async def unless_left(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work; cancel it if the client leaves, whatever it is waiting for."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone("the client left before the batch was complete")
        await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Sending:
    """One answer."""

    def __init__(
        self, entries: Sequence[ManyEntry], reads: CallerReads, archives: Archives, outgoing: Outgoing
    ) -> None:
        self._entries = entries
        self._reads = reads
        self._archives = archives
        self._outgoing = outgoing
        self._files = outgoing if isinstance(outgoing, Attaching) else None
        self._frames = FrameSequence()
        self._pending = deque(range(len(entries)))
        self._ready: deque[_Opened] = deque()
        self._running: set[asyncio.Task[_Opened]] = set()

    async def run(self) -> None:
        """Send all entries, as they become ready, and the end record.

        Raises:
            BrokenBody: an entry that had begun could not be completed.
        """
        outgoing = self._outgoing
        try:
            outgoing.add(self._frames.preamble(attached=self._files is not None))
            if self._files is not None:
                await outgoing.flush()  # the record of the first files follows
            while self._start() or self._ready or self._running:
                if not self._ready:
                    await outgoing.flush()
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                    self._collect()
                while self._ready:
                    await self._send(self._ready.popleft())
                    await outgoing.flush_if_full()
                await asyncio.sleep(0)  # hits need no waiting: let other requests run
            outgoing.add(self._frames.end())
            await outgoing.flush(more=False)
        except LarderError as failure:
            raise BrokenBody(str(failure)) from failure
        finally:
            await self._close()

    def _start(self) -> bool:
        """Open as many entries as may be open; returns whether any are left."""
        reads = self._reads
        while self._pending and len(self._ready) + len(self._running) < AT_ONCE:
            if self._frames.bytes >= MOST_BYTES:
                self._put_off(self._pending.popleft())
                continue
            # A caller without further share still has the batch's own place: entries are opened one by one.
            placed = reads.places.claim(reads.holder)
            if not placed and (self._ready or self._running):
                break
            position = self._pending.popleft()
            entry = self._entries[position]
            read = None if entry.member else reads.begin(entry.bucket, entry.key, entry.header)
            if read is not None and read.hit is not None:
                self._ready.append(_Opened(position, read, read.hit, entry))
            else:
                self._running.add(asyncio.create_task(self._open(position, read, placed=placed)))
                continue
            if placed:
                reads.places.give_back(reads.holder)
        return bool(self._pending)

    async def _open(self, position: int, read: InnerRead | None, *, placed: bool) -> _Opened:
        try:
            if read is not None:
                entry = self._entries[position]
                return _Opened(position, read, await read.answer(), entry)
            return await self._open_member(position, self._entries[position])
        finally:
            if placed:
                self._reads.places.give_back(self._reads.holder)

    async def _open_member(self, position: int, entry: ManyEntry) -> _Opened:
        reads, (bucket, key) = self._reads, (entry.bucket, entry.key)
        try:
            for _attempt in range(ATTEMPTS):
                opened = await self._read_member(position, entry)
                if opened.answer.status != CHANGED:
                    return opened
                await release(opened.answer)
                self._archives.forget(reads, bucket, key)
            raise changing()
        except WalkRefused as refused:
            return _Opened(position, refused.read, refused.answer, entry)
        except LarderError as failure:
            return _Opened(position, *reads.refused(bucket, key, failure), entry)

    async def _read_member(self, position: int, entry: ManyEntry) -> _Opened:
        """A member of the known version of the archive; status 412 if the archive has changed."""
        reads, (bucket, key) = self._reads, (entry.bucket, entry.key)
        assert entry.member is not None
        first, size, etag = await self._archives.locate(reads, bucket, key, entry.member)
        span = entry.span(size)
        start, stop = (first, first) if span is None else (first + span[0], first + span[1])
        # For an empty member, one byte of its header is read: only readers of the archive may learn of its members.
        part = ManyEntry.model_construct(bucket=bucket, key=key, start=min(start, stop - 1), end=stop)
        read = reads.begin(bucket, key, part.header, etag)
        answer = read.hit or await read.answer()
        if span is None and answer.status in _GOOD:
            await release(answer)
            answer = read.refused(S3Error("InvalidRange", explain=f"The member has {size} bytes."))
        return _Opened(position, read, answer, part, empty=start == stop)

    def _collect(self) -> None:
        for task in [task for task in self._running if task.done()]:
            self._running.discard(task)
            self._ready.append(task.result())

    async def _send(self, opened: _Opened) -> None:
        given: Answer | Hit | None = opened.answer
        try:
            given = await self._frame(opened)
        finally:
            await release(opened.answer)
            if given is not None:
                opened.read.note(given)

    async def _frame(self, opened: _Opened) -> Answer | Hit | None:
        """Send an entry; returns its answer, or the refusal sent instead, or ``None`` if it was put off.

        Raises:
            BrokenBody: an entry that had begun broke off.
        """
        position, read, answer, entry, empty = opened
        if answer.status not in _GOOD:
            await self._fail(position, answer)
            return answer
        try:
            skipped, length, data = (0, 0, b"") if empty else await part_of(answer, entry)
            if data is None and self._frames.bytes and self._frames.bytes + length > MOST_BYTES:
                self._put_off(position)
                return None
            places, first = None, []
            if data is None and self._files is not None:
                places = self._files.places(placed(answer, skipped, length), length)
            if data is None and length <= SMALL:
                if places is None:
                    data = await gathered(answer, skipped, length)
                else:
                    first = [record async for record in places]
        except ClientGone:
            raise
        except LarderError as failure:
            refusal = read.refused(failure)
            await self._fail(position, refusal)
            return refusal
        if places is not None:
            await self._attach(opened, length, first, places)
        elif data is None:
            await self._stream(opened, skipped, length)
        else:
            self._outgoing.add(self._frames.item(FrameEntry(position, position, length, crc32(data), flags_of(answer))))
            self._outgoing.add(data)
        return answer

    async def _stream(self, opened: _Opened, skipped: int, length: int) -> None:
        """Send a large entry piece by piece; its CRC follows.

        Raises:
            BrokenBody: it broke off after it had begun.
        """
        position, _, answer, _, _ = opened
        outgoing, crc = self._outgoing, 0
        entry = FrameEntry(position, position, length, 0, flags_of(answer) | ItemFlag.STREAMED)
        pieces = slice_of(answer, skipped, length)
        try:
            outgoing.add(self._frames.item(entry))
            async with aclosing(pieces):
                async for piece in pieces:
                    crc = crc32(piece, crc)
                    outgoing.add(piece)
                    await outgoing.flush_if_full()
        except LarderError as failure:
            raise BrokenBody(str(failure)) from failure
        outgoing.add(self._frames.trailer(entry, crc, ItemStatus.OK))

    async def _attach(
        self, opened: _Opened, length: int, first: Sequence[bytes], places: AsyncGenerator[bytes]
    ) -> None:
        """Send an entry whose bytes are in open files: the first records that say where, and the rest as it becomes known.

        Raises:
            BrokenBody: it broke off after it had begun.
        """
        position, outgoing = opened.position, self._outgoing
        flags = flags_of(opened.answer) | ItemFlag.STREAMED | ItemFlag.ATTACHED
        entry = FrameEntry(position, position, length, 0, flags)
        head = self._frames.item(entry)
        crc = crc32(b"".join(first), crc32(head))
        for record in (head, *first):
            outgoing.add(record)
        try:
            async with aclosing(places):
                async for record in places:
                    crc = crc32(record, crc)
                    outgoing.add(record)
        except LarderError as failure:
            raise BrokenBody(str(failure)) from failure
        outgoing.add(self._frames.trailer(entry, crc, ItemStatus.OK))

    async def _fail(self, position: int, answer: Answer | Hit) -> None:
        entry, fields = self._entries[position], fields_of(answer)
        code, message = await document_of(answer)
        status = _STATUS.get(answer.status)
        if status is None:
            status = ItemStatus.ORIGIN_ERROR if answer.status >= _FAULT else ItemStatus.INVALID
        after = fields.get(b"retry-after", "")
        more: dict[str, str | int] = {"code": code, "http_status": answer.status}
        if after.isdigit() and len(after) < _DIGITS:
            more["retry_after"] = int(after)
        self._outgoing.add(self._frames.failure(position, position, status, entry.bucket, entry.key, message, **more))

    def _put_off(self, position: int) -> None:
        entry = self._entries[position]
        self._outgoing.add(self._frames.failure(position, position, ItemStatus.LATER, entry.bucket, entry.key, _LATER))

    async def _close(self) -> None:
        """Release open bodies that will not be sent."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for task in self._running:
            if not task.cancelled() and task.exception() is None:
                self._ready.append(task.result())
        for opened in self._ready:
            await release(opened.answer)
        self._outgoing.close()
        if self._files is not None:
            self._files.close_files()
