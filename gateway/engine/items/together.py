"""Items of a run that nobody waits for: stored as they come, many at a time.

A task, a thread hop and a transaction per item would cost more than the bytes of a small item. A reader who comes meanwhile
waits for the run, as for any fetch; if the run gives the item up, the reader fetches it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.base.tasks import SingleFlight
from gateway.engine.base.services import Services
from gateway.engine.items.demand import ItemDemand, Reserved
from gateway.engine.items.wanted import NOT_TAKEN, Outcome, Purpose, StoredItem, Wanted, lease_of
from gateway.model.access import Access
from gateway.model.errors import DiskUnavailable
from gateway.model.frames import ItemFlag
from gateway.model.objects import BlobRef, Header
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.runs import ByteSpan
from gateway.policies.pools import dataset_pool
from gateway.policies.reads.admission import forbidden
from gateway.store.datasets.content import FETCHING, NOT_KNOWN
from gateway.store.files.blobs import OpenBlob
from gateway.store.index.pool_rows import Entering
from gateway.store.item_batches import NewItem


class ItemsTogether:
    """The items of one run that are stored together.

    Args:
        services: of the worker.
        wanted: the item with which the run began; it is not stored here, because its reader waits.
        spans: of all items of the run.
        flight: of the worker's fetches.
        demand: has the room of datasets that are held in part.

    Attributes:
        ended: set when no more items will come.
    """

    def __init__(
        self,
        services: Services,
        wanted: Wanted,
        spans: Mapping[int, ByteSpan],
        flight: SingleFlight[bytes, Outcome],
        demand: ItemDemand,
    ) -> None:
        self.ended = asyncio.Event()
        self._demand = demand
        self._rooms: dict[int, Reserved] = {}
        self._services = services
        self._wanted = wanted
        self._flight = flight
        self._digests: dict[int, bytes] = {}
        self._waiters: dict[int, list[asyncio.Future[Outcome]]] = {}
        content, registration = wanted.registration.content, wanted.registration
        others = [index for index in spans if index != wanted.index]
        for index, digest in zip(others, content.digests_of(others), strict=True):
            who = (wanted.identity, registration.tenant, registration.name, index, True)
            self._digests[index] = digest
            self._waiters[index] = flight.hold(digest, who)
            if content.states.flags[index] == NOT_KNOWN:
                content.states.flags[index] = FETCHING

    @staticmethod
    def suits(services: Services, wanted: Wanted) -> bool:
        """Whether all items of a run come from the origin and stay here."""
        alone = services.fleet is None or services.fleet.members.alone
        return alone and wanted.mode is not CachingMode.NONE and wanted.source is None and not wanted.refused

    def __contains__(self, index: int) -> bool:
        return index in self._digests

    def awaits(self, index: int) -> bool:
        """Whether an item has yet to come."""
        return index in self._waiters

    async def chosen(self, cached: set[bytes]) -> list[int]:
        """The items to read: not those cached by now, nor those that their dataset does not keep."""
        content, wanted, services = self._wanted.registration.content, self._wanted, self._services
        keeps = services.rules.for_path(wanted.location.path).cache and services.keeps(content)
        chosen = []
        for index, digest in tuple(self._digests.items()):
            wants = keeps and digest not in cached and await services.scores.admits(content, index)
            if wants and await self._has_room(index):
                chosen.append(index)
                continue
            # Looking for room may take long, and the reader of the run waits: after one item without room, stop looking.
            keeps = keeps and not wants
            self.give_up(index)
        return chosen

    async def _has_room(self, index: int) -> bool:
        """Whether an item may be stored; in a dataset that is held in part, its room is reserved."""
        if self._wanted.mode is CachingMode.FULL:
            return True
        ahead = replace(self._wanted, index=index, purpose=Purpose.PREFETCH)
        self._rooms[index] = await self._demand.reserve(ahead, int(ahead.registration.content.lengths[index]))
        return self._rooms[index].held

    async def store(self, batch: Sequence[tuple[int, bytes]], headers: Sequence[Header], flags: ItemFlag) -> list[int]:
        """Store items from an answer with these headers; returns the stored ones."""
        content, services = self._wanted.registration.content, self._services
        refs: list[BlobRef | None] = [None] * len(batch)
        reserved = self._wanted.mode is not CachingMode.FULL
        if forbidden(headers) is None:
            try:
                refs = await services.store.batches.store([self._new(*item) for item in batch], reserved=reserved)
            except DiskUnavailable:
                self.end()  # the rest would fail too
        # Before the next await: stored bytes count by themselves now, and with their reservations the cache would seem fuller.
        for index, _ in batch:
            self._release(index)
        stored = []
        for (index, _), ref in zip(batch, refs, strict=True):
            outcome: Outcome = NOT_TAKEN
            if ref is not None:
                stored.append(index)
                if any(not waiter.done() for waiter in self._waiters.get(index, ())):
                    here = await services.store.items.look(content, index)
                    if here is not None:
                        outcome = StoredItem(OpenBlob(here.fd, ref, here.inode, 0), flags)
            self.give_up(index, outcome)
        return stored

    def digest(self, index: int) -> bytes:
        """The digest of an item."""
        return self._digests[index]

    def give_up(self, index: int, outcome: Outcome = NOT_TAKEN) -> None:
        """Stop waiting for an item; its readers get its outcome. Idempotent."""
        waiters = self._waiters.pop(index, None)
        if waiters is None:
            return
        self._release(index)
        digest, states = self._digests[index], self._wanted.registration.content.states
        self._services.leases.release(lease_of(digest), 0, 0)
        if states.flags[index] == FETCHING:
            states.flags[index] = NOT_KNOWN
        self._flight.settle(digest, waiters, outcome)
        if not self._waiters:
            self.ended.set()

    def _release(self, index: int) -> None:
        """Give back the room that is reserved for an item."""
        if (room := self._rooms.pop(index, None)) is not None:
            room.end()

    def end(self) -> None:
        """Give up the items that have not come."""
        for index in tuple(self._waiters):
            self.give_up(index)

    def _new(self, index: int, data: bytes) -> NewItem:
        wanted, services = self._wanted, self._services
        content, digest = wanted.registration.content, self._digests[index]
        access = Access(content.id, index, digest, False, services.now(), wanted.identity)
        need = services.scores.need(content, index)
        room = self._rooms.get(index)
        for_good = room is not None and not room.instead
        return NewItem(digest, data, Entering(access, dataset_pool(content.id), 0, need), for_good)
