"""Changes: one after the other, each as a whole, each with its line in the audit log, each told to whoever follows.

A change locks ``meta``'s row ``version`` first, so what it reads cannot change before it writes. Its audit line is written in the
same transaction: there is no change without a line, and no line without its change.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import metrics
from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.catalog.schema import audit, meta
from gateway.admin.catalog.withdrawals import Withdrawal

log = logging.getLogger("larder.admin")

Document = Mapping[str, Any]
Told = Callable[[Sequence[Withdrawal]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Actor:
    """A caller whose token was right.

    ``name`` is the token's: ``admin`` or ``read``; ``address`` is the client's, as the socket has it; ``request_id`` is in the
    answer's header ``x-larder-request-id`` too.
    """

    name: str
    address: str
    request_id: str

    @property
    def may_change(self) -> bool:
        """Whether the token allows more than looking."""
        return self.name == "admin"


class CatalogChange:
    """A change under way.

    ``revision`` is its number, for the rows that it touches. ``before`` and ``after`` are for the audit log: without secrets,
    ``None`` for what was not, or is no more, there. ``target`` may be set when only the change learns its name. One that turns
    out to be none sets ``done`` to false: nothing is kept of it. ``withdrawn`` are the rights that it takes away at once.
    """

    def __init__(self, connection: AsyncConnection, revision: int, target: str) -> None:
        self.connection = connection
        self.revision = revision
        self.target = target
        self.before: Document | None = None
        self.after: Document | None = None
        self.done = True
        self.withdrawn: list[Withdrawal] = []


class Changes:
    """Where changes are made.

    Args:
        database: of the catalog.
        now: seconds since the epoch.
        told: called after each change that was kept, with the rights that it took away.
    """

    def __init__(self, database: CatalogDatabase, now: Callable[[], float], told: Told) -> None:
        self._database = database
        self._now = now
        self._told = told

    @asynccontextmanager
    async def change(self, actor: Actor, action: str, target: str) -> AsyncIterator[CatalogChange]:
        """Make a change: it is kept when the block ends, and undone as a whole when it raises.

        Args:
            actor: who makes it.
            action: what he does, such as ``credentials.rotate``.
            target: what it is done to, such as an access key.

        Raises:
            CatalogUnavailable: nothing was changed; or the connection was lost while the change was being kept, and reading again
                tells.
        """
        async with self._database.writing() as connection:
            version = int(await connection.scalar(select(meta.c.value).where(_VERSION).with_for_update()) or 0)
            change = CatalogChange(connection, version + 1, target)
            yield change
            if not change.done:
                await connection.rollback()
                return
            await connection.execute(update(meta).where(_VERSION).values(value=str(change.revision)))
            await _mark(connection)
            await connection.execute(insert(audit).values(**_line(actor, action, change, self._now())))
        metrics.ADMIN_CHANGES.labels(action).inc()
        log.info("%s %s by %s from %s, request %s", action, change.target, actor.name, actor.address, actor.request_id)
        await self._told(change.withdrawn)


_VERSION = meta.c.name == "version"
_MARK = meta.c.name == "mark"


async def _mark(connection: AsyncConnection) -> None:
    """Make this change another one than any that had the same number in a history that was lost."""
    mark = uuid.uuid4().hex
    if not (await connection.execute(update(meta).where(_MARK).values(value=mark))).rowcount:
        await connection.execute(insert(meta).values(name="mark", value=mark))


def _line(actor: Actor, action: str, change: CatalogChange, now: float) -> dict[str, Any]:
    return {
        "at": now,
        "actor": actor.name,
        "address": actor.address,
        "action": action,
        "target": change.target.replace("\0", "\N{SYMBOL FOR NULL}"),  # which PostgreSQL has in no text
        "before": _text(change.before),
        "after": _text(change.after),
        "request_id": actor.request_id,
    }


def _text(document: Document | None) -> str | None:
    return None if document is None else to_json(document).decode()
