"""What the endpoints of warm-ups do: judge what is asked for, write it down for the runner, cancel it, have it go on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.operations.warmup_table import UNFINISHED, Request, Warmup, WarmupTable
from gateway.engine.operations.warm_dataset import DatasetAccess, WarmDataset
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.operations.warm_prefix import Prefix, WarmPrefix
from gateway.engine.operations.warming import WarmupFailed, WarmupProgress, WarmupRefused, Work
from gateway.model.datasets import ApiError
from gateway.model.keys import Principal
from gateway.origin.listing import Listings
from gateway.policies.rules import Rules

RESUMED = ("cancelled", "failed", "refused", "done")


class WarmupFactory:
    """Makes the work of a warm-up.

    Args:
        find: the principal of an access key that is valid now.
        listings: of the origins.
        objects: loads objects.
        shelf: where datasets are.
        rules: that are in force.
        capacity: bytes that the caches of the fleet can hold.
    """

    def __init__(
        self,
        find: Callable[[str], Principal | None],
        listings: Listings,
        objects: WarmObjects,
        shelf: DatasetAccess,
        rules: Callable[[], Rules],
        capacity: Callable[[], int],
    ) -> None:
        self._find = find
        self._listings = listings
        self._objects = objects
        self._shelf = shelf
        self._rules = rules
        self._capacity = capacity

    def make(self, warmup: Warmup) -> Work:
        """The work of a row."""
        return self.work_of(warmup.request)

    def work_of(self, request: Request) -> WarmPrefix | WarmDataset:
        """The work of a request."""

        def principal() -> Principal | None:
            return self._find(request.access_key_id)

        if request.dataset:
            return WarmDataset(request.dataset, principal, self._shelf, self._capacity)
        wanted = Prefix(request.bucket, request.prefix)
        return WarmPrefix(wanted, principal, self._listings, self._objects, self._rules, self._capacity)


class Warmups:
    """Warm-ups, as operators see them.

    Args:
        catalog: where they are.
        workshop: judges what can be judged before one begins.
    """

    def __init__(self, catalog: Catalog, workshop: WarmupFactory) -> None:
        self.table = WarmupTable(catalog)
        self._catalog = catalog
        self._workshop = workshop

    async def judge(self, request: Request) -> None:
        """Refuse at once what will be refused anyway.

        Raises:
            ApiError: Conflict, the dataset cannot be warmed up; ServiceUnavailable, that cannot be told now.
        """
        work = self._workshop.work_of(request)
        if isinstance(work, WarmDataset):
            try:
                await work.check()
            except WarmupRefused as refusal:
                raise ApiError("Conflict", str(refusal)) from None
            except WarmupFailed as failure:
                raise ApiError("ServiceUnavailable", str(failure), headers={"Retry-After": "5"}) from None

    async def add(self, change: CatalogChange, request: Request) -> Warmup:
        """A new warm-up, which the runner finds within a second."""
        now = self._catalog.now()
        new = Warmup(uuid.uuid4().hex, request, "queued", WarmupProgress(), "", "", now, now, change.revision)
        await self.table.add(change.connection, new)
        change.target, change.after = new.id, request.to_json()
        return new

    async def cancel(self, change: CatalogChange, name: str) -> Warmup:
        """Have a warm-up end; what was loaded stays.

        Raises:
            ApiError: NotFound; Conflict, it has ended.
        """
        warmup = await self._found(change, name)
        if warmup.state not in UNFINISHED:
            raise ApiError("Conflict", f"The warm-up has ended already: it is {warmup.state}.")
        return await self._turn(change, warmup, "cancelled", "it was cancelled")

    async def resume(self, change: CatalogChange, name: str) -> Warmup:
        """Have a warm-up go on; one that is done begins anew, and tries again what could not be loaded.

        Raises:
            ApiError: NotFound; Conflict, it has not ended.
        """
        warmup = await self._found(change, name)
        if warmup.state not in RESUMED:
            raise ApiError("Conflict", f"The warm-up has not ended: it is {warmup.state}.")
        if warmup.state in ("done", "refused"):
            warmup.progress.restart()
        return await self._turn(change, warmup, "queued", "")

    async def _turn(self, change: CatalogChange, warmup: Warmup, state: str, message: str) -> Warmup:
        turned = replace(
            warmup, state=state, message=message, owner="", updated_at=self._catalog.now(), revision=change.revision
        )
        await self.table.turn(change.connection, turned)
        change.before, change.after = {"state": warmup.state}, {"state": state}
        return turned

    async def _found(self, change: CatalogChange, name: str) -> Warmup:
        found = await self.table.row(change.connection, name)
        if found is None:
            raise not_found()
        return found


def not_found() -> ApiError:
    """The refusal of an id that there is not."""
    return ApiError("NotFound", "There is no such warm-up; GET /-/admin/warmups lists them.")
