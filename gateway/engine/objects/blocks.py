"""The blocks of bodies: from blobs on disk, fills in progress, and new fills."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from gateway.base.metrics import FILLS, SMALL_RANGES, LoopSum
from gateway.base.tasks import Tasks
from gateway.engine.base.object_runs import Gathered, ObjectRuns
from gateway.engine.base.services import Services
from gateway.engine.objects.body import Body
from gateway.engine.objects.entries import Grants, ObjectEntry
from gateway.engine.objects.fill import Fill
from gateway.engine.objects.found import Ask, Found
from gateway.engine.objects.ranged import ObjectChanged, ReaderRefused, read_range
from gateway.engine.objects.small_ranges import SmallRanges, StoredPart
from gateway.model.access import Access
from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import ObjectRecord
from gateway.model.outcomes import Reason
from gateway.net.exchange import StreamedResponse
from gateway.policies.reads.granularity import is_stored, part_number
from gateway.store.files.blobs import OpenBlob
from gateway.store.files.growing import GrowingBlob

Slot = tuple[ObjectKey, str, int]
Forget = Callable[[Sequence[ObjectKey]], Awaitable[object]]
_COUNTED = ("started", "raced", "completed", "failed")
LEASE_PATIENCE = 10.0
"""Seconds that a block may wait for another worker of the node."""
UNRECORDED = 4
"""Fills per place that may be under way, including those that wait for the index; each has an open file."""


class Blocks:
    """The fills of this worker and the way to every block of an object.

    Args:
        services: of the worker.
        max_fills: fills at once.
        grants: of the worker; an identity to which the origin refuses the rest of an object loses its grant.
        forget: drops an object everywhere when the origin has replaced it.
    """

    def __init__(self, services: Services, max_fills: int, grants: Grants, forget: Forget) -> None:
        self._services = services
        self._grants = grants
        self._forget = forget
        self.store = services.store
        self.leases = services.leases
        self._accesses = services.store.accesses
        self._max_fills = max_fills
        self._growing: dict[Slot, tuple[Fill, GrowingBlob]] = {}
        self._counts = {name: LoopSum(FILLS.labels(name)) for name in _COUNTED}
        self._fills: set[Fill] = set()
        self.reading: set[Fill] = set()
        self.runs = ObjectRuns(services.store, services.block_size, services.now)
        self.small = SmallRanges(services.store, self.read_range, services.now)
        self.tasks = Tasks()
        """State of the node rather than of a client."""

    @property
    def active(self) -> int:
        """Number of fills under way."""
        return len(self._fills)

    @property
    def has_room(self) -> bool:
        """Whether another fill may be started; when not, reads are answered without storing.

        A fill occupies a place while it reads the origin. Fills of small objects that wait for the index of a busy disk occupy
        none.
        """
        return len(self.reading) < self._max_fills and len(self._fills) < UNRECORDED * self._max_fills

    @property
    def half(self) -> int:
        """The places that background fills may take: half of all."""
        return max(1, self._max_fills // 2)

    def is_filling(self, entry: ObjectEntry) -> bool:
        """Whether bytes of an entry are being read."""
        return any(fill.entry is entry for fill in self._fills)

    def besides(self, keys: Collection[ObjectKey]) -> int:
        """Number of fills of objects other than ``keys``."""
        return sum(fill.entry.key not in keys for fill in self._fills)

    async def close(self) -> None:
        """Stop every fill; incomplete blocks are discarded."""
        await self.tasks.stop()
        await self.small.close()

    def start_fill(
        self, entry: ObjectEntry, span: tuple[int, int], identity: OriginIdentity, response: StreamedResponse | None
    ) -> Fill:
        """Fill blocks ``span`` (first, last; inclusive), from an open answer or a new ranged read, in a task."""
        fill = self.begin_fill(entry, span, identity, response)
        self.tasks.start(fill.run(None))
        return fill

    def begin_fill(
        self, entry: ObjectEntry, span: tuple[int, int], identity: OriginIdentity, response: StreamedResponse | None
    ) -> Fill:
        """Like ``start_fill``, for a caller whose own task runs the fill with ``Fill.run``."""
        fill = Fill(self, entry, span, identity, response, self._services.now())
        self._fills.add(fill)
        self.reading.add(fill)
        self._counts["started"].inc()
        for number, block in fill.blocks.items():
            self._growing[entry.key, entry.record.meta.etag, number] = (fill, block)
        return fill

    def fill_ended(self, fill: Fill) -> None:
        """See ``FillOwner``."""
        self.reading.discard(fill)
        self._fills.discard(fill)
        self._counts["raced" if fill.race else fill.end].inc()

    def block_ended(self, fill: Fill, block: GrowingBlob) -> None:
        """See ``FillOwner``."""
        slot = (fill.entry.key, fill.entry.record.meta.etag, block.number)
        if self._growing.get(slot, (None,))[0] is fill:
            del self._growing[slot]

    async def open(self, ask: Ask, answer: Found, start: int, stop: int) -> Found:
        """The answer with a body whose first byte is guaranteed to be available.

        Args:
            ask: the reader's request.
            answer: the object, for this reader.
            start: first byte.
            stop: end, exclusive.

        Raises:
            ObjectChanged: the object has changed, or this reader may no longer read it; the entry was forgotten: ask again.
            DiskUnavailable: the body cannot be stored; forward the request instead.
            OriginUnavailable: the origin cannot be reached.
        """
        entry, identity, fill = answer.entry, ask.identity, answer.fill
        block = None if fill is None else fill.blocks.get(start // entry.record.block_size)
        if fill is not None and block is not None:
            if block.failure is not None:
                raise block.failure
            if block.join():
                self._accesses.record(Access(entry.key, block.number, b"", False, self._services.now(), identity))
                body = Body(self, entry, identity, start, stop, (fill, block))
                if answer.whole is not None:
                    body.memory = memoryview(answer.whole)[body.first : body.first + stop - start]
                return Found(entry, answer.outcome, answer.reason, body=body)
        body = Body(self, entry, identity, start, stop)
        try:
            body.data = None if answer.part is None else answer.part.piece(start, stop)
            if body.data is not None:
                if is_stored(stop - start, entry.record.block_size):
                    await self._rest_on_disk(body)
                return answer._replace(body=body)
            await self.load(entry, body.numbers[0], body.numbers[-1])
            body.missed = self.lacks(entry, body.numbers)
            if body.missed and entry.record.row_id:
                body.gathers = await self.runs.covers(entry.record.row_id, start, stop)
                body.missed = not body.gathers
            body.partial = body.missed and entry.has_bytes and entry.record.block_count > 1
            hasty = body.missed and ask.hasty
            ready = body.prepare()
            await (self._services.origin.reach(identity).unless_lost(ready) if hasty else ready)
        except BaseException:
            body.close()
            raise
        return answer._replace(body=body)

    async def block(self, body: Body, number: int) -> OpenBlob | tuple[Fill, GrowingBlob]:
        """See ``BlockSource.block``."""
        entry = body.entry
        leased = False
        try:
            while True:
                if (blob := await self._resident(body, number)) is not None:
                    return blob
                if (growing := self._join(entry, number)) is not None:
                    body.joined = True
                    self.record(entry, number, body.identity)
                    return growing
                if not leased:
                    # Blocks stored by another worker are in the index by now, and from here on no other worker stores this one.
                    await self.lease(entry.key, number, entry.generation)
                    leased = True
                    await self._adopt_row(entry)
                    await self.load(entry, number, body.numbers[-1])
                    continue
                if not self.has_room:
                    raise DiskUnavailable(Reason.OVERLOAD, "too many fills")
                last = self._missing_until(entry, number, body.numbers[-1])
                fill = self.start_fill(entry, (number, last), body.identity, None)
                leased = False
                body.missed = True
                self.record(entry, number, body.identity)
                fill.blocks[number].join()
                return fill, fill.blocks[number]
        finally:
            if leased:
                self.leases.release(entry.key, number, entry.generation)

    async def gathered(self, body: Body, position: int) -> Gathered | None:
        """See ``BlockSource.gathered``."""
        entry, number = body.entry, position // body.entry.record.block_size
        if self._has(entry, number):
            return None
        gathered = await self.runs.read(entry.record.row_id, position, body.stop)
        if gathered is not None:
            self._accesses.record(Access(entry.key, number, gathered.digest, True, self._services.now(), body.identity))
        elif position == body.start:
            body.gathers, body.missed = False, True
        return gathered

    def record(self, entry: ObjectEntry, number: int, identity: OriginIdentity, *, hit: bool = False) -> None:
        """Record a read of a block that changes no blob's rank."""
        self._accesses.record(Access(entry.key, number, b"", hit, self._services.now(), identity))

    async def small_range(self, body: Body) -> bytes | StoredPart | None:
        """See ``BlockSource.small_range``."""
        entry, start, stop, first = body.entry, body.start, body.stop, body.numbers[0]
        block_size = entry.record.block_size
        large = is_stored(stop - start, block_size)
        if large and (stored := await self._recall(body)) is not None:
            return stored
        if not self.small.may_read(stop - start, block_size):
            return None
        if any(self._has(entry, number) for number in body.numbers):
            return None
        at_border = first > 0 and not start % block_size
        data = self.small.kept(entry, start, stop)
        if data is None and not self.small.is_under_way(entry, body.identity, start, stop):
            if not large and (stored := await self._recall(body)) is not None:
                return stored
            if await self._is_elsewhere(entry, first - at_border, body.numbers):
                body.missed = self.lacks(entry, body.numbers)
                return None
            data = self.small.kept(entry, start, stop)
        if data is not None:
            body.missed = False
            self.record(entry, first, body.identity, hit=True)
            return data
        if self.small.is_under_way(entry, body.identity, start, stop):
            body.joined = True
        elif self.small.fills(entry, start, stop, continues=at_border and self._has(entry, first - 1)):
            return None
        else:
            body.alone = True
        if large:
            return await self._large_part(body)
        self.record(entry, first, body.identity)
        return (await self.small.read(entry, body.identity, start, stop)).data

    async def _recall(self, body: Body) -> StoredPart | None:
        """A stored part that contains the whole body: a hit."""
        entry = body.entry
        stored = await self.small.recall(entry, body.start, body.stop)
        if stored is not None:
            SMALL_RANGES.labels("stored").inc()
            number, now = part_number(stored.start), self._services.now()
            self._accesses.record(Access(entry.key, number, stored.digest, True, now, body.identity))
            body.missed = body.alone = False
        return stored

    async def _large_part(self, body: Body) -> bytes | StoredPart:
        """Read a range that will be stored: one worker reads it, and the others wait."""
        entry, start, stop, number = body.entry, body.start, body.stop, part_number(body.start)
        await self.lease(entry.key, number, entry.generation)
        try:
            await self._adopt_row(entry)
            if (stored := await self._recall(body)) is not None:
                return stored
            self.record(entry, body.numbers[0], body.identity)
            part = await self.small.read(entry, body.identity, start, stop)
            return await self.small.recall(entry, start, stop) or part.data
        finally:
            self.leases.release(entry.key, number, entry.generation)

    async def _rest_on_disk(self, body: Body) -> None:
        """Serve a large part that was read with the object's metadata from its blob, so that a slow reader holds no memory."""
        body.stored = await self.small.recall(body.entry, body.start, body.stop)
        if body.stored is not None:
            body.data = None

    async def _is_elsewhere(self, entry: ObjectEntry, known_from: int, numbers: Sequence[int]) -> bool:
        """Whether another worker stored or is filling one of these blocks; loads the stored ones from ``known_from`` on."""
        await self._adopt_row(entry)
        await self.load(entry, known_from, numbers[-1])
        if any(self._has(entry, number) for number in numbers):
            return True
        for number in numbers:
            if not self.leases.acquire(entry.key, number, entry.generation):
                return True
            self.leases.release(entry.key, number, entry.generation)
        return False

    @staticmethod
    def lacks(entry: ObjectEntry, numbers: Collection[int]) -> bool:
        """Whether any of the blocks is not resident, as far as this worker knows; see ``load``."""
        return any(number not in entry.blobs for number in numbers)

    def _has(self, entry: ObjectEntry, number: int) -> bool:
        growing = self._growing.get((entry.key, entry.record.meta.etag, number))
        return number in entry.blobs or (growing is not None and growing[0].comes_to(number))

    def _join(self, entry: ObjectEntry, number: int) -> tuple[Fill, GrowingBlob] | None:
        growing = self._growing.get((entry.key, entry.record.meta.etag, number))
        if growing is None:
            return None
        if not growing[0].serves(number):
            growing[0].cut_short(number)
            return None
        growing[1].join()
        return growing

    async def lease(self, key: ObjectKey, number: int, generation: int) -> None:
        """Wait until no other worker fills this block; the lease is the caller's, to hand to a fill or to release.

        Raises:
            DiskUnavailable: waiting takes longer than storing the block is worth.
        """
        if not await self.leases.take(key, number, generation, LEASE_PATIENCE):
            raise DiskUnavailable(Reason.OVERLOAD, "another worker is filling this block, slowly")

    async def _resident(self, body: Body, number: int) -> OpenBlob | None:
        entry = body.entry
        ref = entry.blobs.get(number)
        if ref is None:
            return None
        blob = self.store.resident(ref)
        if blob is None:
            try:
                blob = await self.store.open_blob(ref)
            except BlobGone:
                entry.blobs.pop(number, None)
                return None
        blob.hold()
        self._accesses.record(Access(entry.key, number, ref.digest, True, self._services.now(), body.identity))
        return blob

    async def load(self, entry: ObjectEntry, first: int, last: int) -> None:
        """Learn from the index which of the blocks ``first`` to ``last`` are resident, unless memory already knows."""
        if entry.record.row_id and self.lacks(entry, range(first, last + 1)):
            for number, ref in (await self.store.blocks(entry.record.row_id, first, last)).items():
                entry.blobs.setdefault(number, ref)

    async def _adopt_row(self, entry: ObjectEntry) -> None:
        """Find the row that another worker wrote for an object of which this worker knew only the metadata."""
        if entry.record.row_id or not self.leases.shared:
            return
        row = await self.store.lookup(entry.key)
        if row is not None:
            await self.adopt_row(entry, row)

    async def adopt_row(self, entry: ObjectEntry, row: ObjectRecord) -> None:
        """Take a row for an object of which this worker knew only the metadata, if it is of that version."""
        if entry.is_of(row.meta) and row.block_size == entry.record.block_size:
            entry.record = replace(entry.record, row_id=row.row_id)
            for identity, granted_at in entry.grants.items():
                await self.store.grant(row.row_id, identity, granted_at, lambda: self._is_current(entry))

    def _is_current(self, entry: ObjectEntry) -> bool:
        return self.store.generations.at(*entry.slots) == entry.generation

    def _missing_until(self, entry: ObjectEntry, number: int, last: int) -> int:
        while number < last:
            if self._has(entry, number + 1):
                break
            number += 1
        return number

    async def direct(self, body: Body, start: int, stop: int) -> StreamedResponse:
        """See ``BlockSource.direct``."""
        return await self.read_range(body.entry, body.identity, start, stop)

    async def read_range(self, entry: ObjectEntry, identity: OriginIdentity, start: int, stop: int) -> StreamedResponse:
        """See ``ranged.read_range``; when it raises, the outdated entry is forgotten.

        That holds at any point of a body: its reader must be cut off, and the next reader gets the right bytes.
        """
        meta = entry.record.meta
        try:
            return await read_range(self._services.origin, identity, entry.key, (meta.etag, meta.size), (start, stop))
        except ReaderRefused as refused:
            if refused.revokes:
                await self._grants.revoke(entry, identity)
            raise
        except ObjectChanged:
            row = await self.store.lookup(entry.key)
            if row is None or entry.is_of(row.meta):  # else it was overwritten, and forgotten, since the body began
                await self._forget([entry.key])
            raise
