"""Warm-ups in the catalog: started, cancelled and resumed by operators, carried out by ``WarmupRunner``.

A row is queued, running, then done, failed, refused or cancelled; resuming queues it again. The worker that takes a row writes
its name into it, and writes progress only while the row is running under that name. So a worker that was presumed dead cannot
overwrite its successor's progress, and late progress cannot revive a cancelled warm-up. Progress is neither audited nor
announced as a change of the catalog.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, RowMapping, delete, insert, select, update

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.database import FileState
from gateway.admin.catalog.fields import Bucket, Key, Name, Prefix, RequestModel, Text
from gateway.admin.catalog.schema import warmups
from gateway.admin.http.parts import check_if_match, etag_of
from gateway.edge.mistakes import sentence
from gateway.edge.problems import refused_field
from gateway.model.datasets import ApiError
from gateway.model.keys import Principal
from gateway.operate.warm.permitted import PermittedLoads
from gateway.operate.warm.warm_dataset import DatasetAccess, WarmDataset
from gateway.operate.warm.warm_object import WarmObject
from gateway.operate.warm.warm_prefix import WarmPrefix
from gateway.operate.warm.warm_profile import FindProfile, WarmProfile
from gateway.operate.warm.warming import WarmupFailed, WarmupProgress, WarmupRefused
from gateway.origin.listing import Listings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

UNFINISHED = ("queued", "running")
MOST = 10_000
"""Rows that are kept; the oldest finished ones are deleted first."""


class WarmupRequest(RequestModel):
    """A warm-up: of the objects of a bucket below a prefix, one object, the items of a dataset, or the reads of a profile."""

    access_key_id: Annotated[Text, Field(min_length=1, max_length=256)] = Field(
        description="the access key whose rights it uses to list and read", examples=["GWVISION"]
    )
    bucket: Bucket | None = Field(None, examples=["training-data"])
    prefix: Prefix = Field("", description='prefix of the keys; "" for the whole bucket', examples=["imagenet/val/"])
    key: Key | None = Field(None, description="of one object, instead of prefix", examples=[None])
    dataset: Annotated[Text, Field(min_length=1, max_length=128)] | None = Field(
        None, description="name or id of a dataset of the key's tenant; instead of bucket and prefix", examples=[None]
    )
    profile: Name | None = Field(
        None, description="of the tenant of the access key; instead of bucket and prefix", examples=[None]
    )
    request_payer: bool = Field(False, description="accept the charges of a requester-pays bucket", examples=[False])

    @model_validator(mode="after")
    def _one_of_them(self) -> WarmupRequest:
        if sum(subject is not None for subject in (self.bucket, self.dataset, self.profile)) != 1:
            raise ValueError("name what to load: either a bucket (with a prefix or a key), or a dataset, or a profile")
        if self.bucket is None and (self.prefix or self.key):
            raise ValueError("the fields prefix and key go with bucket; leave them out beside a dataset or a profile")
        if self.key is not None and "prefix" in self.model_fields_set:
            raise ValueError("name either a prefix or a key")
        return self

    def wanted(self) -> dict[str, Any]:
        """The fields that matter for this kind of warm-up, for the audit log."""
        payer = {"request_payer"} if self.request_payer else set()
        return self.model_dump(include={"access_key_id"} | payer | self._named)

    def stored(self) -> dict[str, Any]:
        """The fields of the row. Version 0.1 knows no key, and without a prefix it would load the whole bucket."""
        return self.wanted() | ({} if self.key is None else {"prefix": self.key})

    @property
    def _named(self) -> set[str]:
        if self.profile:
            return {"profile"}
        if self.dataset:
            return {"dataset"}
        return {"bucket", "prefix" if self.key is None else "key"}


@dataclass(frozen=True, slots=True)
class Warmup:
    """A row; times in seconds since the epoch. ``message`` says why it ended; empty if it is done.

    ``owner`` is the worker that runs it, ``NODE/WORKER``; empty while it is queued or cancelled.
    """

    id: str
    request: WarmupRequest
    state: str
    progress: WarmupProgress
    message: str
    owner: str
    created_at: float
    updated_at: float
    revision: int

    @property
    def node(self) -> str:
        """The node that runs it, or ran it when it ended; empty if there is none."""
        return self.owner.rpartition("/")[0]

    @classmethod
    def from_row(cls, row: RowMapping) -> Warmup:
        """Read a row. The request was validated when it was made, possibly by an older version, and is not validated again."""
        stored = from_json(row["progress"])
        values = {
            **row,
            "request": WarmupRequest.model_construct(**from_json(row["request"])),
            "progress": WarmupProgress.from_json(stored["progress"]),
            "message": str(stored["message"]),
        }
        return cls(**values)

    def row(self) -> dict[str, Any]:
        """The columns."""
        return {
            "id": self.id,
            "request": to_json(self.request.stored()).decode(),
            "state": self.state,
            "progress": _noted(self.progress, self.message),
            "owner": self.owner,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "revision": self.revision,
        }


def _noted(progress: WarmupProgress, message: str) -> str:
    return to_json({"progress": progress.to_json(), "message": message}).decode()


WarmupWork = WarmPrefix | WarmObject | WarmDataset | WarmProfile
MakeWarmup = Callable[[WarmupRequest], WarmupWork]
"""Makes the work of a request."""


def warmup_factory(
    find: Callable[[str], Principal | None],
    listings: Listings,
    loads: PermittedLoads,
    datasets: DatasetAccess,
    profiles: FindProfile,
    capacity: Callable[[], int],
) -> MakeWarmup:
    """Makes the work of warm-ups.

    Args:
        find: the principal of an access key that is valid now.
        listings: of the origins.
        loads: loads objects.
        datasets: finds datasets and loads their items.
        profiles: gives a profile by its name.
        capacity: bytes that the caches of the fleet can hold.
    """

    def make(request: WarmupRequest) -> WarmupWork:
        principal = partial(find, request.access_key_id)
        if request.request_payer:
            principal = partial(_paying, principal)
        if request.dataset:
            return WarmDataset(request.dataset, principal, datasets, capacity)
        if request.profile:
            return WarmProfile(request.profile, principal, profiles, loads, capacity)
        if request.key is not None:
            return WarmObject(request.bucket or "", request.key, principal, loads)
        return WarmPrefix(request.bucket or "", request.prefix, principal, listings, loads, capacity)

    return make


def _paying(find: Callable[[], Principal | None]) -> Principal | None:
    principal = find()
    return None if principal is None else principal.paying()


class Warmups:
    """The warm-ups of a catalog. Every method raises CatalogUnavailable when the database cannot be reached.

    Args:
        catalog: where the rows are.
        make: makes the work.
    """

    def __init__(self, catalog: Catalog, make: MakeWarmup) -> None:
        self.make = make
        self._catalog = catalog
        self._idle: FileState | None = None
        """The state of the catalog's file when no warm-up was waiting to run."""

    async def judge(self, request: WarmupRequest) -> None:
        """Refuse a request that is bound to fail.

        Raises:
            ApiError: Conflict if it cannot be warmed up; ServiceUnavailable if that cannot be decided now.
        """
        work = self.make(request)
        if isinstance(work, WarmDataset | WarmProfile):
            try:
                await work.check()
            except WarmupRefused as refusal:
                subject = "dataset" if isinstance(work, WarmDataset) else "profile"
                raise refused_field(subject, sentence(str(refusal)), "Conflict") from None
            except WarmupFailed as failure:
                raise ApiError("ServiceUnavailable", sentence(str(failure)), headers={"Retry-After": "5"}) from None

    async def add(self, change: CatalogChange, request: WarmupRequest) -> Warmup:
        """Queue a warm-up; the runner finds it within a second."""
        now, connection = self._catalog.now(), change.connection
        new = Warmup(uuid.uuid4().hex, request, "queued", WarmupProgress(), "", "", now, now, change.revision)
        await connection.execute(insert(warmups).values(**new.row()))
        ended = select(warmups.c.id).where(warmups.c.state.not_in(UNFINISHED))
        old = ended.order_by(warmups.c.created_at.desc()).offset(MOST)
        names = [row.id for row in await connection.execute(old.limit(100))]
        if names:
            await connection.execute(delete(warmups).where(warmups.c.id.in_(names)))
        change.target, change.after = new.id, request.wanted()
        return new

    async def cancel(self, change: CatalogChange, name: str, if_match: str | None) -> Warmup:
        """Cancel a warm-up; loaded objects stay.

        Raises:
            ApiError: NotFound; PreconditionFailed; Conflict, it has ended.
        """
        warmup = await self._editable(change, name, if_match)
        if warmup.state not in UNFINISHED:
            raise ApiError("Conflict", f"The warm-up has already ended: it is {warmup.state}.")
        return await self._move(change, warmup, "cancelled", "cancelled")

    async def resume(self, change: CatalogChange, name: str, if_match: str | None) -> Warmup:
        """Continue a warm-up. One that is done or was refused starts over, and retries failed objects.

        Raises:
            ApiError: NotFound; PreconditionFailed; Conflict, it has not ended.
        """
        warmup = await self._editable(change, name, if_match)
        if warmup.state in UNFINISHED:
            raise ApiError("Conflict", f"The warm-up has not ended: it is {warmup.state}.")
        if warmup.state in ("done", "refused"):
            warmup.progress.restart()
        return await self._move(change, warmup, "queued", "")

    async def find(self, name: str, connection: AsyncConnection | None = None) -> Warmup:
        """One warm-up.

        Raises:
            ApiError: NotFound.
        """
        if connection is None:
            async with self._catalog.database.reading() as reading:
                return await self.find(name, reading)
        row = (await connection.execute(select(warmups).where(warmups.c.id == name))).mappings().one_or_none()
        if row is None:
            raise ApiError("NotFound", "Unknown warm-up; larder-gateway warm --list lists them.")
        return Warmup.from_row(row)

    async def page(self, before: tuple[float, str] | None, limit: int) -> list[Warmup]:
        """Warm-ups, newest first, after the one with the creation time and id ``before``."""
        query = select(warmups).order_by(warmups.c.created_at.desc(), warmups.c.id.desc()).limit(limit)
        if before is not None:
            older = warmups.c.created_at < before[0]
            query = query.where(older | ((warmups.c.created_at == before[0]) & (warmups.c.id < before[1])))
        async with self._catalog.database.reading() as connection:
            return [Warmup.from_row(row) for row in (await connection.execute(query)).mappings()]

    async def unfinished(self) -> list[Warmup]:
        """The warm-ups to run, oldest first."""
        state = await self._catalog.database.state()
        if state is not None and state == self._idle:
            return []
        query = select(warmups).where(warmups.c.state.in_(UNFINISHED)).order_by(warmups.c.created_at, warmups.c.id)
        async with self._catalog.database.reading() as connection:
            unfinished = [Warmup.from_row(row) for row in (await connection.execute(query)).mappings()]
        self._idle = None if unfinished else state
        return unfinished

    async def claim(self, name: str, owner: str) -> bool:
        """Make a worker the owner of a warm-up; ``False`` if it has ended."""
        return await self._write((warmups.c.id == name) & warmups.c.state.in_(UNFINISHED), state="running", owner=owner)

    async def record(
        self, name: str, owner: str, progress: WarmupProgress, state: str = "running", message: str = ""
    ) -> bool:
        """Write progress and the state; ``False`` if this worker no longer owns the warm-up."""
        mine = (warmups.c.id == name) & (warmups.c.owner == owner) & (warmups.c.state == "running")
        return await self._write(mine, state=state, progress=_noted(progress, message))

    async def _write(self, where: ColumnElement[bool], **values: str) -> bool:
        change = update(warmups).where(where).values(updated_at=self._catalog.now(), **values)
        async with self._catalog.database.writing() as connection:
            return bool((await connection.execute(change)).rowcount)

    async def _editable(self, change: CatalogChange, name: str, if_match: str | None) -> Warmup:
        warmup = await self.find(name, change.connection)
        check_if_match(if_match, etag_of(warmup.revision))
        return warmup

    async def _move(self, change: CatalogChange, warmup: Warmup, state: str, message: str) -> Warmup:
        now = self._catalog.now()
        turned = replace(warmup, state=state, message=message, owner="", updated_at=now, revision=change.revision)
        await change.connection.execute(update(warmups).where(warmups.c.id == warmup.id).values(**turned.row()))
        change.before, change.after = {"state": warmup.state}, {"state": state}
        return turned
