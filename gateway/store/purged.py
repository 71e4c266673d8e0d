"""The catalog's purges that a node has applied, recorded in its index.

They are in the index deliberately. At a power failure SQLite loses only the latest transactions, so if the record survives, the
earlier deletions survive too. If the index is lost, both are.

Purges are applied in the catalog's order. A purge that the node received directly is recorded as applied ahead of
its turn.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from sqlite3 import Connection
from typing import NamedTuple

from gateway.store.disk import Disk
from gateway.store.files.failures import DiskFault, attempt, succeeds
from gateway.store.files.locks import open_lock, try_exclusive
from gateway.store.index import seals

_NAME = "purges"
_AGAIN = 0.02
_MOST_AHEAD = 256


class Applied(NamedTuple):
    """The last purge applied in order, empty if none; and the purges applied ahead of their turn."""

    last: str = ""
    ahead: tuple[str, ...] = ()


class AppliedPurges:
    """The record of one node, shared by its workers."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def read(self) -> Applied | None:
        """The applied purges; ``None`` while the disk is down."""
        return await attempt(self._disk.read, _read, None)

    async def nothing_to_forget(self) -> bool:
        """Whether the index has no objects; false while the disk is down."""
        return await attempt(self._disk.read, _is_empty, False)

    async def record(self, applied: Applied) -> bool:
        """Record applied purges; returns whether the disk accepted it."""
        text = json.dumps([applied.last, *applied.ahead[-_MOST_AHEAD:]])
        return await succeeds(self._disk.write, partial(_write, text=text))

    @asynccontextmanager
    async def exclusively(self) -> AsyncIterator[None]:
        """Serialize purging among the node's workers; no effect without a disk."""
        try:
            descriptor = await self._disk.run(partial(open_lock, self._disk.directory.root / "purges.lock"), os.close)
        except (OSError, DiskFault):
            yield
            return
        try:
            # Polling, because another process holds the lock and a blocked thread could not be cancelled.
            while not try_exclusive(descriptor):  # noqa: ASYNC110
                await asyncio.sleep(_AGAIN)
            yield
        finally:
            os.close(descriptor)


def _read(connection: Connection) -> Applied:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_NAME,)).fetchone()
    if row is None:
        return Applied()
    try:
        last, *ahead = json.loads(row[0])
    except (ValueError, TypeError) as error:
        raise seals.damaged("the record of purges") from error
    if not all(type(name) is str for name in (last, *ahead)):
        raise seals.damaged("the record of purges")
    return Applied(last, tuple(ahead))


def _is_empty(connection: Connection) -> bool:
    return connection.execute("SELECT 1 FROM objects LIMIT 1").fetchone() is None


def _write(connection: Connection, text: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_NAME, text))
