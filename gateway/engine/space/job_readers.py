"""The identities with which a node reads items for no client: those of registered jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from gateway.base.tasks import SingleFlight
from gateway.engine.space.preload import Reader
from gateway.fleet.jobs.jobs import JobRecord, Jobs
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.errors import LarderError
from gateway.model.keys import OriginIdentity
from gateway.store.datasets.content import Content
from gateway.store.datasets.opened import FindRegistration, Registration
from gateway.store.items import ItemBlobs

_SOON = 0.5
"""Seconds that one turn waits for a registration, which may be copied from another node; copying continues."""


@dataclass(frozen=True, slots=True)
class OpenDatasets:
    """The datasets of this node: ``find`` gives a tenant's dataset by name or id, ``contents`` all that are open here.

    ``signs_as`` says whether this node's configuration has an origin identity; jobs of other nodes may name unknown ones.
    """

    find: FindRegistration
    contents: Callable[[], Iterable[Content]]
    signs_as: Callable[[OriginIdentity], bool]


class JobReaders:
    """Finds the jobs of the zone, and the datasets that they read.

    Args:
        jobs: of the zone.
        shelves: the registered datasets.
        items: adopts the datasets that are found.
    """

    def __init__(self, jobs: Jobs, shelves: OpenDatasets, items: ItemBlobs) -> None:
        self._jobs = jobs
        self._shelves = shelves
        self._items = items
        self._finding: SingleFlight[tuple[str, str], Registration | None] = SingleFlight()
        self._records: list[JobRecord] | None = None

    def look_again(self) -> None:
        """Discard the known jobs, once per turn."""
        self._records = None

    async def records(self) -> list[JobRecord]:
        """The jobs of the zone, read once per turn; none while Redis is down."""
        if self._records is None:
            try:
                self._records = await self._jobs.records()
            except DOWN:
                self._records = []
        return self._records

    async def readers(self, dataset: str) -> list[Reader]:
        """The jobs of a dataset whose registration is known here."""
        readers: dict[tuple[str, OriginIdentity], Reader] = {}
        for record in await self.records():
            identity = OriginIdentity(record.origin, record.access_key_id)
            if record.dataset != dataset or not self._shelves.signs_as(identity):
                continue
            if (record.tenant, identity) not in readers:
                registration = await self.registration(record.tenant, dataset)
                if registration is not None:
                    self._items.adopt(registration.content)
                    readers[record.tenant, identity] = Reader(registration, identity)
        return list(readers.values())

    async def registration(self, tenant: str, name: str) -> Registration | None:
        """A registration, if it is available soon: copying it must not delay the other datasets."""
        within = 0.0 if (tenant, name) in self._finding else _SOON
        finding = self._finding.join((tenant, name), partial(self._find, tenant, name))
        done, _ = await asyncio.wait([finding], timeout=within)
        return finding.result() if done else None

    async def stop(self) -> None:
        """Stop looking for registrations."""
        await self._finding.stop()

    async def _find(self, tenant: str, name: str) -> Registration | None:
        try:
            return await self._shelves.find(tenant, name)
        except (*DOWN, LarderError):
            return None  # it is still being copied from another node, or Redis is lost: try again later
