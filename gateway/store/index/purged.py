"""The catalog's purges that a node has applied, noted in its index.

In the index, and not beside it: what SQLite loses with the power is what was written last, so where the note has survived, the
deletions before it have too; and an index that was lost has neither.

Purges are applied in the catalog's order. Of one that the node was told of in between, it is noted that it was applied ahead of
its turn.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

from gateway.store.disk import Disk
from gateway.store.failures import DiskFault

_NAME = "purges"
_AGAIN = 0.02
_MOST_AHEAD = 256


class Applied(NamedTuple):
    """The last purge that was applied in its turn, empty for none; and those that were applied ahead of theirs."""

    last: str = ""
    ahead: tuple[str, ...] = ()


class AppliedPurges:
    """The note of one node, which all of its workers read and write."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def read(self) -> Applied | None:
        """What was applied; ``None`` while the disk is down."""
        try:
            return await self._disk.read(_read)
        except DiskFault:
            return None

    async def nothing_to_forget(self) -> bool:
        """Whether there is no object in the index; false while the disk is down."""
        try:
            return await self._disk.read(_is_empty)
        except DiskFault:
            return False

    async def note(self, applied: Applied) -> bool:
        """Note what was applied, after it was; whether the disk took it."""
        text = json.dumps([applied.last, *applied.ahead[-_MOST_AHEAD:]])
        try:
            await self._disk.write(partial(_write, text=text))
        except DiskFault:
            return False
        return True

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The workers of the node apply purges one after the other; without a disk there is nothing to take turns at."""
        try:
            descriptor = await self._disk.run(partial(_lock_file, self._disk.directory.root / "purges.lock"), os.close)
        except (OSError, DiskFault):
            yield
            return
        try:
            # Other processes hold it: there is no event to wait for, and a thread that waits cannot be called off.
            while not _locked(descriptor):  # noqa: ASYNC110
                await asyncio.sleep(_AGAIN)
            yield
        finally:
            os.close(descriptor)


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(connection: Connection) -> Applied:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_NAME,)).fetchone()
    if row is None:
        return Applied()
    last, *ahead = json.loads(row[0])
    return Applied(last, tuple(ahead))


def _is_empty(connection: Connection) -> bool:
    return connection.execute("SELECT 1 FROM objects LIMIT 1").fetchone() is None


def _write(connection: Connection, text: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_NAME, text))
