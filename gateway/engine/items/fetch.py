"""Fetching items of datasets from the origin: one read per digest, verified, and kept if the plan allows it.

Rules
-----
1. A fetch belongs to the node: it runs in a separate task, keyed by digest, and further readers of the same bytes join it.
   Between the workers of a node, a lease on the digest does the same.
2. The bytes are hashed as they arrive. Bytes that do not match the digest are discarded and reported as changed; they are never
   stored, so nobody can plant bytes.
3. Items that the cache does not accept (static cache full, disk failing, a rule against it) are still delivered: small ones from
   memory, large ones as they arrive, with a flag that says that the verdict follows the bytes.
4. ``policies/reads/sources.py`` says which source is asked next: a fetch in flight, the item's home (``homes.py``), this node,
   or a node that is known to have the item. A home does not keep callers waiting for a lost origin (gateway/origin/reach.py).
5. Items loaded ahead are counted where they are stored, because a load may be cancelled while its fetches continue.
6. Readers learn the origin's status, but not its address or other internals; the log has them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.base.tasks import SingleFlight, Tasks
from gateway.engine.base.fetching import ByteStream, ItemBytes
from gateway.engine.base.homes import HolderLookup, Neighbours, Node, split_of
from gateway.engine.base.memory import MemoryBudget, MemoryLease
from gateway.engine.base.object_runs import ObjectRuns
from gateway.engine.base.services import Services
from gateway.engine.items.adjacent import AdjacentItems
from gateway.engine.items.demand import ItemDemand, Reserved
from gateway.engine.items.item_origin import ItemOrigin, ItemRefused, changed
from gateway.engine.items.item_run import ItemRun, RunWork, SentItem
from gateway.engine.items.object_blocks import ObjectBlocks, Opened
from gateway.engine.items.peer_items import PeerItems
from gateway.engine.items.together import ItemsTogether
from gateway.engine.items.wanted import (
    NOT_TAKEN,
    FailedItem,
    InMemoryItem,
    ItemStream,
    LargeItem,
    Outcome,
    Purpose,
    StoredItem,
    Wanted,
    lease_of,
    may_be_had_elsewhere,
)
from gateway.model.access import Access
from gateway.model.errors import DiskUnavailable, LarderError, OriginUnavailable
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.objects import BlobRef
from gateway.net.exchange import StreamedResponse
from gateway.policies.fleet.ring import item_key
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import dataset_pool
from gateway.policies.reads.admission import forbidden
from gateway.policies.reads.granularity import part_number
from gateway.policies.reads.sources import InFlight, ReadFacts, ReadKind, Source, next_source
from gateway.store.datasets.content import FETCHING, NOT_KNOWN, RESIDENT, UNKNOWN_LENGTH, VERIFIED, Content
from gateway.store.datasets.locations import Location
from gateway.store.files.blobs import OpenBlob
from gateway.store.files.failures import disk_faults
from gateway.store.files.growing import GrowingBlob, WrongDigest
from gateway.store.index.pool_rows import Entering

LARGEST_IN_MEMORY = 8 * 1024**2
MEMORY = 64 * 1024**2
"""Bytes of uncached items that one worker holds in memory at once."""
AT_ONCE = 128
LEASE_PATIENCE = 30.0
"""Seconds that an item may wait for another worker of the node; after that, this worker reads it too."""

Supply = ItemRun | SentItem
"""The source of bytes other than a read of the origin for one item."""

_UNREACHED = FailedItem(ItemStatus.ORIGIN_ERROR, OriginUnavailable.told)
log = logging.getLogger("larder.items")


class _ReadAlone(LarderError):
    """The item cannot be read with the others of its run."""


class ItemFetches:
    """The fetches of this worker."""

    def __init__(self, services: Services, runs: ObjectRuns | None = None) -> None:
        self._services, self._store = services, services.store
        self._runs = runs or ObjectRuns(services.store, services.block_size, services.now)
        self._tasks = Tasks()
        self._flight: SingleFlight[bytes, Outcome] = SingleFlight(self._tasks)
        self._reading = asyncio.Semaphore(AT_ONCE)
        self._memory = MemoryBudget()
        self._origin = ItemOrigin(services, ObjectBlocks(services.store, services.block_size, services.moves))
        self._fleet = services.fleet
        self.peers = PeerItems(services.fleet) if services.fleet else None
        self.neighbours = Neighbours(services.fleet, services.block_size) if services.fleet else None
        self.demand = ItemDemand(services.store, services.share, self._elsewhere)
        self._adjacent = AdjacentItems(services, self.demand, self._elsewhere)

    def _elsewhere(self, content: Content, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """By item, whether another node is its home."""
        split = split_of(self._fleet.members, content, indices) if self._fleet else None
        return np.zeros(len(indices), dtype=bool) if split is None else split.elsewhere

    @property
    def active(self) -> int:
        """The number of fetches in progress."""
        return len(self._flight)

    async def fetch(self, wanted: Wanted) -> Outcome:
        """Get one item from the sources that ``next_source`` names. Raises nothing but cancellation."""
        digest, who, fleet = wanted.digest, wanted.who, self._fleet
        tried: tuple[Source, ...] = ()
        skipped: list[str] = []
        outcome: Outcome | None = None
        waited = False
        while True:
            owner = self._flight.owner(digest)
            fill = InFlight.NONE if owner is None else InFlight.OWN if owner == who else InFlight.OTHERS
            home, alone = self.home(digest, wanted, skipped), not self._has_substitute(wanted)
            step = next_source(ReadFacts(ReadKind.ITEM, tried, home is not None, alone=alone, fill=fill, waited=waited))
            if step.source is Source.HOME:
                assert home is not None
                assert self.peers is not None
                skipped.append(home.id)
                there = await self.peers.fetch(home, wanted)
                if there is not None and not may_be_had_elsewhere(there):
                    return there
                tried = (*tried, Source.HOME)
                continue
            if step.source is Source.FILL:
                waited = True
                outcome = await self._outcome(self._flight.waiter(digest), wanted, patient=step.patient)
                if isinstance(outcome, StoredItem | InMemoryItem):
                    return replace(outcome, flags=ItemFlag.JOINED)
                if fill is InFlight.OTHERS:
                    continue
            elif step.source is Source.HERE:
                outcome = await self._here(digest, wanted, patient=step.patient)
            assert outcome is not None
            if step.source is Source.NONE or fleet is None or not may_be_had_elsewhere(outcome):
                return outcome
            tried, skipped = (*tried, Source.HERE), [*skipped, fleet.members.me]

    async def _here(self, digest: bytes, wanted: Wanted, *, patient: bool) -> Outcome:
        if self._flight.owner(digest) == wanted.who:
            return await self._outcome(self._flight.waiter(digest), wanted, patient=patient)
        if not patient and self._services.origin.lost(wanted.identity):
            return _UNREACHED
        # This may replace another reader's fetch, whose failure may not apply to this one. The fetch has no name here: the
        # traceback of a cancelled reader would keep it, and the file of its outcome open.
        run = self._begin_run(wanted)
        waiter = self._flight.begin(digest, self._run(digest, wanted, run), wanted.who)
        return await self._outcome(waiter, wanted, patient=patient)

    def _begin_run(self, wanted: Wanted) -> ItemRun | None:
        """Begin to fetch the items that are read from the origin with this one; ``None`` if there are none."""
        spans = self._adjacent.of(wanted, self._flight.__contains__)
        leases, content = self._services.leases, wanted.registration.content
        # Do not wait for items that another worker is reading.
        spans = {index: span for index, span in spans.items() if leases.acquire(lease_of(content.digest(index)), 0, 0)}
        if wanted.index not in spans or len(spans) == 1:
            for index in spans:
                leases.release(lease_of(content.digest(index)), 0, 0)
            return None
        work = RunWork(
            partial(self._origin.open, wanted), self._reading, self._runs, self._tasks, self._store.items.among
        )
        run = ItemRun(spans, [content.digest(index) for index in spans], work)
        if ItemsTogether.suits(self._services, wanted):
            run.together = ItemsTogether(self._services, wanted, spans, self._flight, self.demand)
            self._tasks.start(run.store_together())
            return run
        source = None
        if wanted.source is not None and self.neighbours is not None:
            source = HolderLookup(self.neighbours, wanted.registration, spans)
        location, ahead = wanted.location, replace(wanted, purpose=Purpose.PREFETCH, source=source)
        for index, span in spans.items():
            if index != wanted.index:
                other = replace(ahead, index=index, at=location._replace(offset=span.start, length=span.size))
                # Nobody waits, and a kept result would keep the file open.
                self._flight.begin(other.digest, self._run(other.digest, other, run), other.who).cancel()
        return run

    async def _outcome(self, waiter: asyncio.Future[Outcome], wanted: Wanted, *, patient: bool) -> Outcome:
        """The outcome of a fetch in flight; unless ``patient``, it ends early if the origin is lost."""
        try:
            if patient:
                return await waiter
            return await self._services.origin.reach(wanted.identity).result(waiter)
        except OriginUnavailable:
            return _UNREACHED
        finally:
            waiter.cancel()  # the traceback of a cancelled reader refers to it, and would keep the outcome's file open

    def _has_substitute(self, wanted: Wanted) -> bool:
        """Whether another node can read the item if this one cannot: the requesting node, or one that was not asked yet."""
        return wanted.here or (self._fleet is not None and not self._fleet.members.alone)

    def home(self, digest: bytes, wanted: Wanted, without: Sequence[str] = ()) -> Node | None:
        """The node to ask for an item, skipping ``without``; ``None`` if it is this node."""
        if self._fleet is None or wanted.here or wanted.mode is CachingMode.NONE:
            return None
        return self._fleet.members.home(item_key(digest), without)

    async def give_up(self, digests: Sequence[bytes]) -> None:
        """Drop copies that their home has taken over. Items at home here stay, and so do pinned ones."""
        if self._fleet is None or not digests:
            return
        keys = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
        away = (self._fleet.members.homes(keys)[0] >= 0).tolist()
        copies = [digest for digest, elsewhere in zip(digests, away, strict=True) if elsewhere]
        pools = [await self._store.pools.of(digest) for digest in copies]
        copies = [digest for digest, row in zip(copies, pools, strict=True) if row is not None and not row.pool.minimum]
        self._store.items.gone(copies)
        await self._store.pools.evict(copies)

    async def close(self) -> None:
        """Stop every fetch; incomplete items are discarded."""
        if self.peers is not None:
            await self.peers.close()
        if self.neighbours is not None:
            await self.neighbours.close()
        await self._tasks.stop()
        await self.demand.close()

    # --- one fetch

    async def _run(self, digest: bytes, wanted: Wanted, run: ItemRun | None) -> Outcome:
        """Fetch an item alone, or with the others of a run, which holds the leases of all."""
        states, index = wanted.registration.content.states, wanted.index
        if states.flags[index] == NOT_KNOWN:
            states.flags[index] = FETCHING
        key, leased = lease_of(digest), run is not None
        try:
            if run is None:
                leased = await self._services.leases.take(key, 0, 0, LEASE_PATIENCE)
            if (
                wanted.mode is not CachingMode.NONE
                and not wanted.refused
                and (run is None or await run.may_be_here(digest))
            ):
                here = await self._store.items.look(wanted.registration.content, index)
                if here is not None:
                    # Another worker stored it while this one waited for the lease.
                    ref = BlobRef(digest, here.size, here.crc32)
                    return StoredItem(OpenBlob(here.fd, ref, here.inode, 0), ItemFlag.JOINED)
            outcome = await self._read_with(run, wanted)
            if isinstance(outcome, StoredItem):
                _count_ahead(wanted.purpose, outcome)
            return outcome
        except ItemRefused as failure:
            return FailedItem(failure.status, str(failure))
        except OriginUnavailable as failure:
            return _unreached(wanted, failure)
        except Exception:
            # Log it here: all waiters may have left.
            log.exception("an item could not be read")
            return FailedItem(ItemStatus.ORIGIN_ERROR, "internal error; see the gateway's log")
        finally:
            if run is not None:
                run.leave(index)
            if leased:
                self._services.leases.release(key, 0, 0)
            if states.flags[index] == FETCHING:
                states.flags[index] = NOT_KNOWN

    async def _read_with(self, run: ItemRun | None, wanted: Wanted) -> Outcome:
        reader = self._adjacent.reader(wanted) if run is None else None
        try:
            # Without one of this node's places: another node may be waiting for this one.
            if run is not None:
                return await self._kept_or_not(wanted, run)
            if reader is not None:
                return await self._through(reader, wanted)
        except _ReadAlone:
            if wanted.store_only:
                return NOT_TAKEN
        async with self._reading:
            return await self._kept_or_not(wanted, None)

    async def _through(self, reader: Node, wanted: Wanted) -> Outcome:
        """An item from the node that reads its stretch."""
        assert self.peers is not None
        assert self.neighbours is not None
        sent = SentItem(partial(self.peers.fetch, reader, wanted))
        outcome = await self._kept_or_not(wanted, sent)
        if isinstance(outcome, StoredItem):
            self.neighbours.taken(reader, wanted.digest)
        return outcome

    async def _kept_or_not(self, wanted: Wanted, run: Supply | None) -> Outcome:
        try:
            return await self._read(wanted, run, keep=True)
        except DiskUnavailable:
            # The bytes are delivered without being stored.
            return await self._read(wanted, run, keep=False)

    async def _read(self, wanted: Wanted, run: Supply | None, *, keep: bool) -> Outcome:
        length = int(wanted.registration.content.lengths[wanted.index])
        # Hits are refused: cached items are read from the origin, and stay as they are.
        cached = wanted.refused and wanted.registration.content.states.flags[wanted.index] in (RESIDENT, VERIFIED)
        keep = keep and not cached and self._may_keep(wanted, wanted.location, length)
        keep = keep and await self._services.scores.admits(wanted.registration.content, wanted.index)
        room = Reserved()
        if keep and wanted.mode is CachingMode.PART and length != UNKNOWN_LENGTH:
            room = await self.demand.reserve(wanted, length)
            keep = room.held
        try:
            if wanted.store_only and not keep:
                return NOT_TAKEN
            return await self._read_into(wanted, run, room, keep=keep)
        finally:
            room.end()

    async def _read_into(self, wanted: Wanted, run: Supply | None, room: Reserved, *, keep: bool) -> Outcome:
        location = wanted.location
        if location.length == 0:
            # Stored, so that batches containing it can be entirely resident.
            return await self._take(wanted, ByteStream(None, 0), 0, room, keep=keep)
        node = await wanted.source.of(wanted.index) if wanted.source else None
        while next_source(ReadFacts(ReadKind.ITEM, reads=True, former=node is not None)).source is Source.FORMER:
            assert node is not None
            if run is not None:
                run.leave(wanted.index)
                if wanted.store_only and self.home(wanted.digest, replace(wanted, here=False)) is not None:
                    return NOT_TAKEN  # its home has it
            moved = await self._move(wanted, node, room, keep=keep)
            if moved is not None:
                return moved
            node = None
        opened = await (self._origin.open(wanted) if run is None else run.part(wanted.index))
        if opened is None:
            raise _ReadAlone
        length = opened.length
        try:
            keep = (
                keep and forbidden(opened.headers) is None and (room.held or self._may_keep(wanted, location, length))
            )
            outcome = await self._take(wanted, opened.stream, length, room, keep=keep)
        finally:
            opened.stream.release()
        if isinstance(outcome, StoredItem):
            self._note_stored(wanted, run, opened, outcome.blob)
        if opened.flags and isinstance(outcome, StoredItem | InMemoryItem):
            return replace(outcome, flags=outcome.flags | opened.flags)
        return outcome

    def _note_stored(self, wanted: Wanted, run: Supply | None, opened: Opened, blob: OpenBlob) -> None:
        """Let readers of the object use an item: with others of its run, or alone if it is large."""
        if run is not None:
            run.stored(wanted.index, wanted.digest)
        elif opened.of is not None and (version := opened.of.version) is not None:
            ref = BlobRef(wanted.digest, blob.size, blob.crc32)
            self._tasks.start(self._runs.tie(version, part_number(opened.start), ref))

    async def _move(self, wanted: Wanted, node: Node, room: Reserved, *, keep: bool) -> Outcome | None:
        """Take the item over from a node that has it; ``None`` if that fails."""
        assert self.neighbours is not None
        expected = int(wanted.registration.content.lengths[wanted.index])
        try:
            blob = await self.neighbours.blob(node, wanted.digest)
            if blob is None:
                return None
            answer, length = blob
            try:
                if expected not in (length, UNKNOWN_LENGTH):
                    return None
                keep = keep and (room.held or self._may_keep(wanted, wanted.location, length))
                outcome = await self._take(wanted, ByteStream(answer, length), length, room, keep=keep)
            finally:
                answer.release()
        except DiskUnavailable:
            raise
        except LarderError as failure:
            log.info(
                "node %(node)s failed to deliver an item that it has: %(error)s", {"node": node.id, "error": failure}
            )
            return None
        if not isinstance(outcome, StoredItem | InMemoryItem):
            return None
        metrics.MOVED_ITEMS.inc()
        if isinstance(outcome, StoredItem) and wanted.mode is CachingMode.PART:
            self.neighbours.taken(node, wanted.digest)
        return replace(outcome, flags=ItemFlag.HIT)

    def _may_keep(self, wanted: Wanted, location: Location, length: int) -> bool:
        """Whether the cache may store the item, judging by its ``length``, if known."""
        if wanted.mode is CachingMode.NONE or not self._services.rules.for_path(location.path).cache:
            return False
        if not self._services.keeps(wanted.registration.content):
            return False
        # The demand for the item decides whether a dataset kept in part has room.
        return length == UNKNOWN_LENGTH or length <= self._services.capacity // 2

    async def _begun(self, wanted: Wanted, length: int) -> GrowingBlob | None:
        """Begin a blob; ``None`` if the cache does not accept it."""
        try:
            if wanted.mode is CachingMode.FULL:
                return await self._store.create(length)
            return self._store.begin(length) if self._store.admits(length) else None
        except DiskUnavailable:
            return None

    async def _take(self, wanted: Wanted, stream: ItemBytes, length: int, room: Reserved, *, keep: bool) -> Outcome:
        """Read an item into the cache or into memory, or leave it to be streamed."""
        growing = (room.take() or await self._begun(wanted, length)) if keep else None
        if growing is not None:
            return await self._into_store(
                wanted, stream, growing, for_good=not (room.instead or wanted.mode is CachingMode.FULL)
            )
        if wanted.store_only:
            return NOT_TAKEN
        if length > LARGEST_IN_MEMORY or self._memory.used + length > MEMORY:
            return LargeItem(length)
        share = MemoryLease(self._memory, length)
        data = await stream.read()
        if hashlib.sha256(data).digest() != wanted.digest:
            raise changed()
        return InMemoryItem(data, crc32(data), share)

    async def _into_store(
        self, wanted: Wanted, stream: ItemBytes, growing: GrowingBlob, *, for_good: bool
    ) -> StoredItem:
        try:
            ref = await growing.fill(stream, wanted.digest)
            with disk_faults():
                blob = growing.blob or OpenBlob(os.dup(growing.fd), ref, growing.inode, 0)
        except WrongDigest:
            raise changed() from None
        finally:
            growing.end()
        content = wanted.registration.content
        access = Access(content.id, wanted.index, ref.digest, False, self._services.now(), wanted.identity)
        need = self._services.scores.need(content, wanted.index)
        entering = Entering(access, dataset_pool(content.id), 0 if wanted.store_only else 1, need)
        await self._store.keep_item(ref, entering, for_good=for_good)
        return StoredItem(blob)

    # --- items that only pass through

    async def stream(self, wanted: Wanted) -> ItemStream | FailedItem:
        """Stream a ``LargeItem``. It is requested again: the answer that showed its size is not held open for a slow reader."""
        home = self.home(wanted.digest, wanted)
        tried: tuple[Source, ...] = ()
        while next_source(ReadFacts(ReadKind.LARGE, tried, home is not None)).source is Source.HOME:
            assert home is not None
            there = await self._at_home(home, wanted)
            if there is not None:
                return there
            tried = (Source.HOME,)
        try:
            opened = await self._origin.open(wanted)
        except ItemRefused as failure:
            return FailedItem(failure.status, str(failure))
        except OriginUnavailable as failure:
            return _unreached(wanted, failure)
        return ItemStream(opened.stream, opened.length, wanted.digest)

    async def _at_home(self, home: Node, wanted: Wanted) -> ItemStream | None:
        """The item from its home's cache; if the home's answer breaks off, the rest is read from the origin."""
        assert self.neighbours is not None
        try:
            blob = await self.neighbours.blob(home, wanted.digest)
        except LarderError:
            return None
        if blob is None:
            return None
        answer, length = blob
        if int(wanted.registration.content.lengths[wanted.index]) not in (length, UNKNOWN_LENGTH):
            answer.release()
            return None

        async def rest(offset: int) -> StreamedResponse:
            return await self._origin.rest(wanted, offset)

        return ItemStream(ByteStream(answer, length, rest), length, wanted.digest)


def _count_ahead(purpose: Purpose, stored: StoredItem) -> None:
    size = stored.blob.size
    if purpose is Purpose.IMPORTANCE and not stored.flags:
        metrics.IMPORTANT_ITEMS.inc()
        metrics.IMPORTANT_BYTES.inc(size)


def _unreached(wanted: Wanted, failure: OriginUnavailable) -> FailedItem:
    log.info("%(path)s could not be read: %(error)s", {"path": wanted.location.path, "error": failure})
    return FailedItem(ItemStatus.ORIGIN_ERROR, failure.told)
