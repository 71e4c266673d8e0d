"""Purges in the catalog, for nodes that were down.

They are numbered from 1 without gaps, and have unique names, because numbers repeat after a restored backup. The newest thousand
are kept. A node asks for the purges after the last one that it applied. If that purge is no longer kept, missed ones may be gone
too, unless none was ever deleted.

Version 0.1 reads no column ``exact``, so ``place`` has the key of one object as a prefix.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, update

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.catalog.schema import meta, purges
from gateway.operate.purge.work import Purge, Unseen

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

KEPT = 1000
"""Number of purges that are kept."""
_NEWEST = meta.c.name == "purge"


async def remember(change: CatalogChange, purge: Purge, now: Callable[[], float], kept: int = KEPT) -> Purge:
    """Record a purge, and forget all but the newest ``kept``; returns it with its name."""
    connection, name = change.connection, uuid.uuid4().hex
    number = int(await connection.scalar(select(func.max(purges.c.id))) or 0) + 1
    # ASCII JSON: keys may contain U+0000, which PostgreSQL refuses, and lone surrogates, which pydantic refuses.
    place = json.dumps([purge.bucket, purge.prefix])
    row = {"id": number, "name": name, "place": place, "exact": purge.exact, "at": now()}
    await connection.execute(insert(purges).values(**row))
    await connection.execute(delete(purges).where(purges.c.id <= number - kept))
    if not (await connection.execute(update(meta).where(_NEWEST).values(value=name))).rowcount:
        await connection.execute(insert(meta).values(name="purge", value=name))
    return replace(purge, id=name)


async def unseen(database: CatalogDatabase, last: str) -> Unseen:
    """The purges after the one named ``last``.

    Raises:
        CatalogUnavailable: the database cannot be reached.
    """
    async with database.reading() as connection:
        return await _unseen(connection, last)


async def _unseen(connection: AsyncConnection, last: str) -> Unseen:
    after = await connection.scalar(select(purges.c.id).where(purges.c.name == last))
    rows = (await connection.execute(select(purges).where(purges.c.id > (after or 0)).order_by(purges.c.id))).all()
    places = [json.loads(row.place) for row in rows]
    missed = [
        Purge(bucket, name, id=row.name, exact=row.exact) for (bucket, name), row in zip(places, rows, strict=True)
    ]
    return Unseen(missed, more=after is None and bool(rows) and int(rows[0].id) > 1)
