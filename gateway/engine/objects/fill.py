"""Fills: one origin read that becomes blobs on the node's disk, shared by every reader who wants them.

Rules
-----
1. A fill belongs to the node. It runs in its own task; the client that caused it may leave. Without readers it still completes
   when at most ``LINGER`` bytes remain, and otherwise ends at the next block boundary, keeping what is complete.
2. The generation of the key is read *before* the origin is asked and passed to ``Store.record``: if the object is written during
   a fill, the fill serves the readers that already follow it, and is not kept.
3. Only whole blocks are kept. When the origin breaks off, the fill resumes at the first missing byte with ``Range`` and
   ``If-Match`` (twice, after a jittered pause), so that a restart of the origin is invisible; then it fails, and the readers'
   connections break.
4. When the disk refuses bytes, the fill ends. Its readers read the rest from the origin themselves.
5. A reader who wants a block far ahead of the fill does not wait: the fill is cut short at that block, and another fill starts
   there.
6. Of the workers of a node, the one that holds the lease of a block fills it (store/shared/leases.py). A fill takes the next
   block's lease before it gives up the current one, so waiting siblings stay behind it. It ends before a block that a sibling
   stored in the meantime.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from gateway.engine.base.fetching import RESUMES, ByteStream
from gateway.engine.objects.entries import ObjectEntry
from gateway.model.errors import DiskUnavailable, LarderError, OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.model.objects import BlobRef, ObjectRecord
from gateway.model.outcomes import Reason
from gateway.net.exchange import StreamedResponse
from gateway.store.files.growing import GrowingBlob
from gateway.store.shared.leases import FillLeases
from gateway.store.store import Store

T = TypeVar("T")
LINGER = 64 * 1024**2
"""Bytes that a fill without readers will still read."""
FAR_AHEAD = 4
"""Blocks ahead of a fill beyond which a reader does not wait for it."""


class FillEnded(LarderError):
    """The fill stopped before this block, which had no readers; its next reader starts another fill."""


class FillOwner(Protocol):
    """Owns the fills that readers may join."""

    store: Store
    leases: FillLeases
    reading: set[Fill]
    """The fills that still wait for bytes from the origin; a fill removes itself."""

    async def read_range(self, entry: ObjectEntry, identity: OriginIdentity, start: int, stop: int) -> StreamedResponse:
        """The bytes [start, stop) of exactly this version from the origin; raises ``LarderError``."""

    def block_ended(self, fill: Fill, block: GrowingBlob) -> None:
        """Note that no more readers may join the block."""

    def fill_ended(self, fill: Fill) -> None:
        """Called when the fill has ended."""


class Fill:
    """One origin read in progress.

    Args:
        owner: the resources that all fills share.
        entry: the object.
        span: its first and last block to fill. The fill takes over the caller's lease of the first.
        identity: the keys to read the origin with.
        response: an open answer with the bytes of the blocks; ``None``: the fill asks for them.
        started_at: now, in seconds since the epoch: the first use of the blocks, perhaps long after the object was confirmed.

    Attributes:
        whole: the bytes of the only block, if they came with the head of the answer, which cannot break off then. Released
            before the wait for the index.
    """

    def __init__(
        self,
        owner: FillOwner,
        entry: ObjectEntry,
        span: tuple[int, int],
        identity: OriginIdentity,
        response: StreamedResponse | None,
        started_at: float,
    ) -> None:
        self.entry = entry
        self.current, self.last = span
        self.readers = 0
        self.race = False
        self.disk_failed = False
        self.end = "failed"
        self._owner = owner
        self._store = owner.store
        self._leases = owner.leases
        self._identity = identity
        self._response = response
        self._started_at = started_at
        self._ended: set[int] = set()
        size, block_size = entry.record.meta.size, entry.record.block_size
        self.blocks: dict[int, GrowingBlob] = {}
        for number in range(self.current, self.last + 1):
            length = min(block_size, size - number * block_size)  # the last block may be shorter
            self.blocks[number] = GrowingBlob(self._store, length, number)
        self.whole: bytes | memoryview | None = None
        if response is not None and len(self.blocks) == 1:
            self.whole = response.at_once(self.blocks[self.last].length)

    def __repr__(self) -> str:
        return f"<Fill {self.entry.key.path} blocks {self.current}..{self.last}, {self.readers} readers>"

    def serves(self, number: int) -> bool:
        """Whether a reader of block ``number`` should wait for this fill, because it will soon reach that block."""
        return number <= self.last and number - self.current <= FAR_AHEAD

    def comes_to(self, number: int) -> bool:
        """Whether this fill will still reach block ``number``: it has not been cut short before it."""
        return number <= self.last

    def cut_short(self, number: int) -> None:
        """Leave block ``number`` and the following blocks to another fill."""
        self.last = min(self.last, number - 1)

    async def run(self, outcome: T) -> T:
        """Run the fill to its end; returns ``outcome``, that of the task which runs it.

        Never raises: failures reach the readers of the blocks concerned.
        """
        block = self.blocks[self.current]
        # Not an attribute: fill and stream would refer to each other, and need the garbage collector.
        stream: ByteStream | None = None
        start = self.current * self.entry.record.block_size
        try:
            response = self._response = self._response or await self._reopen(start)
            await self._store.reserve(block)
            if self.whole is None:
                # The end may be nearer by now, if the fill was cut short.
                stream = ByteStream(response, self._stop() - start, lambda offset: self._reopen(start + offset))
            while True:
                if stream is not None:
                    ref = await block.fill(stream)
                else:
                    assert self.whole is not None
                    ref = await block.commit(self.whole)
                self.entry.blobs[block.number] = ref
                self.whole = None
                block.progress()
                if self.current >= self.last:
                    (stream or response).release()
                    self._owner.reading.discard(self)  # the index has yet to take the block
                    await self._keep(block)
                    break
                await self._keep(block)
                if stream is None or not await self._goes_on():
                    (stream or response).release()
                    break
                self.current += 1
                block = self.blocks[self.current]
                stream.resumes = RESUMES
                await self._store.reserve(block)
            if len(self._ended) < len(self.blocks):
                self._end_rest(FillEnded("the fill ended before this block"))
            self.end = "completed"
        except LarderError as failure:
            self.disk_failed = isinstance(failure, DiskUnavailable)
            self._abort(stream, failure)
        except BaseException:
            self._abort(stream, OriginUnavailable("the gateway is stopping"))
            raise
        finally:
            if self._leases.shared:
                self._leases.release(self.entry.key, self.current, self.entry.generation)
            self._owner.fill_ended(self)
        return outcome

    def _reopen(self, start: int) -> Awaitable[StreamedResponse]:
        """Request the object's bytes from a position on."""
        return self._owner.read_range(self.entry, self._identity, start, self._stop())

    def _abort(self, stream: ByteStream | None, failure: LarderError) -> None:
        if stream is not None:
            stream.abort()
        elif self._response is not None:
            self._response.abort()
        self._end_rest(failure)

    async def _goes_on(self) -> bool:
        """Whether to fill the next block too; if so, takes its lease and releases that of the current block."""
        following, entry = self.current + 1, self.entry
        if following > self.last:
            return False
        if self.readers == 0 and self._stop() - following * entry.record.block_size > LINGER:
            return False
        if not self._leases.acquire(entry.key, following, entry.generation):
            return False
        goes_on = False
        try:
            goes_on = not await self._is_stored(following) and following <= self.last
        finally:
            self._leases.release(entry.key, self.current if goes_on else following, entry.generation)
        return goes_on

    async def _is_stored(self, number: int) -> bool:
        """Whether another worker, which may load ahead for a client of this worker, has stored a block by now."""
        entry = self.entry
        if not self._leases.shared:
            return False
        stored = await self._store.blocks(entry.record.row_id, number, number)
        entry.blobs.update(stored)
        return bool(stored)

    def _stop(self) -> int:
        """The end of the last block."""
        record = self.entry.record
        return min((self.last + 1) * record.block_size, record.meta.size)

    def _end_rest(self, failure: LarderError) -> None:
        for block in self.blocks.values():
            if block.number not in self._ended:
                self._end(block, failure)

    def _end(self, block: GrowingBlob, failure: LarderError | None = None) -> None:
        self._ended.add(block.number)
        self._owner.block_ended(self, block)
        block.end(failure)

    async def _keep(self, block: GrowingBlob) -> None:
        """Tie a committed block to its object, unless the object was written since the origin was asked.

        Raises:
            DiskUnavailable: the disk or the index does not accept it.
        """
        entry, store = self.entry, self._store
        assert block.ref is not None
        gathers = self.current >= self.last  # the next block waits
        if not await tie(store, entry, block.number, block.ref, self._started_at, gathers=gathers):
            entry.blobs.pop(block.number, None)
            self.race = store.generations.at(*entry.slots) != entry.generation
            if not self.race:
                raise DiskUnavailable(Reason.DISK, "the index did not take the block")
        self._end(block)


async def tie(
    store: Store, entry: ObjectEntry, number: int, ref: BlobRef, used_at: float, *, gathers: bool = True
) -> bool:
    """Tie a committed blob to its object, as block ``number``; ``False`` if the index refused it, or the object was written
    since the origin was asked. See ``Store.record``.
    """
    granted = dict(entry.grants) if entry.record.row_id == 0 else {}
    record = await store.record(
        entry.key,
        entry.record.meta,
        entry.record.block_size,
        {number: ref},
        generation=entry.generation,
        confirmed_at=entry.record.confirmed_at,
        grants=granted,
        used_at=used_at,
        gathers=gathers,
    )
    if record is None:
        return False
    now = entry.record
    entry.record = ObjectRecord(record.row_id, now.meta, now.block_size, now.confirmed_at)
    for identity in granted.keys() - entry.grants.keys():
        await store.revoke(record.row_id, identity)  # the grant was revoked while the row was being written
    return True
