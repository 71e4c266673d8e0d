"""The fleet's registrations: a dataset registered at one gateway can be used at every other.

A registration is on the disk of the node that accepted it. A table in Redis lists who has registered what
(fleet/jobs/datasets.py). A node that is asked for a dataset it lacks looks it up there, and copies it from a node that has it
(gateway/store/datasets/parcel.py). Nothing is copied before it is requested.

A name that was replaced or removed elsewhere is dropped here, and copied again on request. That is decided by comparing the disk
with the table, each time the table has changed:

- a registration is dropped if the table has another version, or has lost it within this epoch;
- entries that were lost with Redis are written again, unless another node was quicker;
- registrations that could not be announced while Redis was unreachable are announced, and replace the table's.

The disk is read before the table, and a name is dropped only if it has not changed since, so a concurrent registration is safe.
While Redis is lost, registrations on disk stay in use, and only removals are refused, because other nodes would not learn of
them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cachetools import TLRUCache

from gateway.base.tasks import SingleFlight, Tasks, repeat
from gateway.engine.base.homes import PREFIX, Node, PeerNodes
from gateway.fleet.jobs.datasets import DatasetTable, ListedRegistration, Name, State
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.datasets import ApiError, is_dataset_id, is_name
from gateway.model.errors import LarderError
from gateway.model.keys import OriginIdentity
from gateway.model.peer.principal import principal_header
from gateway.store.datasets import parcel
from gateway.store.datasets.announced import (
    AnnouncedRegistration,
    Mark,
    inventory,
    known_of,
    read_marks,
    records_listings,
    write_marks,
)
from gateway.store.datasets.opened import Registration
from gateway.store.datasets.registry import Registry
from gateway.store.files.failures import disk_faults

log = logging.getLogger("larder.datasets")

EVERY = 0.5
"""Seconds between two checks of the table."""
_AGAIN = 20
"""Checks after which disk and table are compared even if no change of either is known."""
_PATIENCE = 20.0
_BLIND = 1.0
_REST = 10.0
_LONGEST_REST = 60.0
"""Maximum seconds of the pause after a failed copy, which is ``_REST`` times as long as the attempt. Batches keep requesting
their dataset, and without a pause would have a large one sent again and again to a node that cannot store it.
"""
_NOBODY = OriginIdentity("", "")


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared state of a fleet: its nodes, and the table."""

    fleet: PeerNodes
    table: DatasetTable


class _Rest(NamedTuple):
    """A failed copy, which is not retried before a given time."""

    listed: ListedRegistration
    failure: LarderError | None
    until: float


class _Forgotten(parcel.Unfit):
    """The node no longer has the registration."""


class Registrations:
    """The registrations of the fleet, as seen by one worker.

    Args:
        registry: of the node.
        shared: the fleet's; ``None`` for a node outside a fleet, which has only its own registrations.
        clock: seconds, monotonic.
    """

    def __init__(
        self, registry: Registry, shared: Shared | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = registry
        self._clock = clock
        self._shared = shared
        self._state = State()
        self._listed: dict[Name, ListedRegistration] = {}
        self._settled = State()
        self._looks = 0
        self._looking = asyncio.Lock()
        self._blind_until = float("-inf")
        self._copies: SingleFlight[Name, LarderError | None] = SingleFlight()
        self._unlisted: set[Name] = set()
        self._bringing = Tasks()
        self._resting: TLRUCache[Name, _Rest] = TLRUCache(math.inf, lambda _, rest, __: rest.until, clock)

    # --- looking

    async def find(self, tenant: str, name_or_id: str, *, now: bool = False) -> Registration | None:
        """A tenant's dataset by its name or id, wherever it was registered; ``None`` if it is unknown.

        Raises:
            ApiError: SlowDown while it is being copied from another node; ServiceUnavailable if the fleet has it, but this node
                could not copy it.
        """
        found = await self.registry.get(tenant, name_or_id, now=now)
        if found is not None or self._shared is None or not (is_dataset_id(name_or_id) or is_name(name_or_id)):
            return found
        await self._look(self._shared.table)
        failure = None
        for name, listed in self._entries(tenant, name_or_id):
            failure = await self._copy(self._shared, name, listed) or failure
            if (found := await self.registry.get(tenant, name_or_id, now=True)) is not None:
                return found
        if failure is not None:
            raise ApiError(
                "ServiceUnavailable",
                f"The dataset is registered, but could not be copied from another gateway ({failure}); try again.",
                headers={"Retry-After": "5"},
            )
        return None

    def _entries(self, tenant: str, name_or_id: str) -> list[tuple[Name, ListedRegistration]]:
        """The entries of the table for a name or an id."""
        if is_dataset_id(name_or_id):
            entries = self._listed.items()
            return [each for each in entries if each[0][0] == tenant and each[1].tag.startswith(name_or_id)]
        listed = self._listed.get((tenant, name_or_id))
        return [] if listed is None else [((tenant, name_or_id), listed)]

    async def bring(self, tenant: str) -> None:
        """Copy every available dataset of a tenant to this node, in order to list them."""
        if self._shared is None:
            return
        await self._look(self._shared.table)
        for name, listed in [each for each in self._listed.items() if each[0][0] == tenant]:
            if await self.registry.get(*name) is None:
                await self._copy(self._shared, name, listed)

    def bring_listed(self, tenant: str) -> None:
        """Begin to copy a tenant's datasets whose listings are recorded to this node, because their folders may be listed."""
        for name in [name for name in self._unlisted if name[0] == tenant]:
            self._unlisted.discard(name)
            if self._shared is not None:
                self._bringing.start(self._bring_listed(self._shared, name))

    async def _bring_listed(self, shared: Shared, name: Name) -> None:
        with suppress(LarderError):  # it is tried again after the next comparison with the table
            await self._look(shared.table)
            listed = self._listed.get(name)
            if listed is not None and await self.registry.get(*name, now=True) is None:
                await self._copy(shared, name, listed)

    # --- changing

    async def registered(self) -> None:
        """Announce a registration made here; later if Redis is lost. Never raises."""
        if self._shared is None:
            return
        self._settled = State()
        try:
            await self.settle(self._shared)
        except (*DOWN, LarderError) as failure:
            log.warning(
                "a registration could not be announced to the fleet yet: %(error)s", {"error": type(failure).__name__}
            )

    async def remove(self, tenant: str, name: str) -> bool:
        """Forget a name in the whole fleet; returns whether it existed.

        Raises:
            ApiError: ServiceUnavailable, Redis cannot be reached.
            DiskFault: the disk cannot be written.
        """
        listed = False
        if self._shared is not None:
            try:
                listed = await self._shared.table.remove((tenant, name))
            except DOWN as failure:
                raise ApiError(
                    "ServiceUnavailable",
                    "Redis cannot be reached, so the other gateways cannot be informed; try again.",
                    headers={"Retry-After": "5"},
                ) from failure
        return await self.registry.remove(tenant, name) or listed

    # --- following the table

    async def run(self) -> None:
        """Follow the table until cancelled."""
        if (shared := self._shared) is not None:
            await repeat("following the table of datasets", lambda: self._follow(shared), EVERY, (*DOWN, LarderError))

    async def close(self) -> None:
        """Stop copying."""
        await self._bringing.stop()
        await self._copies.stop()

    async def _follow(self, shared: Shared) -> None:
        for name in list(self.registry.expired):
            if (listed := self._listed.get(name)) is not None and listed.node == shared.fleet.members.me:
                await shared.table.remove(name)
            self.registry.expired.discard(name)
        self._looks += 1
        if self._looks % _AGAIN == 0 or await shared.table.look() != self._settled:
            await self.settle(shared)

    async def _look(self, table: DatasetTable) -> None:
        """Read the current table; keep the previous one while Redis is lost."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            # Otherwise every request for an unknown dataset would wait for the time-out of a hung Redis.
            if loop.time() < self._blind_until:
                return
            try:
                if await table.look() != self._state:
                    self._state, self._listed = await table.all()
            except DOWN as failure:
                self._blind_until = loop.time() + _BLIND
                log.debug("the table of datasets cannot be read: %(error)r", {"error": failure})

    async def settle(self, shared: Shared) -> None:
        """Reconcile this node's disk with the fleet's table.

        Raises:
            RedisError, OSError: Redis cannot be reached; nothing was dropped.
            DiskFault: the disk cannot be written.
        """
        folders = self.registry.folders
        mine = await self.registry.work.chore(partial(inventory, folders))
        marks = await self.registry.work.chore(partial(read_marks, folders))
        state, self._listed = await shared.table.all()
        self._state = state
        self._unlisted = {
            name for name, listed in self._listed.items() if records_listings(listed.stamp) and name not in mine
        }
        news: dict[Name, Mark] = {}
        for name, known in mine.items():
            epoch = await self._agree(shared, name, known, marks.get(name))
            if epoch and marks.get(name) != Mark(epoch, known.stamp):
                news[name] = Mark(epoch, known.stamp)
        if news:
            with disk_faults():
                await self.registry.work.chore(partial(write_marks, folders, news, state.epoch))
        self._settled = state

    async def _agree(self, shared: Shared, name: Name, known: AnnouncedRegistration, mark: Mark | None) -> str:
        """Reconcile one name; returns the epoch in which the table agrees with this node, empty if it does not."""
        listed, epoch = self._listed.get(name), self._state.epoch
        if listed is not None and (listed.tag, listed.stamp) == known:
            return epoch
        told = mark is not None and mark.stamp == known.stamp
        if told and (listed is not None or (mark is not None and mark.epoch == epoch)):
            if await self.registry.drop(*name, known):
                log.info("a dataset was replaced or removed elsewhere; it is forgotten here")
                if listed is not None and records_listings(listed.stamp):
                    self._unlisted.add(name)
            return ""
        entry = ListedRegistration(known.tag, known.stamp, shared.fleet.members.me)
        return await shared.table.put(name, entry, only_new=told)

    # --- copying

    async def _copy(self, shared: Shared, name: Name, listed: ListedRegistration) -> LarderError | None:
        """Copy a registration from a node that has it; returns why that failed, or ``None`` if no node has it any more."""
        if name not in self._copies:
            rest = self._resting.get(name)
            if rest is not None and rest.listed == listed:
                return rest.failure
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._copies.result(name, partial(self._copy_from_any, shared.fleet, name, listed))
        except TimeoutError:
            raise ApiError(
                "SlowDown", "The dataset is being copied from another gateway; try again.", headers={"Retry-After": "5"}
            ) from None

    async def _copy_from_any(self, fleet: PeerNodes, name: Name, listed: ListedRegistration) -> LarderError | None:
        began = self._clock()
        failed: LarderError | None = None
        self._resting.pop(name, None)
        nodes = [node for node in fleet.members.nodes.values() if node.id != fleet.members.me]
        for node in sorted(nodes, key=lambda node: node.id != listed.node):
            try:
                await self._copy_from(fleet, node, name, listed)
                return None
            except LarderError as failure:
                failed = failed if isinstance(failure, _Forgotten) else failure
                log.info(
                    "copying a registration from node %(node)s failed: %(error)s", {"node": node.id, "error": failure}
                )
        now = self._clock()
        self._resting[name] = _Rest(listed, failed, now + min(_LONGEST_REST, _REST * (now - began)))
        return failed

    async def _copy_from(self, fleet: PeerNodes, node: Node, name: Name, listed: ListedRegistration) -> None:
        identity = listed.tag.partition("-")[0]
        answer = await fleet.peers.request(
            node, "GET", f"{PREFIX}/datasets/{identity}", [principal_header(name[0], _NOBODY)], query=f"name={name[1]}"
        )
        try:
            if answer.status != 200:
                raise (_Forgotten if answer.status == 404 else parcel.Unfit)(f"it answered {answer.status}")
            grant = await self.registry.grant(*name)
            async with self.registry.draft() as draft:
                reserve = self.registry.limits.reserve
                document = await parcel.receive(answer.next_chunk, draft, grant.output, reserve)
                if (document["tenant"], document["name"], document["content"]) != (*name, listed.tag):
                    raise parcel.Unfit("it is not the requested registration")
                with disk_faults():
                    await self.registry.work.chore(partial(parcel.check, draft, listed.tag))
                    # Mark it first; otherwise the copy would be taken for a new registration made here.
                    marks = {name: Mark(self._state.epoch, known_of(document).stamp)}
                    await self.registry.work.chore(
                        partial(write_marks, self.registry.folders, marks, self._state.epoch)
                    )
                await self.registry.adopt(draft, document)
        finally:
            answer.release()
