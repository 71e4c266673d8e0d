"""Finding an object for a reader: in memory, in the index, or at the origin, with the right to read it.

``Reads.find`` answers before any byte is sent (found.py).

The interleaving to keep in mind: a write may be accepted between any two awaits. Whoever talks to the origin reads the key's
generation first, and what was learned is believed only if the generation is still the same afterwards (``_current``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from gateway.engine.objects.blocks import Blocks
from gateway.engine.objects.entries import EntryCache, Grants, ObjectEntry
from gateway.engine.objects.found import Ask, Forward, Found, Relay
from gateway.engine.objects.handover import Moved
from gateway.engine.objects.ranged import is_exact
from gateway.engine.services import Services
from gateway.metrics import CHECKS
from gateway.model.errors import DiskUnavailable, GatewayRefused, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import ObjectMeta, ObjectRecord
from gateway.model.outcomes import Outcome, Reason
from gateway.origin.headers import entity_headers
from gateway.origin.reach import Reach
from gateway.policies.reads.admission import refusal
from gateway.policies.reads.freshness import Verdict, decide, may_serve_stale
from gateway.policies.reads.rules import Caching
from gateway.store.shared.generations import slots_of
from gateway.tasks import SingleFlight

CHECKSUMS = [("x-amz-checksum-mode", "ENABLED")]
_ATTEMPTS = 3
_LOAD_AT_ONCE = 64
T = TypeVar("T")
Forget = Callable[[Sequence[ObjectKey]], Awaitable[object]]
_Slot = tuple[ObjectKey, int]
"""A key with its generation: a read does not wait for one that began before the last write."""


_Answer = Found | Relay | Forward | None
"""The outcome of a question to the origin; ``None``: look again."""
_AskOrigin = Callable[[Ask, Caching, int], Coroutine[Any, Any, _Answer]]
"""A question about an object under a rule, with the generation of its key."""


class Learned(NamedTuple):
    """The origin's answer on an object, with the key's generation and the time from before it was asked.

    It counts as confirmed and granted from then on, not from when the answer came: a write that this gateway did not hear of may
    have been accepted in between.
    """

    meta: ObjectMeta
    generation: int
    asked_at: float


class Reads:
    """Finds objects for readers. See the module's text for the rules.

    ``forget`` drops keys from this node, after the origin showed that they changed.
    """

    def __init__(self, services: Services, blocks: Blocks, entries: EntryCache, grants: Grants, forget: Forget) -> None:
        self._services = services
        self._forget_here = forget
        self._blocks = blocks
        self._entries = entries
        self._grants = grants
        self._cold: SingleFlight[_Slot, _Answer] = SingleFlight(blocks.tasks)
        self._checks: SingleFlight[tuple[ObjectKey, str], ObjectMeta | Forward | None] = SingleFlight()

    def _current(self, entry: ObjectEntry) -> bool:
        return self._services.store.generations.at(*entry.slots) == entry.generation

    def _verdict(self, entry: ObjectEntry, ask: Ask, rule: Caching) -> Verdict:
        return decide(
            self._grants.standing(entry, ask.identity.name, rule), rule, self._services.now(), forced=ask.forced
        )

    async def find(self, ask: Ask) -> Found | Relay | Forward:
        """Find an object for a reader.

        Raises:
            OriginUnavailable: the origin is needed and cannot be reached.
        """
        rules = self._services.rules
        rule = rules.only or rules.for_path(ask.key.path)
        if not rule.cache:
            return Forward(Reason.RULE)
        reason: Reason | None = None
        for _attempt in range(_ATTEMPTS):
            entry = await self.known(ask.key)
            # A ranged answer tells no checksums, and the answer to a range needs none.
            complete = entry is not None and (ask.span is not None or entry.record.meta.checksums is not None)
            if entry is None or not (complete or entry.has_bytes or ask.metadata_first):
                found = await self._from_origin(ask, rule)
                if found is not None:
                    return found if not isinstance(found, Found) or reason is None else found._replace(reason=reason)
                continue
            if complete and self._verdict(entry, ask, rule) is Verdict.SERVE:
                return await self._granted(entry, ask, Outcome.HIT, reason)
            checked = await self._check(entry, ask, rule)
            if checked is Reason.CHANGED:
                reason = Reason.CHANGED
            elif isinstance(checked, (Found, Relay, Forward)):
                return checked
        return Forward(Reason.WRITE_RACE, miss=True)

    async def known(self, key: ObjectKey) -> ObjectEntry | None:
        """The entry of an object, from memory or from the index.

        Between asking the index and its answer somebody else may have put an entry there, of which fills already know; so
        memory is asked again afterwards, and what it has counts.
        """
        if key in self._entries and (entry := self._in_memory(key)) is not None:
            return entry
        store = self._services.store
        generation = store.generations.of(key)
        known = await store.known(key, _LOAD_AT_ONCE)
        if key in self._entries and (entry := self._in_memory(key)) is not None:
            return entry
        if known is None:
            return None
        entry = ObjectEntry(key, known.record, generation, slots_of(key), known.blobs, known.grants)
        self._entries.put(entry)
        return entry

    async def resident(self, ask: Ask) -> tuple[ObjectEntry, float] | None:
        """An object that can be given to this reader at once and whole; and how many seconds ago that was confirmed."""
        rule = self._services.rules.for_path(ask.key.path)
        entry = await self.known(ask.key) if rule.cache else None
        if (
            entry is None
            or entry.record.meta.checksums is None
            or entry.record.block_count > _LOAD_AT_ONCE
            or self._verdict(entry, ask, rule) is not Verdict.SERVE
        ):
            return None
        await self._blocks.load(entry, 0, entry.record.block_count - 1)
        standing = self._grants.standing(entry, ask.identity.name, rule)
        if len(entry.blobs) < entry.record.block_count or standing.granted_at is None or not self._current(entry):
            return None
        return entry, max(0.0, self._services.now() - min(standing.confirmed_at, standing.granted_at))

    def _in_memory(self, key: ObjectKey) -> ObjectEntry | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if not self._current(entry):
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry

    async def _granted(
        self, entry: ObjectEntry, ask: Ask, outcome: Outcome, reason: Reason | None
    ) -> Found | Relay | Forward:
        if ask.head and not entry.has_bytes:
            return await self._head(ask, self._services.rules.for_path(ask.key.path))
        return Found(entry, outcome, reason)

    # -- asking the origin about an object that is in the cache

    async def _check(
        self, entry: ObjectEntry, ask: Ask, rule: Caching
    ) -> Found | Forward | Relay | Literal[Reason.CHANGED] | None:
        """Renew freshness and grant with one HEAD, shared by all who need the same. ``None`` means: look again.

        A reader who insists on a check shares none that began before: it may be older than a write of which only he knows.
        """
        stale = entry.has_bytes and may_serve_stale(
            self._grants.standing(entry, ask.identity.name, rule), rule, self._services.now(), forced=ask.forced
        )
        try:
            result = await self._checked(ask, lambda: self._ask_origin(entry, ask.identity, rule), stale=stale)
        except OriginUnavailable as failure:
            CHECKS.labels("failed").inc()
            if isinstance(failure, GatewayRefused) and failure.revokes:
                await self._grants.revoke(entry, ask.identity)
                raise
            if stale:
                return await self._granted(entry, ask, Outcome.STALE, Reason.ORIGIN_DOWN)
            raise
        if isinstance(result, Forward):
            return result
        if result is None:
            return None
        if entry.is_of(result):
            return await self._granted(entry, ask, Outcome.HIT, Reason.REVALIDATED)
        return Reason.CHANGED

    async def _checked(
        self, ask: Ask, check: Callable[[], Coroutine[Any, Any, ObjectMeta | Forward | None]], *, stale: bool
    ) -> ObjectMeta | Forward | None:
        """Check an object with the origin. The check belongs to no reader, and renews the object whenever its answer comes.

        A reader who may have stale bytes waits for ``check_timeout`` of the origin, counted from the start of the check, and not
        at all while the origin is silent.
        """
        slot, reach = (ask.key, ask.identity.name), self._services.origin.reach(ask.identity)
        if ask.forced:
            self._checks.forget(slot)
        if not (stale or ask.hasty):
            return await self._checks.result(slot, check)
        if reach.silent or not stale:
            reach.require()
        running, within = self._checks.join(slot, check), None
        if stale:
            within = max(0.0, self._checks.began(slot) + reach.patience - asyncio.get_running_loop().time())
        return await reach.result(running, within)

    async def _ask_origin(
        self, entry: ObjectEntry, identity: OriginIdentity, rule: Caching
    ) -> ObjectMeta | Forward | None:
        services, key = self._services, entry.key
        generation, asked_at = services.store.generations.of(key), services.now()
        response = await services.origin.send(identity, "HEAD", key.raw_path, "", CHECKSUMS)
        response.release()
        if response.status in (401, 403):
            CHECKS.labels("refused").inc()
            await self._grants.revoke(entry, identity)
            return Forward(Reason.REFUSED, miss=True)
        if response.status in (404, 410):
            CHECKS.labels("gone").inc()
            await self._forget_here([key])
            return Forward(Reason.NOT_FOUND, miss=True)
        if response.status >= 500:
            raise OriginUnavailable(f"the origin answered {response.status}")
        if response.status != 200:
            return Forward(Reason.ORIGIN_ERROR, miss=True)
        meta = entity_headers(response.headers)
        if services.store.generations.at(*entry.slots) != generation:
            return None
        if not entry.is_of(meta):
            CHECKS.labels("changed").inc()
            await self._forget_here([key])
            return meta
        if (forbidden := refusal(meta, rule, services.capacity)) is not None:
            CHECKS.labels("forbidden").inc()
            await self._forget_here([key])
            return Forward(forbidden)
        CHECKS.labels("confirmed").inc()
        self._renew(entry, identity, rule, Learned(meta, generation, asked_at))
        if entry.record.row_id:
            await services.store.confirm(key, meta, asked_at)
            await services.store.grant(
                entry.record.row_id,
                identity.name,
                asked_at,
                lambda: services.store.generations.at(*entry.slots) == generation,
            )
        return meta

    def _renew(self, entry: ObjectEntry, identity: OriginIdentity, rule: Caching, learned: Learned) -> None:
        meta = learned.meta
        if meta.checksums is None and entry.is_of(meta):
            meta = replace(meta, checksums=entry.record.meta.checksums)
        entry.record = replace(entry.record, meta=meta, confirmed_at=learned.asked_at)
        self._grants.note(entry, identity, rule, learned.generation, learned.asked_at)

    # -- asking the origin about an object that is not in the cache

    async def _from_origin(self, ask: Ask, rule: Caching) -> _Answer:
        store = self._services.store
        if not store.usable:
            return Forward(Reason.DISK, miss=True)
        if not self._blocks.has_room:
            return Forward(Reason.OVERLOAD, miss=True)
        reach = self._services.origin.reach(ask.identity) if ask.hasty else None
        if reach is not None:
            reach.require()
        # A read that begins after a write must get the new object.
        generation = store.generations.of(ask.key)
        slot = ask.key, generation
        if (pending := self._cold.joined(slot)) is not None:
            return await self._join(ask, pending, reach)
        if not ask.metadata_first:
            ask_origin: _AskOrigin = self._open_leased if self._services.leases.shared else self._open_cold
        elif ask.span is not None and self._blocks.small.may_read(ask.span.longest, self._services.block_size):
            ask_origin = self._open_range
        else:
            return await self._head(ask, rule)
        # A task that is no reader's: it carries out the fill that comes of the question, too.
        question = self._cold.begin(slot, ask_origin(ask, rule, generation))
        answer = question.waiters[0]
        try:
            return await (answer if reach is None else reach.result(answer))
        except (asyncio.CancelledError, OriginUnavailable):
            question.task.add_done_callback(_abandon)
            raise

    async def _join(self, ask: Ask, pending: asyncio.Future[_Answer], reach: Reach | None) -> _Answer:
        """The outcome of another reader's question, if it answers this one too; ``None``: look again."""
        if ask.forced:
            return Forward(Reason.JOINED, miss=True)
        await (asyncio.wait([pending]) if reach is None else reach.wait(pending))
        joined = Forward(Reason.JOINED) if pending.exception() else pending.result()
        if joined is None:
            return None
        if not isinstance(joined, Found):
            return Forward(Reason.JOINED, miss=True)
        known = joined.part is None and ask.identity.name in joined.entry.grants
        if ask.head or not known or not self._current(joined.entry):
            return None
        reason = joined.reason if joined.reason is Reason.MOVED else Reason.JOINED
        return joined._replace(reason=reason, fill=None if ask.metadata_first else joined.fill)

    async def _head(self, ask: Ask, rule: Caching) -> Found | Relay | Forward:
        """Learn an object's metadata without its bytes."""
        services = self._services
        generation, asked_at = services.store.generations.of(ask.key), services.now()
        asking = services.origin.send(ask.identity, "HEAD", ask.key.raw_path, "", CHECKSUMS)
        response = await (services.origin.reach(ask.identity).unless_lost(asking) if ask.hasty else asking)
        response.release()
        if response.status != 200:
            return Forward(_reason_of(response.status), miss=True)
        meta = entity_headers(response.headers)
        reason = refusal(meta, rule, services.capacity)
        if reason is not None:
            return Forward(reason)
        entry = self._keep_metadata(ask, rule, Learned(meta, generation, asked_at))
        return Found(entry, Outcome.MISS, Reason.COLD)

    async def _open_range(self, ask: Ask, rule: Caching, generation: int) -> Found | Relay | Forward:
        """Learn an object's metadata from the answer that has the small range its reader wants."""
        services, asked_at, span = self._services, self._services.now(), ask.span
        assert span is not None
        response = await services.origin.send(ask.identity, "GET", ask.key.raw_path, "", [("Range", str(span))])
        meta = entity_headers(response.headers)
        found = span.resolve(meta.size)
        if response.status != 206 or found is None or not is_exact(response, (meta.etag, meta.size), found):
            response.abort()
            # The store may not know ranges, or tell of an object of no bytes in its own way.
            odd = response.status in (200, 206, 416)
            return await self._head(ask, rule) if odd else Forward(_reason_of(response.status), miss=True)
        if (reason := refusal(meta, rule, services.capacity)) is not None:
            response.abort()
            return Forward(reason)
        entry, blocks = self._keep_metadata(ask, rule, Learned(meta, generation, asked_at)), self._blocks
        if not blocks.small.fills(entry, *found, continues=False):
            blocks.record(entry, found[0] // entry.record.block_size, ask.identity)
            return Found(
                entry, Outcome.MISS, Reason.RANGE, await blocks.small.take(entry, ask.identity, found, response)
            )
        if found == (0, meta.size) and blocks.has_room and services.leases.acquire(ask.key, 0, generation):
            blocks.start_fill(entry, (0, 0), ask.identity, response)
        else:
            with suppress(OriginUnavailable):
                await response.read(meta.size)
        return Found(entry, Outcome.MISS, Reason.COLD)

    async def _open_leased(self, ask: Ask, rule: Caching, generation: int) -> Found | Relay | Forward | None:
        """``_open_cold`` beside other workers; ``None`` when one of them turned out to have stored the object."""
        leases = self._services.leases
        try:
            await self._blocks.lease(ask.key, 0, generation)
        except DiskUnavailable:
            return Forward(Reason.OVERLOAD, miss=True)
        started = False
        try:
            if await self._services.store.lookup(ask.key) is not None:
                # An entry of this worker's without bytes, made by a small range, would hide the row.
                self._entries.drop(ask.key)
                return None
            opened = await self._open_cold(ask, rule, generation)
            started = isinstance(opened, Found)
            return opened
        finally:
            if not started:
                leases.release(ask.key, 0, generation)

    async def _open_cold(self, ask: Ask, rule: Caching, generation: int) -> Found | Relay:
        """Ask for the whole object, and carry out the fill that comes of it; this worker has the lease of its first block.

        The readers are answered when the fill has its first bytes: they would wait for these next.
        """
        services, moved, learned = self._services, None, None
        if services.moved is not None and not ask.forced and ask.key not in services.store.generations.forgotten:
            moved = await services.moved(ask.key, ask.identity)
        if moved is not None and (learned := self._taken_over(rule, generation, moved)) is not None:
            response, outcome, reason = moved.body, Outcome.HIT, Reason.MOVED
        else:
            asked_at, outcome, reason = services.now(), Outcome.MISS, Reason.COLD
            response = await services.origin.send(ask.identity, "GET", ask.key.raw_path, "", CHECKSUMS)
            if response.status != 200:
                return Relay(response, _reason_of(response.status))
            meta = entity_headers(response.headers)
            forbidden = refusal(meta, rule, services.capacity)
            if forbidden is not None:
                return Relay(response, forbidden)
            if not self._blocks.has_room:
                # There was some before the origin was asked, and many may have been asking.
                return Relay(response, Reason.OVERLOAD)
            learned = Learned(meta, generation, asked_at)
        entry = self._keep_metadata(ask, rule, learned)
        fill = self._blocks.begin_fill(entry, (0, entry.record.block_count - 1), ask.identity, response)
        found = Found(entry, outcome, reason, fill=fill)
        fill.blocks[0].on_progress = partial(self._answer_cold, (ask.key, generation), found)
        await fill.run()
        return found

    def _answer_cold(self, slot: _Slot, found: Found, whole: bytes | memoryview | None) -> None:
        """Give the readers of a fill its first bytes, or ``whole``: a small object's bytes, for as long as they need them."""
        self._cold.answer(slot, found if whole is None else found._replace(whole=whole))

    def _taken_over(self, rule: Caching, generation: int, moved: Moved) -> Learned | None:
        """What the former home says of an object that it gives; ``None`` when that cannot be kept."""
        meta = entity_headers(moved.headers)
        if refusal(meta, rule, self._services.capacity) is not None or not self._blocks.has_room:
            moved.body.abort()
            return None
        return Learned(meta, generation, self._services.now() - moved.age)

    def _keep_metadata(self, ask: Ask, rule: Caching, learned: Learned) -> ObjectEntry:
        """The object's entry in memory: the one that is there, of which fills already know, or a new one."""
        meta = learned.meta
        entry = self._in_memory(ask.key) if ask.key in self._entries else None
        if entry is not None and entry.generation == learned.generation and entry.is_of(meta):
            self._renew(entry, ask.identity, rule, learned)
        else:
            record = ObjectRecord(0, meta, self._services.block_size, learned.asked_at)
            entry = ObjectEntry(ask.key, record, learned.generation, slots_of(ask.key))
            self._grants.note(entry, ask.identity, rule, learned.generation, learned.asked_at)
        self._entries.put(entry)
        return entry


def _abandon(question: asyncio.Task[_Answer]) -> None:
    """The reader left before the origin answered: an answer that is not being stored has no reader any more."""
    if not question.cancelled() and question.exception() is None and isinstance(answer := question.result(), Relay):
        answer.response.abort()


def _reason_of(status: int) -> Reason:
    if status in (401, 403):
        return Reason.REFUSED
    return Reason.NOT_FOUND if status in (404, 410) else Reason.ORIGIN_ERROR
