"""Finds the parts of an object that loaders have cached: the items of datasets inside it.

An item is a blob named by its digest, wherever its object is. So all items of an object may be cached although the index does not
know the object. Each list of locations is searched, which takes some tenths of a second for a million keys.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

import numpy as np

from gateway.engine.base.planned import Planned
from gateway.engine.items.answers import BatchAsk
from gateway.engine.items.batch import Batches
from gateway.engine.items.registrations import Registrations
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.errors import LarderError
from gateway.model.keys import Principal
from gateway.policies.items.batch import BatchMode
from gateway.store.datasets.layout import Damaged
from gateway.store.datasets.locations import items_of
from gateway.store.datasets.opened import Registration
from gateway.store.files.failures import DiskFault

_PATIENCE = 5.0
"""Seconds after which datasets that were not searched are left out."""


class ObjectItems(NamedTuple):
    """The items of a dataset, by name and id, in one object, and the number of them that the fleet has cached."""

    dataset: str
    items: int
    resident: int
    id: str


class ItemFinder:
    """Searches the datasets of one tenant.

    Args:
        registrations: of the fleet.
        planned: the plan.
        batches: of this worker.
    """

    def __init__(self, registrations: Registrations, planned: Planned, batches: Batches) -> None:
        self._registrations = registrations
        self._planned = planned
        self._batches = batches

    async def of(self, principal: Principal, bucket: str, key: str) -> list[ObjectItems]:
        """The items in an object by dataset, as far as the search ends in time."""
        known: list[ObjectItems] = []
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._registrations.bring(principal.tenant)
                async for registration in self._registrations.registry.of_tenant(principal.tenant):
                    known += await self._within(principal, registration, bucket, key)
        except (TimeoutError, DiskFault, LarderError, *DOWN):
            return known
        return known

    async def _within(
        self, principal: Principal, registration: Registration, bucket: str, key: str
    ) -> list[ObjectItems]:
        work = self._registrations.registry.work
        try:
            indices = await work.chore(partial(items_of, registration.locations, bucket, key))
        except Damaged:
            return []
        if not indices:
            return []
        ask = BatchAsk(
            registration,
            principal.identity,
            self._planned.of(registration).caching,
            BatchMode.EXACT,
            np.array(indices, np.uint32),
            len(indices),
        )
        resident = await self._batches.known.lookup(ask)
        return [ObjectItems(registration.name, len(indices), int(np.count_nonzero(resident)), registration.content.id)]
