"""Asking the origin about an object of which the cache knows nothing.

One request is enough, whatever the reader wants: its answer has the object's metadata and the bytes that the reader wants, and
goes to the reader unchanged if nothing of it is kept. For the whole object it is a GET with the reader's conditions; for a small
range, a GET of that range; for another range, a GET of its blocks; for a HEAD, a HEAD. Only a long suffix takes two requests,
because its blocks depend on the size. A GET of one byte learns the size; the answer to a HEAD could not say why the object is
unavailable.

Readers of one object share a request. The outcome of conditions and ranges is for the first reader alone; other readers send
their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from gateway.base.tasks import SingleFlight
from gateway.engine.base.handover import Moved
from gateway.engine.base.services import Services
from gateway.engine.objects.blocks import Blocks
from gateway.engine.objects.entries import EntryCache, Grants, ObjectEntry
from gateway.engine.objects.found import NO_CACHE, Ask, Forward, Found, Relay
from gateway.engine.objects.ranged import is_exact
from gateway.model.errors import DiskUnavailable, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import Header, ObjectMeta, ObjectRecord
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.ranges import ByteRange
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import OriginClient
from gateway.origin.headers import entity_headers
from gateway.origin.reach import Reach
from gateway.policies.reads.admission import refusal
from gateway.policies.reads.granularity import is_most, is_stored, part_number
from gateway.policies.reads.rules import Caching
from gateway.policies.reads.sources import ReadFacts, ReadKind, Source, next_source
from gateway.store.shared.generations import slots_of

CHECKSUMS = [("x-amz-checksum-mode", "ENABLED")]
_OF_THE_BYTE = (200, 206, 304, 416)
"""Statuses of answers to ``one_byte`` that concern the byte or its condition."""
_LONGEST_DOCUMENT = 1024**2
_OF_ONE_READER = (304, 412, 416)
"""Statuses of answers to a reader's own conditions or range."""
_Slot = tuple[ObjectKey, int]
"""A key with its generation, so that a read does not wait for a read that began before the last write."""
Answer = Found | Relay | Forward | None
"""The outcome of a request to the origin; ``None`` means: look again."""
_AskOrigin = Callable[[Ask, Caching, int], Coroutine[Any, Any, Answer]]
"""A request about an object under a rule, with the generation of its key."""


class Learned(NamedTuple):
    """The origin's answer on an object, with the key's generation and the time, both from before the request.

    It counts as confirmed and granted from then on, not from when the answer came: a write unknown to this gateway may have been
    accepted in between.
    """

    meta: ObjectMeta
    generation: int
    asked_at: float


class ColdReads:
    """Asks the origin about objects, and makes entries from its answers; see ``Reads`` for the rules."""

    def __init__(self, services: Services, blocks: Blocks, entries: EntryCache, grants: Grants) -> None:
        self._services = services
        self._blocks = blocks
        self._entries = entries
        self._grants = grants
        self._cold: SingleFlight[_Slot, Answer] = SingleFlight(blocks.tasks, _abort)
        self.asked: Container[_Slot] = self._cold.calls
        """The keys, with their generations, about which the origin is being asked."""
        self._heads: SingleFlight[tuple[_Slot, str, bool], Found | Relay] = SingleFlight()

    def current(self, entry: ObjectEntry) -> bool:
        """Whether the object has not been written since the entry was read."""
        return self._services.store.generations.at(*entry.slots) == entry.generation

    def in_memory(self, key: ObjectKey) -> ObjectEntry | None:
        """The entry of a key in this worker's memory."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if not self.current(entry):
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry

    def renew(self, entry: ObjectEntry, identity: OriginIdentity, rule: Caching, learned: Learned) -> None:
        """Note that the origin confirmed an entry, and granted it to an identity."""
        meta = learned.meta
        if meta.checksums is None and entry.is_of(meta):
            meta = replace(meta, checksums=entry.record.meta.checksums)
        entry.record = replace(entry.record, meta=meta, confirmed_at=learned.asked_at)
        self._grants.grant(entry, identity, rule, learned.generation, learned.asked_at)

    def find(self, ask: Ask, rule: Caching) -> Awaitable[Answer]:
        """Find an object at the origin, for one or more readers; ``None`` means: look again.

        Raises: see ``Reads.open``.
        """
        reach = self._services.origin.reach(ask.identity) if ask.hasty else None
        if reach is not None:
            reach.require()
        # A read that begins after a write must get the new object.
        generation = self._services.store.generations.of(ask.key)
        slot = ask.key, generation
        pending = self._cold.joined(slot)
        if pending is not None:  # hot: ``next_source`` decides the same for a read in progress here
            return self._join(ask, pending, reach)
        span = ask.span
        if span is None and not ask.metadata_first:
            answer = self.begin(ask, rule, generation)
        else:
            ask_origin = None if span is None else self._question(span, leased=self._services.leases.shared)
            if ask_origin is None:
                return self._head(ask, rule, generation, by_get=span is not None)
            answer = self._cold.begin(slot, ask_origin(ask, rule, generation))
        return answer if reach is None else reach.result(answer)

    def begin(self, ask: Ask, rule: Caching, generation: int) -> asyncio.Future[Answer]:
        """Ask for a whole object about which the origin is not being asked.

        The task belongs to no reader: it also runs the fill that the request starts.
        """
        leased = self._services.leases.shared
        ask_origin = partial(self._open_leased, self._open_cold, 0) if leased else self._open_cold
        return self._cold.begin((ask.key, generation), ask_origin(ask, rule, generation))

    def hold(self, slot: tuple[ObjectKey, int], work: Coroutine[Any, Any, None]) -> None:
        """Have readers of a key of this generation wait for ``work``, and look again afterwards."""
        self._cold.begin(slot, work)

    def _question(self, span: ByteRange, *, leased: bool) -> _AskOrigin | None:
        """The GET whose answer also serves the reader of a range; ``None`` if the size must be known first."""
        block_size = self._services.block_size
        first, longest = span.first, span.longest
        if self._blocks.small.may_read(longest, block_size):
            if first is None:
                return self._open_range
            if not is_most(first, first + int(longest), block_size):
                parts = leased and is_stored(int(longest), block_size)
                return partial(self._open_leased, self._open_range, part_number(first)) if parts else self._open_range
        # The blocks of a suffix are unknown before the size is.
        if span.first is None:
            return None
        return partial(self._open_leased, self._open_blocks, span.first // block_size) if leased else self._open_blocks

    async def _join(self, ask: Ask, pending: asyncio.Future[Answer], reach: Reach | None) -> Answer:
        """The outcome of another reader's request, if it also answers this reader; ``None`` means: look again."""
        if ask.forced:
            return Forward(Reason.JOINED, miss=True)
        await (asyncio.wait([pending]) if reach is None else reach.wait(pending))
        joined = Forward(Reason.JOINED) if pending.exception() else pending.result()
        if joined is None:
            return None
        if isinstance(joined, Relay) and joined.response.status in _OF_ONE_READER:
            return None
        if not isinstance(joined, Found):
            return Forward(Reason.JOINED, miss=True)
        known = joined.part is None and ask.identity.name in joined.entry.grants
        if ask.head or not known or not self.current(joined.entry) or ask.doubts(joined.entry.record.meta):
            return None
        reason = joined.reason if joined.reason is Reason.MOVED else Reason.JOINED
        return joined._replace(reason=reason, fill=None if ask.metadata_first else joined.fill)

    async def _head(self, ask: Ask, rule: Caching, generation: int, *, by_get: bool = False) -> Found | Relay | Forward:
        """Learn an object's metadata without its bytes, sharing the request with others that need the same."""
        slot = (ask.key, generation), ask.identity.name, by_get
        if ask.forced:
            self._heads.forget(slot)
        joined = slot in self._heads
        answer = self._heads.join(slot, lambda: self._learn(ask, rule, generation, by_get=by_get))
        learned = await (self._services.origin.reach(ask.identity).result(answer) if ask.hasty else answer)
        if isinstance(learned, Relay):
            return of_head(learned, ask)
        if joined and ask.doubts(learned.entry.record.meta):
            return await self._head(ask._replace(forced=True), rule, generation, by_get=by_get)
        return learned

    async def _learn(self, ask: Ask, rule: Caching, generation: int, *, by_get: bool) -> Found | Relay:
        services, asked_at = self._services, self._services.now()
        extra = [NO_CACHE] if ask.forced else []
        if by_get:
            response, document = await one_byte(services.origin, ask, extra)
        if not by_get or response.status == 416:  # an empty object has no first byte
            response = await services.origin.send(
                ask.identity, "HEAD", ask.key.raw_path, "", [*CHECKSUMS, *extra], cold=True
            )
            response.release()
            document = None
        if response.status not in (200, 206):
            return Relay(response, _reason_of(response.status), document=document)
        meta = entity_headers(response.headers)
        reason = refusal(meta, rule, services.capacity)
        if reason is not None:
            return Relay(response, reason)
        entry = self.keep(ask, rule, Learned(meta, generation, asked_at))
        return Found(entry, Outcome.MISS, Reason.COLD)

    async def _open_range(self, ask: Ask, rule: Caching, generation: int) -> Answer:
        """Learn an object's metadata from the same answer as the small range that its reader wants."""
        services, asked_at, span = self._services, self._services.now(), ask.span
        assert span is not None
        headers = [("Range", str(span)), *ask.lines]
        response = await services.origin.send(ask.identity, "GET", ask.key.raw_path, "", headers)
        meta = entity_headers(response.headers)
        if response.status == 200:
            return await self._open_whole(ask, rule, Learned(meta, generation, asked_at), response, leased=False)
        if response.status == 416 and span.first is None and span.last:
            response.release()  # some stores refuse a suffix that is longer than the object: the metadata decides
            return await self._head(ask, rule, generation)
        if response.status != 206:
            return Relay(response, _reason_of(response.status))
        bounds = span.resolve(meta.size)
        if bounds is None or not is_exact(response, (meta.etag, meta.size), bounds):
            response.abort()
            return await self._head(ask, rule, generation)
        if (reason := refusal(meta, rule, services.capacity)) is not None:
            return Relay(response, reason)
        entry, blocks = self.keep(ask, rule, Learned(meta, generation, asked_at)), self._blocks
        fills = blocks.small.fills(entry, *bounds, continues=False)
        # The bytes are already on their way: a large part is worth storing, unless all of the object will be.
        large = is_stored(bounds[1] - bounds[0], entry.record.block_size) and bounds != (0, meta.size)
        if large or not fills:
            blocks.record(entry, bounds[0] // entry.record.block_size, ask.identity)
            return Found(
                entry, Outcome.MISS, Reason.RANGE, await blocks.small.fetch(entry, ask.identity, bounds, response)
            )
        if bounds == (0, meta.size) and blocks.has_room and services.leases.acquire(ask.key, 0, generation):
            blocks.start_fill(entry, (0, entry.record.block_count - 1), ask.identity, response)
        else:
            with suppress(OriginUnavailable):
                await response.read(meta.size)
        return Found(entry, Outcome.MISS, Reason.COLD)

    async def _open_leased(
        self, ask_origin: _AskOrigin, number: int, ask: Ask, rule: Caching, generation: int
    ) -> Answer:
        """A request that begins a fill at block ``number``; ``None`` if another worker turns out to have stored the object."""
        leases = self._services.leases
        try:
            await self._blocks.lease(ask.key, number, generation)
        except DiskUnavailable:
            return Forward(Reason.OVERLOAD, miss=True)
        started = False
        try:
            if await self._services.store.lookup(ask.key) is not None:
                # An entry without bytes that a small range left in this worker would hide the row.
                self._entries.pop(ask.key, None)
                return None
            opened = await ask_origin(ask, rule, generation)
            started = isinstance(opened, Found) and opened.fill is not None and number == min(opened.fill.blocks)
            return opened
        finally:
            if not started:
                leases.release(ask.key, number, generation)

    async def _open_cold(self, ask: Ask, rule: Caching, generation: int) -> Answer:
        """Ask for the whole object, and run the fill of its answer; this worker has the lease of its first block.

        The readers are answered when the fill has its first bytes, for which they would wait next.
        """
        services, moves = self._services, self._services.moves
        former = [] if moves is None else moves.former(ask.key)
        doubted = bool(former) and (ask.forced or ask.key in services.store.generations.forgotten)
        while (
            former
            and next_source(ReadFacts(ReadKind.OBJECT, reads=True, former=True, doubted=doubted)).source
            is Source.FORMER
        ):
            assert moves is not None
            moved = await moves.ask(former.pop(0), ask.key, ask.identity)
            if moved is None:
                continue
            taken = self._taken_over(ask, rule, generation, moved)
            if taken is not None:
                return await self._fill(ask, rule, taken, moved.body, Reason.MOVED)
            former.clear()  # the others have no better copy
        asked_at = services.now()
        response = await services.origin.send(ask.identity, "GET", ask.key.raw_path, "", [*CHECKSUMS, *ask.lines])
        if response.status != 200:
            return Relay(response, _reason_of(response.status))
        learned = Learned(entity_headers(response.headers), generation, asked_at)
        if (forbidden := self._unkept(learned.meta, rule)) is not None:
            return Relay(response, forbidden)
        return await self._fill(ask, rule, learned, response)

    async def _open_blocks(self, ask: Ask, rule: Caching, generation: int) -> Answer:
        """Ask for the blocks of a range, and run the fill; this worker has the lease of the first block.

        The answer has the object's metadata. The reader is answered when the fill has its first bytes.
        """
        asked_at, span, size = self._services.now(), ask.span, self._services.block_size
        assert span is not None
        assert span.first is not None
        last = None if span.last is None else (span.last // size + 1) * size - 1
        wider = ByteRange(span.first // size * size, last)
        headers = [("Range", str(wider)), *ask.lines]
        response = await self._services.origin.send(ask.identity, "GET", ask.key.raw_path, "", headers)
        meta = entity_headers(response.headers)
        if response.status == 200:
            learned = Learned(meta, generation, asked_at)
            return await self._open_whole(ask, rule, learned, response, leased=wider.first == 0)
        if response.status == 416 and wider != span:
            response.abort()  # its document names the wider range
            return Forward(Reason.COLD, miss=True)
        if response.status != 206:
            return Relay(response, _reason_of(response.status))
        given, wanted = wider.resolve(meta.size), span.resolve(meta.size)
        if given is None or not is_exact(response, (meta.etag, meta.size), given):
            response.abort()
            return await self._head(ask, rule, generation)
        if (forbidden := self._unkept(meta, rule)) is not None:
            if wanted is None:
                response.abort()
                return Forward(forbidden)
            return Relay(response, forbidden, None if given == wanted else (*wanted, given[0], meta.size))
        return await self._fill(ask, rule, Learned(meta, generation, asked_at), response, span=given)

    async def _open_whole(
        self, ask: Ask, rule: Caching, learned: Learned, response: StreamedResponse, *, leased: bool
    ) -> Answer:
        """Fill from a whole object that the origin sent for a range, because it knows no ranges or ``If-Range`` failed.

        ``leased``: the caller has the lease of the first block.
        """
        meta = learned.meta
        if not meta.size:
            return Relay(response, Reason.RANGE_FORM)
        if (forbidden := self._unkept(meta, rule)) is not None:
            return Relay(response, forbidden)
        if not leased and not self._services.leases.acquire(ask.key, 0, learned.generation):
            return Relay(response, Reason.OVERLOAD)
        return await self._fill(ask, rule, learned._replace(meta=replace(meta, checksums=None)), response)

    def _unkept(self, meta: ObjectMeta, rule: Caching) -> Reason | None:
        """Why an answer is not kept: other fills may have taken the places that were free before the request."""
        overload = None if self._blocks.has_room else Reason.OVERLOAD
        return refusal(meta, rule, self._services.capacity) or overload

    def _fill(
        self,
        ask: Ask,
        rule: Caching,
        learned: Learned,
        response: StreamedResponse,
        reason: Reason = Reason.COLD,
        *,
        span: tuple[int, int] | None = None,
    ) -> Coroutine[Any, Any, Found]:
        """Begin the fill of an answer with the whole object, or with the bytes ``span`` of it, which are whole blocks. The result
        runs it.

        Its first bytes wake the readers. Their answer holds the bytes of an object's only block for as long as they need them.
        """
        entry = self.keep(ask, rule, learned)
        size = entry.record.block_size
        first, last = (0, entry.record.block_count - 1) if span is None else (span[0] // size, (span[1] - 1) // size)
        fill = self._blocks.begin_fill(entry, (first, last), ask.identity, response)
        outcome = Outcome.HIT if reason is Reason.MOVED else Outcome.MISS
        readers = self._cold.hand_over((ask.key, learned.generation))
        fill.blocks[first].waiters += zip(readers, repeat(Found(entry, outcome, reason, fill=fill, whole=fill.whole)))
        return fill.run(Found(entry, outcome, reason, fill=fill))

    def _taken_over(self, ask: Ask, rule: Caching, generation: int, moved: Moved) -> Learned | None:
        """The former home's statement about an object handed over; ``None`` if that cannot be kept, or the reader doubts it."""
        meta = entity_headers(moved.headers)
        if self._unkept(meta, rule) is not None or ask.doubts(meta):
            moved.body.abort()
            return None
        return Learned(meta, generation, self._services.now() - moved.age)

    def keep(self, ask: Ask, rule: Caching, learned: Learned) -> ObjectEntry:
        """The object's entry in memory: the existing one, which fills already use, or a new one."""
        meta = learned.meta
        entry = self.in_memory(ask.key) if ask.key in self._entries else None
        if entry is not None and entry.generation == learned.generation and entry.is_of(meta):
            self.renew(entry, ask.identity, rule, learned)
        else:
            record = ObjectRecord(0, meta, self._services.block_size, learned.asked_at)
            entry = ObjectEntry(ask.key, record, learned.generation, slots_of(ask.key))
            self._grants.grant(entry, ask.identity, rule, learned.generation, learned.asked_at)
        self._entries.put(entry)
        return entry


def _abort(answer: Answer) -> None:
    """Abort an answer if the reader left before the origin answered, and it is not being stored."""
    if isinstance(answer, Relay):
        answer.response.abort()


def of_head(answer: Relay, ask: Ask) -> Relay | Forward:
    """An answer without the object's bytes. Readers that need only its header or its document share it."""
    if ask.head or answer.document is not None:
        return answer
    return Forward(answer.reason, miss=answer.response.status != 200)


async def one_byte(origin: OriginClient, ask: Ask, headers: Sequence[Header]) -> tuple[StreamedResponse, bytes | None]:
    """The answer to a GET of an object's first byte, with its document if it is an error, which then answers the reader too.

    Raises: see ``OriginClient.send``.
    """
    response = await origin.send(ask.identity, "GET", ask.key.raw_path, "", [("Range", "bytes=0-0"), *headers])
    if response.status in _OF_THE_BYTE:
        response.abort()
        return response, None
    return response, await response.read(_LONGEST_DOCUMENT)


def _reason_of(status: int) -> Reason:
    if status in (401, 403):
        return Reason.REFUSED
    if status in _OF_ONE_READER:
        return Reason.COLD
    return Reason.NOT_FOUND if status in (404, 410) else Reason.ORIGIN_ERROR
