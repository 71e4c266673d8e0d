"""Warm-ups in the catalog: what is to be loaded, in whose name, how far it is, and which worker is at it.

A row's life: queued, running, then done, failed, refused or cancelled; ``resume`` queues it again. Whoever takes a row writes
his name into it, and writes its progress only while it is his and still running; so of a worker that was thought dead nothing
is believed any more once another has taken over, and a cancelled warm-up is not made to run again by the progress that was on
its way. Progress is no change of the catalog: nobody has to read anything again for it, and it is not audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.schema import warmups
from gateway.engine.operations.warming import WarmupProgress

UNFINISHED = ("queued", "running")
MOST = 10_000
"""Warm-ups that are remembered; the oldest that have ended are forgotten first."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted: a prefix of a bucket, or a dataset; with the rights of an access key."""

    access_key_id: str
    bucket: str = ""
    prefix: str = ""
    dataset: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        own = {"dataset": self.dataset} if self.dataset else {"bucket": self.bucket, "prefix": self.prefix}
        return {"access_key_id": self.access_key_id, **own}


@dataclass(frozen=True, slots=True)
class Warmup:
    """One row; times are seconds since the epoch. ``message`` says why it ended as it did, empty when it is done.

    ``owner`` is the worker that runs it, ``NODE/WORKER``; empty while nobody does, and once it was cancelled.
    """

    id: str
    request: Request
    state: str
    progress: WarmupProgress
    message: str
    owner: str
    created_at: float
    updated_at: float
    revision: int = field(default=0)

    @property
    def node(self) -> str:
        """The gateway whose worker has it, or had it when it ended; empty when there is none."""
        return self.owner.rpartition("/")[0]


_REQUEST = TypeAdapter(Request)


class WarmupTable:
    """The rows. Every method raises CatalogUnavailable when the database cannot be reached."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def find(self, name: str) -> Warmup | None:
        """One warm-up."""
        async with self._catalog.database.reading() as connection:
            return await self.row(connection, name)

    async def row(self, connection: AsyncConnection, name: str) -> Warmup | None:
        """One warm-up, within a transaction."""
        found = (await connection.execute(select(warmups).where(warmups.c.id == name))).mappings().one_or_none()
        return None if found is None else _read(dict(found))

    async def page(self, before: tuple[float, str] | None, limit: int) -> list[Warmup]:
        """Some warm-ups, newest first, after one that was made at ``before[0]`` and has the id ``before[1]``."""
        query = select(warmups).order_by(warmups.c.created_at.desc(), warmups.c.id.desc()).limit(limit)
        if before is not None:
            older = warmups.c.created_at < before[0]
            query = query.where(older | ((warmups.c.created_at == before[0]) & (warmups.c.id < before[1])))
        async with self._catalog.database.reading() as connection:
            return [_read(dict(row)) for row in (await connection.execute(query)).mappings()]

    async def unfinished(self) -> list[Warmup]:
        """Those that are to be run, oldest first."""
        query = select(warmups).where(warmups.c.state.in_(UNFINISHED)).order_by(warmups.c.created_at, warmups.c.id)
        async with self._catalog.database.reading() as connection:
            return [_read(dict(row)) for row in (await connection.execute(query)).mappings()]

    async def add(self, connection: AsyncConnection, new: Warmup) -> None:
        """Write a new row, within a change."""
        await connection.execute(insert(warmups).values(**_written(new)))
        ended = select(warmups.c.id).where(warmups.c.state.not_in(UNFINISHED))
        old = ended.order_by(warmups.c.created_at.desc()).offset(MOST)
        names = [row.id for row in await connection.execute(old.limit(100))]
        if names:
            await connection.execute(delete(warmups).where(warmups.c.id.in_(names)))

    async def turn(self, connection: AsyncConnection, changed: Warmup) -> None:
        """Write a row with another state, within a change; whoever runs it loses it."""
        await connection.execute(update(warmups).where(warmups.c.id == changed.id).values(**_written(changed)))

    async def take(self, name: str, owner: str, states: Sequence[str] = UNFINISHED) -> bool:
        """Make a worker the one that runs a warm-up; ``False`` when it is not to be run any more."""
        values = {"state": "running", "owner": owner, "updated_at": self._catalog.now()}
        mine = (warmups.c.id == name) & warmups.c.state.in_(states)
        async with self._catalog.database.writing() as connection:
            return bool((await connection.execute(update(warmups).where(mine).values(**values))).rowcount)

    async def note(
        self, name: str, owner: str, progress: WarmupProgress, state: str = "running", message: str = ""
    ) -> bool:
        """Write how far a warm-up is, and how it ended; ``False`` when it is this worker's no more."""
        values = {
            "state": state,
            "progress": _noted(progress, message),
            "updated_at": self._catalog.now(),
        }
        mine = (warmups.c.id == name) & (warmups.c.owner == owner) & (warmups.c.state == "running")
        async with self._catalog.database.writing() as connection:
            return bool((await connection.execute(update(warmups).where(mine).values(**values))).rowcount)


def _noted(progress: WarmupProgress, message: str) -> str:
    return to_json({"progress": progress.to_json(), "message": message}).decode()


def _written(warmup: Warmup) -> dict[str, Any]:
    return {
        "id": warmup.id,
        "request": to_json(warmup.request.to_json()).decode(),
        "state": warmup.state,
        "progress": _noted(warmup.progress, warmup.message),
        "owner": warmup.owner,
        "created_at": warmup.created_at,
        "updated_at": warmup.updated_at,
        "revision": warmup.revision,
    }


def _read(row: dict[str, Any]) -> Warmup:
    told = from_json(row["progress"])
    return Warmup(
        row["id"],
        _REQUEST.validate_json(row["request"]),
        row["state"],
        WarmupProgress.from_json(told["progress"]),
        str(told["message"]),
        row["owner"],
        row["created_at"],
        row["updated_at"],
        row["revision"],
    )
