"""Changes of the catalog: serialized, atomic, audited, and announced.

On a server, a change first locks the row ``version`` of ``meta``, so what it reads cannot change before it writes; on SQLite its
transaction has locked the file. Its audit entry is written in the same transaction, which also deletes the oldest entries beyond
``KEPT``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from sqlalchemy import case, delete, insert, select, update

from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.schema import audit, meta
from gateway.admin.catalog.snapshot import Noted, mark_of, read_noted
from gateway.admin.catalog.withdrawals import Withdrawal
from gateway.base import metrics

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

log = logging.getLogger("larder.admin")

KEPT = 100_000
"""Number of audit entries that are kept."""
Document = Mapping[str, Any]
ChangeListener = Callable[[Sequence[Withdrawal]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Actor:
    """An authorized caller.

    ``name`` is the token's: ``admin`` and ``read`` are those of the configuration; ``address`` is the peer of the socket;
    ``request_id`` and ``role`` are in headers of the answer too.
    """

    name: str
    address: str
    request_id: str
    role: TokenRole


class CatalogChange:
    """A change under way.

    ``noted`` is the content of ``meta`` at its beginning. ``revision`` is its number, for the rows that it touches. ``before``
    and ``after`` are for the audit log, without secrets; ``None`` if there was, or is, no such record. ``target`` may be set
    later. Setting ``done`` to false discards the change. ``withdrawn`` are the rights that it takes away.
    """

    def __init__(self, connection: AsyncConnection, noted: Noted, target: str) -> None:
        self.connection = connection
        self.noted = noted
        self.revision = mark_of(noted)[0] + 1
        self.target = target
        self.before: Document | None = None
        self.after: Document | None = None
        self.done = True
        self.withdrawn: list[Withdrawal] = []


class Changes:
    """Makes changes.

    Args:
        database: of the catalog.
        now: seconds since the epoch.
        listener: called after each committed change, with the rights that it withdrew.

    Attributes:
        kept: number of audit entries that are kept.
    """

    def __init__(self, database: CatalogDatabase, now: Callable[[], float], listener: ChangeListener) -> None:
        self.kept = KEPT
        self._database = database
        self._now = now
        self._listener = listener

    @asynccontextmanager
    async def change(self, actor: Actor, action: str, target: str) -> AsyncIterator[CatalogChange]:
        """Make a change: committed when the block ends, rolled back if it raises.

        Args:
            actor: the caller.
            action: such as ``credentials.rotate``.
            target: such as an access key.

        Raises:
            CatalogUnavailable: nothing was changed, or the connection was lost during the commit; then only reading again shows
                whether the change is committed.
        """
        async with self._database.writing() as connection:
            if self._database.shared:
                # A statement of its own: PostgreSQL shows a statement only the rows committed before it began.
                await connection.execute(_LOCK)
            change = CatalogChange(connection, await read_noted(connection), target)
            yield change
            if not change.done:
                await connection.rollback()
                return
            await _number(change)
            entry = await connection.execute(insert(audit).values(**_line(actor, action, change, self._now())))
            (number,) = entry.inserted_primary_key or (0,)
            await connection.execute(delete(audit).where(audit.c.id <= number - self.kept))
        metrics.ADMIN_CHANGES.labels(action).inc()
        log.info(
            "%(action)s %(target)s by %(actor)s from %(address)s, request %(request_id)s",
            {
                "action": action,
                "target": change.target,
                "actor": actor.name,
                "address": actor.address,
                "request_id": actor.request_id,
            },
        )
        await self._listener(change.withdrawn)


_LOCK = select(meta.c.value).where(meta.c.name == "version").with_for_update()


async def _number(change: CatalogChange) -> None:
    """Give a change its number and a unique mark: numbers repeat after a restored backup."""
    values = {"version": str(change.revision), "mark": uuid.uuid4().hex}
    rows = update(meta).where(meta.c.name.in_(values)).values(value=case(values, value=meta.c.name))
    await change.connection.execute(rows)
    if "mark" not in change.noted:
        await change.connection.execute(insert(meta).values(name="mark", value=values["mark"]))


def _line(actor: Actor, action: str, change: CatalogChange, now: float) -> dict[str, Any]:
    return {
        "at": now,
        "actor": actor.name,
        "address": actor.address,
        "action": action,
        "target": change.target.replace("\0", "\N{SYMBOL FOR NULL}"),  # PostgreSQL refuses NUL in text
        "before": _text(change.before),
        "after": _text(change.after),
        "request_id": actor.request_id,
    }


def _text(document: Document | None) -> str | None:
    return None if document is None else to_json(document).decode()
