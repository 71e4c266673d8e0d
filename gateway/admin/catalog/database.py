"""The connection to the catalog: SQLite for one machine, PostgreSQL for a fleet, the same statements for both.

SQLite. Every use opens a connection, and only to an existing file: a removed file is an error instead of an empty catalog, and a
restored backup is noticed. The journal is a rollback journal, so polling writes nothing. A writing transaction takes the lock at
its beginning, because two that read first would deadlock.

A poll of an unchanged file opens no connection: while its inode, size and times are the same, so are the tables (``state``).

PostgreSQL. A small pool of connections, which are tested before use. Reads are REPEATABLE READ, so they are consistent.

Both raise ``CatalogUnavailable`` for lost connections, long locks, a server that is starting, stopping or read-only, and a full
disk. Tables that are missing, different, or inaccessible to this user are ``CatalogUnusable``: not a catalog of this version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.base.imports import imported
from gateway.model.datasets import ApiError
from gateway.model.errors import CatalogUnavailable, CatalogUnusable
from gateway.store.files.threads import within

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

FileState = tuple[int, int, int, int, int]
"""Device, inode, size and times of a file."""
SQLITE = "gateway.admin.catalog.sqlite"
"""The module of SQLite's engine."""
PATIENCE = 3.0
"""Seconds that the disk of the catalog's files may take."""
_WRITES = "larder_writes"
_OURS = (IntegrityError, ProgrammingError, DataError)
_OTHER_TABLES = frozenset({"42P01", "42703", "42704", "42804", "42883", "42501", "3F000"})
"""PostgreSQL's codes (its manual, appendix A) for an undefined table, column, object or function, a column of another type, a
lack of rights, and a schema that does not exist."""
_NO_TEXT = "22021"
"""PostgreSQL's code for characters that its texts cannot have."""
_DAMAGED = (
    "Could not decode",
    "database disk image is malformed",
    "file is not a database",
    "malformed database schema",
)
"""Beginnings of SQLite's and its driver's messages for a file that was damaged."""
_NOT_THERE = ("no such table", "no such column")
"""SQLite's messages for the same."""


class CatalogDatabase:
    """Transactions on the catalog.

    Args:
        url: SQLAlchemy's, with the driver that ``gateway.base.config`` puts there.
        home: local directory for the marker which says that a database on a server has been written to.
    """

    patience = 3.0
    """Seconds that a statement, a lock or a connection may take."""
    settled = 1.0
    """Seconds after a write before the next write is sure to change the file's time: the clocks of file systems tick slowly."""

    def __init__(self, url: str, home: Path | None = None) -> None:
        self._url = make_url(url)
        self.path = Path(self._url.database or "") if self._url.get_backend_name() == "sqlite" else None
        self.written = home / "catalog.written" if home is not None and self.path is None else None
        """Created when this machine first reads a change from a server: from then on, empty tables mean a lost catalog."""
        self._one_writer = asyncio.Lock()
        self._lost: tuple[type[Exception], ...] = (OSError, TimeoutError, PoolTimeout)
        self._made: AsyncEngine | None = None

    def _engine(self) -> AsyncEngine:
        """The engine, made for the first transaction: a gateway without a catalog never needs it."""
        if self._made is None:
            if self.path is None:
                server = imported("gateway.admin.catalog.postgres")
                self._lost += server.LOST
                self._made = server.engine(self._url, self.patience)
            else:
                self._made = imported(SQLITE).engine(self.path, self.patience, _WRITES)
        return self._made

    @property
    def shared(self) -> bool:
        """Whether gateways on other machines can share it."""
        return self.path is None

    async def state(self) -> FileState | None:
        """A mark that every write to the file changes; ``None`` if there is none: a server, a missing file, or a write just now.

        Raises:
            CatalogUnavailable: the disk did not answer.
        """
        if self.path is None:
            return None
        try:
            return await within(PATIENCE, partial(_state_of, self.path, self.settled))
        except OSError as error:  # a timeout is an OSError
            raise CatalogUnavailable("the disk of the catalog's files did not answer") from error

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A read-only, consistent transaction.

        Raises:
            CatalogUnavailable: the database cannot be reached, was lost, or lacks the tables of the catalog.
        """
        options = {} if self.path else {"isolation_level": "REPEATABLE READ"}
        engine = self._engine()
        with _unavailable(self._lost):
            async with engine.connect() as connection:
                await connection.execution_options(**options)
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction, committed if the block ends without an exception.

        Raises:
            CatalogUnavailable: the database cannot be reached, was lost, or lacks the tables of the catalog.
        """
        engine = self._engine()
        with _unavailable(self._lost):
            async with self._queue(), engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection

    def _queue(self) -> AbstractAsyncContextManager[object]:
        """Queue writers: SQLite's lock is unfair, so some would wait too long."""
        return nullcontext() if self.shared else self._one_writer

    async def close(self) -> None:
        """Close the connections; waits at most two seconds for a server."""
        if self._made is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._made.dispose()


@contextmanager
def _unavailable(lost: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        cause = error.orig or error
        if getattr(cause, "sqlstate", "") == _NO_TEXT:
            raise ApiError(
                "InvalidRequest",
                "The request contains U+0000, which the catalog's database cannot store; leave it out.",
            ) from None
        if getattr(cause, "sqlstate", "") in _OTHER_TABLES or str(cause).startswith(_NOT_THERE):
            raise CatalogUnusable(_reason(cause)) from error
        if str(cause).startswith(_DAMAGED):
            raise CatalogUnusable(f"its file is damaged: {_reason(cause)}") from error
        if isinstance(error, _OURS):
            raise
        raise CatalogUnavailable(_reason(cause)) from error
    except UnicodeDecodeError as error:
        # SQLite's own message quotes the damaged schema.
        raise CatalogUnusable("its file is damaged: a text in it is not UTF-8") from error
    except lost as error:
        raise CatalogUnavailable(_reason(error)) from error


def _state_of(path: Path, settled: float) -> FileState | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if time.time() - max(status.st_mtime, status.st_ctime) < settled:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reason(error: BaseException) -> str:
    """The driver's message on one line, without SQLAlchemy's statement and parameters."""
    lines = str(error).splitlines()
    text = lines[0].rpartition("'>: ")[2] if lines else ""
    return text[:200] or type(error).__name__


def witnesses(path: Path) -> tuple[Path, Path]:
    """Files beside an existing SQLite catalog: its key, or a marker where the key is configured."""
    return path.with_name(f"{path.name}.key"), path.with_name(f"{path.name}.begun")


def was_begun(path: Path) -> bool:
    """Whether a catalog existed at ``path``, even if the file itself is gone."""
    return any(witness.exists() for witness in witnesses(path))


def create_file(path: Path) -> None:
    """Create SQLite's file, readable by its owner only; an empty file is an empty database.

    Raises:
        OSError: its folder cannot be written.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
