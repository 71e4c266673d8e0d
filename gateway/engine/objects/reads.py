"""Finds an object for a reader in memory, in the index or at the origin, and checks the right to read it.

``Reads.open`` answers before any byte is sent (found.py).

Keep in mind that a write may be accepted between any two awaits. A task that asks the origin reads the key's generation first,
and trusts the answer only if the generation is still the same afterwards (``ColdReads.current``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from gateway.base.metrics import CHECKS
from gateway.base.tasks import SingleFlight
from gateway.engine.base.object_runs import ReadVersion
from gateway.engine.base.services import Services
from gateway.engine.objects.blocks import Blocks
from gateway.engine.objects.cold import CHECKSUMS, Answer, ColdReads, Learned, of_head, one_byte
from gateway.engine.objects.entries import EntryCache, Grants, ObjectEntry
from gateway.engine.objects.found import NO_CACHE, Ask, Forward, Found, Relay
from gateway.engine.objects.ranged import ObjectChanged
from gateway.model.errors import DiskUnavailable, GatewayRefused, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import Header, ObjectMeta, ObjectRecord
from gateway.model.outcomes import Outcome, Reason
from gateway.net.exchange import StreamedResponse
from gateway.origin.headers import entity_headers
from gateway.origin.refusals import UNCLEAR
from gateway.policies.reads.admission import refusal
from gateway.policies.reads.freshness import Verdict, decide, may_serve_stale
from gateway.policies.reads.owner import obeyed
from gateway.policies.reads.rules import Caching
from gateway.policies.reads.sources import ReadFacts, ReadKind, Source, next_source
from gateway.store.files.failures import DiskFault
from gateway.store.index.objects import CachedObject
from gateway.store.shared.generations import Mark, slots_of

_ATTEMPTS = 3
_LOAD_AT_ONCE = 64
T = TypeVar("T")
Forget = Callable[[Sequence[ObjectKey]], Awaitable[Sequence[Mark] | None]]


class Reads:
    """Finds objects for readers. See the module docstring for the rules.

    ``forget`` drops keys from this node, after the origin showed that they changed.
    """

    def __init__(self, services: Services, blocks: Blocks, entries: EntryCache, grants: Grants, forget: Forget) -> None:
        self._services = services
        self._forget_here = forget
        self._blocks = blocks
        self._entries = entries
        self._grants = grants
        self.cold = ColdReads(services, blocks, entries, grants)
        """Its requests to the origin, which other readers may join."""
        self._checks: SingleFlight[tuple[ObjectKey, str, bool], ObjectMeta | Relay | Forward | None] = SingleFlight()

    def _verdict(self, entry: ObjectEntry, ask: Ask, rule: Caching) -> Verdict:
        meta = entry.record.meta
        standing = self._grants.standing(entry, ask.identity.name, rule)
        forced = ask.forced or ask.doubts(meta)
        return decide(standing, obeyed(rule, meta.headers), self._services.now(), forced=forced)

    def begin(self, ask: Ask, then: Callable[[asyncio.Future[Answer] | None], object]) -> bool:
        """Begin a plain read of a whole object that this worker's memory lacks, without a task of its reader.

        Args:
            ask: the read.
            then: called with the origin's answer, which is there, for ``open``; with ``None`` if ``open`` must decide.

        Returns:
            Whether it has begun; ``then`` is called after that.
        """
        services, key = self._services, ask.key
        rule = services.rules.only or services.rules.for_path(key.path)
        if not rule.cache or key in self._entries:
            return False
        generation = services.store.generations.settled(key)
        if generation is None or (key, generation) in self.cold.asked:
            return False
        try:
            looking = services.store.look(key, _LOAD_AT_ONCE)
        except DiskFault:
            return False
        looking.add_done_callback(partial(self._looked, ask, rule, generation, then))
        return True

    def _looked(
        self,
        ask: Ask,
        rule: Caching,
        generation: int,
        then: Callable[[asyncio.Future[Answer] | None], object],
        looking: asyncio.Future[CachedObject | None],
    ) -> None:
        """Ask the origin, now that the index has answered, unless it knows the object."""
        key = ask.key
        failed = looking.cancelled() or looking.exception() is not None
        if not failed and (known := looking.result()) is not None:
            self._adopt(key, generation, known)
        elsewhere = failed or key in self._entries or (key, generation) in self.cold.asked
        if elsewhere or not self._services.store.usable or not self._blocks.has_room:
            then(None)
        else:
            self.cold.begin(ask, rule, generation).add_done_callback(then)

    async def open(self, ask: Ask, begun: asyncio.Future[Answer] | None = None) -> Found | Relay | Forward:
        """Find an object for a reader, and open the bytes of the answer.

        Args:
            ask: the read.
            begun: the origin's answer, if ``begin`` has asked for it.

        Raises:
            OriginUnavailable: the origin is needed and cannot be reached.
        """
        rules = self._services.rules
        rule = rules.only or rules.for_path(ask.key.path)
        if not rule.cache and begun is None:
            return Forward(Reason.RULE)
        reason, asked_at, asking = None, math.inf, ask
        for _attempt in range(_ATTEMPTS):
            entry = await self.known(ask.key) if begun is None else None
            # A ranged answer has no checksums, and the answer to a range needs none.
            complete = entry is not None and (
                asking.wants_part(entry.record.meta) or entry.record.meta.checksums is not None
            )
            answer: Answer
            if entry is not None and complete and self._serves(entry, asking, rule, asked_at):
                answer = Found(entry, Outcome.HIT if reason is None else Outcome.MISS, reason)
            elif begun is not None:
                answer, begun = await begun, None
            elif entry is None or not (entry.has_bytes or self._confirms(entry, asking, complete=complete)):
                if not self._services.store.usable:
                    return Forward(Reason.DISK, miss=True)
                if not self._blocks.has_room:
                    return Forward(Reason.OVERLOAD, miss=True)
                answer = await self.cold.find(asking, rule)
                if isinstance(answer, Found) and reason is not None:
                    answer = answer._replace(reason=reason)
            else:
                asked_at = self._services.now()
                checked = await self._check(entry, asking, rule)
                if checked is Reason.CHANGED:
                    reason, asking = Reason.CHANGED, ask.settled()
                    continue
                answer = checked
            if not isinstance(answer, Found):
                if answer is None:
                    continue
                return answer
            bounds = ask.bounds(answer.entry.record.meta)
            try:
                return answer if bounds is None else await self._blocks.open(ask, answer, *bounds)
            except ObjectChanged:
                continue
            except DiskUnavailable as refusal:
                return Forward(Reason(refusal.reason), miss=True)
        return Forward(Reason.WRITE_RACE, miss=True)

    def _confirms(self, entry: ObjectEntry, ask: Ask, *, complete: bool) -> bool:
        """Whether a check suffices for a reader of an entry without bytes; otherwise the bytes are requested at once."""
        return ask.head or ((complete or ask.metadata_first) and self._blocks.is_filling(entry))

    def _serves(self, entry: ObjectEntry, ask: Ask, rule: Caching, asked_at: float) -> bool:
        """Whether an entry may be served. An entry that this read had confirmed, after ``asked_at``, need not be fresh."""
        if self._verdict(entry, ask, rule) is Verdict.SERVE:
            return True
        standing = self._grants.standing(entry, ask.identity.name, rule)
        return standing.granted_at is not None and min(standing.granted_at, standing.confirmed_at) >= asked_at

    async def known(self, key: ObjectKey) -> ObjectEntry | None:
        """The entry of an object, from memory or from the index.

        While the index answers, another task may have added an entry that fills already use. So memory is checked again
        afterwards, and its entry wins.
        """
        if key in self._entries and (entry := self.cold.in_memory(key)) is not None:
            return entry
        store = self._services.store
        generation = store.generations.of(key)
        return self._adopt(key, generation, await store.known(key, _LOAD_AT_ONCE))

    def _adopt(self, key: ObjectKey, generation: int, known: CachedObject | None) -> ObjectEntry | None:
        """The entry of an object that memory lacked when the index was asked, at ``generation``."""
        if key in self._entries and (entry := self.cold.in_memory(key)) is not None:
            return entry
        if known is None:
            return None
        entry = ObjectEntry(key, known.record, generation, slots_of(key), known.blobs, known.grants)
        self._entries.put(entry)
        return entry

    async def adopt(self, version: ReadVersion, row: ObjectRecord) -> None:
        """Note that items of an object were tied to its row, so that a reader whose entry has no bytes finds them."""
        entry = self.cold.in_memory(version.key) if version.key in self._entries else None
        if entry is not None and not entry.record.row_id:
            await self._blocks.adopt_row(entry, row)

    async def resident(self, ask: Ask) -> tuple[Found, float] | None:
        """An object, or a range of it, that this reader may have without waiting; and the seconds since the origin confirmed it.

        Raises:
            LarderError: the object became unavailable meanwhile.
        """
        rule = self._services.rules.for_path(ask.key.path)
        entry = await self.known(ask.key) if rule.cache else None
        bounds = None if entry is None else ask.bounds(entry.record.meta)
        if (
            entry is None
            or bounds is None
            or (ask.span is None and entry.record.meta.checksums is None)
            or self._verdict(entry, ask, rule) is not Verdict.SERVE
        ):
            return None
        size = entry.record.block_size
        numbers = range(bounds[0] // size, max(0, bounds[1] - 1) // size + 1)
        if len(numbers) > _LOAD_AT_ONCE:
            return None
        await self._blocks.load(entry, numbers[0], numbers[-1])
        standing = self._grants.standing(entry, ask.identity.name, rule)
        if self._blocks.lacks(entry, numbers) or standing.granted_at is None or not self.cold.current(entry):
            return None
        age = max(0.0, self._services.now() - min(standing.confirmed_at, standing.granted_at))
        return await self._blocks.open(ask, Found(entry, Outcome.HIT), *bounds), age

    # -- asking the origin about an object that is in the cache

    async def _check(
        self, entry: ObjectEntry, ask: Ask, rule: Caching
    ) -> Found | Forward | Relay | Literal[Reason.CHANGED] | None:
        """Renew freshness and grant with one request, shared by all readers that need it. ``None`` means: look again.

        A reader that forces a check, or names a version other than the cached one, does not join a check already under way: that
        check may predate a write that this reader knows of.
        """
        meta = entry.record.meta
        alone, slot = ask.forced or ask.doubts(meta), (ask.key, ask.identity.name, ask.head)
        standing, heeded = self._grants.standing(entry, ask.identity.name, rule), obeyed(rule, meta.headers)
        stale = entry.has_bytes and may_serve_stale(standing, heeded, self._services.now(), forced=ask.forced)
        if alone:
            self._checks.forget(slot)
        extra, granted = [NO_CACHE] if alone else [], standing.granted_at is not None
        try:
            check = partial(self._ask_origin, entry, ask, rule, extra, granted=granted)
            result = await self._checked(ask, check, stale=stale)
        except OriginUnavailable as failure:
            CHECKS.labels("failed").inc()
            if isinstance(failure, GatewayRefused) and failure.revokes:
                await self._grants.revoke(entry, ask.identity)
                raise
            facts = ReadFacts(ReadKind.OBJECT, (Source.ORIGIN,), stale=stale, reads=True)
            if next_source(facts).source is Source.STALE:
                return Found(entry, Outcome.STALE, Reason.ORIGIN_DOWN)
            raise
        if isinstance(result, Relay):
            return of_head(result, ask)
        if isinstance(result, Forward) or result is None:
            return result
        if entry.is_of(result):
            return Found(entry, Outcome.HIT, Reason.REVALIDATED)
        return Reason.CHANGED

    async def _checked(
        self, ask: Ask, check: Callable[[], Coroutine[Any, Any, ObjectMeta | Relay | Forward | None]], *, stale: bool
    ) -> ObjectMeta | Relay | Forward | None:
        """Check an object with the origin. The check belongs to no reader, and renews the object whenever its answer arrives.

        A reader who may have stale bytes waits for ``check_timeout`` of the origin, counted from the start of the check, and not
        at all while the origin is silent.
        """
        slot, reach = (ask.key, ask.identity.name, ask.head), self._services.origin.reach(ask.identity)
        if not (stale or ask.hasty):
            return await self._checks.result(slot, check)
        if reach.silent or not stale:
            reach.require()
        running, within = self._checks.join(slot, check), None
        if stale:
            within = max(0.0, self._checks.began(slot) + reach.patience - asyncio.get_running_loop().time())
        return await reach.result(running, within)

    async def _ask_origin(
        self, entry: ObjectEntry, ask: Ask, rule: Caching, extra: Sequence[Header], *, granted: bool
    ) -> ObjectMeta | Relay | Forward | None:
        services, key, identity = self._services, entry.key, ask.identity
        generation, asked_at = services.store.generations.of(key), services.now()
        response, document = await self._answer(entry, ask, extra, granted=granted)
        if response.status in (401, 403):
            CHECKS.labels("refused").inc()
            if granted or document is not None:
                await self._grants.revoke(entry, identity)
            return Relay(response, Reason.REFUSED, document=document)
        if response.status in (404, 410):
            CHECKS.labels("gone").inc()
            await self._forget_here([key])
            return Relay(response, Reason.NOT_FOUND, document=document)
        if response.status >= 500:
            raise OriginUnavailable(f"the origin answered {response.status}")
        if response.status not in (200, 206, 304):
            return Relay(response, Reason.ORIGIN_ERROR, document=document)
        meta = entry.record.meta if response.status == 304 else entity_headers(response.headers)
        if services.store.generations.at(*entry.slots) != generation:
            return None
        if not entry.is_of(meta):
            CHECKS.labels("changed").inc()
            await self._replace(entry, identity, rule, Learned(meta, generation, asked_at))
            return meta
        known = entry.record.meta
        checksums = known.checksums if meta.checksums is None else meta.checksums
        meta = replace(meta, etag=known.etag, size=known.size, checksums=checksums)  # as the index writes them
        if (forbidden := refusal(meta, rule, services.capacity)) is not None:
            CHECKS.labels("forbidden").inc()
            await self._forget_here([key])
            return Relay(response, forbidden)
        CHECKS.labels("confirmed").inc()
        self.cold.renew(entry, identity, rule, Learned(meta, generation, asked_at))
        if entry.record.row_id:
            await services.store.confirm(key, meta, asked_at)
            await services.store.grant(
                entry.record.row_id,
                identity.name,
                asked_at,
                lambda: services.store.generations.at(*entry.slots) == generation,
            )
        return meta

    async def _answer(
        self, entry: ObjectEntry, ask: Ask, extra: Sequence[Header], *, granted: bool
    ) -> tuple[StreamedResponse, bytes | None]:
        """The origin's answer to a check, and its document if it has one.

        A HEAD describes an object, but does not say why access is denied. Most checks confirm a grant, so they are HEADs. A
        reader of bytes without a grant sends a GET on condition that the object has changed: any answer is conclusive.
        """
        origin, meta = self._services.origin, entry.record.meta
        ask_by_get = partial(one_byte, origin, ask, [("If-None-Match", meta.etag), *extra])
        whole = meta.checksums is not None or ask.wants_part(meta)  # only a HEAD has the checksums
        if whole and not (granted or ask.head):
            response, document = await ask_by_get()
            other = response.status == 304 and response.header("Last-Modified") not in (None, meta.last_modified)
            if not other and response.status != 416:
                return response, document
        response = await origin.send(
            ask.identity, "HEAD", entry.key.raw_path, "", [*CHECKSUMS, *extra], cold=not granted, explained=ask.head
        )
        response.release()
        return await ask_by_get() if response.status in UNCLEAR and not ask.head else (response, None)

    async def _replace(self, entry: ObjectEntry, identity: OriginIdentity, rule: Caching, learned: Learned) -> None:
        """Forget an object that has changed, and keep the metadata of the new one.

        ``learned.generation`` is still the key's. The new metadata is stored under the generation that forgetting leaves, unless
        a write came in between.
        """
        key, generations = entry.key, self._services.store.generations
        marks = await self._forget_here([key])
        if (
            marks is not None
            and generations.unread(marks)
            and refusal(learned.meta, rule, self._services.capacity) is None
        ):
            self.cold.keep(Ask(key, identity), rule, learned._replace(generation=generations.of(key)))
