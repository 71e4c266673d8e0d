"""Where the items of a batch are: cached or being read, here or at their homes; and which of them the batch takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.homes import AtHome, Elsewhere, HolderLookup, Split, split_of
from gateway.engine.base.services import Services
from gateway.engine.items.answers import BatchAsk
from gateway.engine.items.demand import Consumer
from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.wanted import Soon, Wanted
from gateway.policies.items import demand
from gateway.policies.items.batch import Choice, Positions, choose
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.content import FETCHING

_NO_KEYS = np.empty(0, dtype=np.uint64)


class Whereabouts:
    """What one worker knows of the items of batches, and asks other nodes."""

    def __init__(self, services: Services, fetches: ItemFetches) -> None:
        self._services = services
        self._items = services.store.items
        self._fetches = fetches
        self._demand = fetches.demand
        self._random = np.random.default_rng()

    def consumer(self, ask: BatchAsk) -> Consumer | None:
        """The job that a batch is for, if demand governs the dataset."""
        return self._demand.consumer(ask.registration.content, ask.caching, ask.reader)

    def resident(self, ask: BatchAsk) -> NDArray[np.bool_]:
        """By position, whether the item is known to be in the cache, and may be taken from there."""
        if ask.caching is CachingMode.NONE or ask.refused:
            return np.zeros(len(ask.indices), dtype=bool)
        return ask.registration.content.states.believed(ask.indices)

    def fetching(self, ask: BatchAsk) -> NDArray[np.bool_]:
        """By position, whether a worker of this node is reading the item from the origin."""
        fetching: NDArray[np.bool_] = ask.registration.content.states.flags[ask.indices] == FETCHING
        return fetching

    async def prepare(self, ask: BatchAsk) -> None:
        """Follow the dataset's states, and wait for the survey of a small one."""
        self._items.adopt(ask.registration.content)
        await self._items.ready(ask.registration.content)

    async def lookup(self, ask: BatchAsk) -> NDArray[np.bool_]:
        """Like ``resident``, for the whole fleet; first waits for the survey of a small dataset."""
        await self.prepare(ask)
        resident = self.resident(ask)
        there = await self.there(ask, self.split(ask), resident)
        return resident | there.resident

    async def blobs(self, digests: Sequence[bytes]) -> NDArray[np.bool_]:
        """By position, whether this node or a digest's home has its blob, whichever datasets contain it."""
        here = await self._items.among(digests)
        absent = [digest for digest in digests if digest not in here]
        neighbours, fleet = self._fetches.neighbours, self._services.fleet
        if absent and neighbours is not None and fleet is not None and not fleet.members.alone:
            here |= await neighbours.have(absent)
        return np.array([digest in here for digest in digests], dtype=bool)

    async def at_home(self, ask: BatchAsk) -> AtHome:
        """What this node knows of items, without asking others; for another node."""
        await self.prepare(ask)
        resident, fetching, consumer = self.resident(ask), self.fetching(ask), self.consumer(ask)
        if consumer is None:
            return AtHome(resident, fetching)
        content = ask.registration.content
        need, room = self._demand.need(content, ask.indices, consumer), self._demand.room(content, consumer.table)
        return AtHome(resident, fetching, need, room)

    async def offers(self, ask: BatchAsk, most: int) -> NDArray[np.uint32]:
        """At most ``most`` residents that other jobs have consumed and the reader has not, here and at the other homes."""
        await self.prepare(ask)
        consumer, fleet, peers = self.consumer(ask), self._services.fleet, self._fetches.peers
        if consumer is None or ask.refused:
            return np.empty(0, dtype=np.uint32)
        offered = [self._demand.offers(ask.registration.content, consumer, most)]
        if fleet is not None and peers is not None and not ask.here:
            wanted = wanted_of(ask, 0)
            others = [node for node in fleet.members.homes(_NO_KEYS)[1] if node.id != fleet.members.me]
            offered += await asyncio.gather(*(peers.offers(node, wanted, most) for node in others))
        return demand.merged(offered)[:most]

    def split(self, ask: BatchAsk) -> Split | None:
        """The homes of the items; ``None`` if no other node needs to be asked."""
        fleet = self._services.fleet
        if fleet is None or ask.here or ask.caching is CachingMode.NONE:
            return None
        return split_of(fleet.members, ask.registration.content, ask.indices)

    async def there(self, ask: BatchAsk, split: Split | None, resident: NDArray[np.bool_]) -> Elsewhere:
        """What homes know of the items that are not cached here."""
        peers = self._fetches.peers
        if split is None or peers is None or ask.refused:
            return Elsewhere(np.zeros(len(ask.indices), dtype=bool))
        there = Elsewhere(split.elsewhere & ~resident)
        parts = [(node, at[~resident[at]]) for node, at in split.parts()]
        questions = [(node, at) for node, at in parts if len(at)]
        answers = await asyncio.gather(
            *(peers.resident(node, wanted_of(ask, 0), ask.indices[at]) for node, at in questions)
        )
        for (_, at), answer in zip(questions, answers, strict=True):
            there.add(at, answer)
        return there

    def choice(self, ask: BatchAsk, resident: NDArray[np.bool_], elsewhere: Elsewhere) -> Choice:
        """Which candidates of a substitutable batch to deliver."""
        content, consumer = ask.registration.content, self.consumer(ask)
        fetching = elsewhere.fetching | self.fetching(ask)
        if ask.offers is None or consumer is None:
            order: Positions = self._random.permutation(len(ask.indices))
            return choose(order, resident | elsewhere.resident, fetching)
        cached = resident | elsewhere.resident
        outlook = None
        if not demand.enough(ask.take, cached):
            need = self._demand.need(content, ask.indices, consumer)
            outlook = elsewhere.outlook(need, self._demand.room(content, consumer.table))
        return demand.choose(ask.take, ask.offers, cached, fetching, outlook)


def wanted_of(ask: BatchAsk, index: int, source: HolderLookup | None = None, soon: Soon | None = None) -> Wanted:
    """One item of a batch, for its reader."""
    return Wanted(
        ask.registration,
        index,
        ask.identity,
        ask.caching,
        here=ask.here,
        source=source,
        reader=ask.reader,
        refused=ask.refused,
        sweeps=ask.sweeps,
        soon=soon,
    )
