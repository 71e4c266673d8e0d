"""The connection to the catalog: SQLite for one machine, PostgreSQL for a fleet, the same statements for both.

SQLite. A connection is opened for each use, and only to a file that exists: a file that was removed is missing, not silently
begun anew, and one that was restored from a backup is seen. The journal is a rollback journal, so that a look at the catalog
writes nothing. A transaction that writes takes the lock at its beginning: two that read first and write later would deadlock.

PostgreSQL. A few connections are kept, and asked whether they live before they are used. What is read together is read in
REPEATABLE READ, so it is of one moment.

Both end with ``CatalogUnavailable`` for everything that is not a mistake in a statement: refused or lost connections, locks held
for too long, a server that is starting, stopping or read-only, a full disk. Tables that are missing, differ, or are closed to
this user are ``CatalogUnusable``: the statements are right, the database is not the one that they were written for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
from sqlalchemy import URL, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.model.errors import CatalogUnavailable, CatalogUnusable

PATIENCE = 3.0
"""Seconds that a statement, a lock or a connection may take."""
_WRITES = "larder_writes"
_OURS = (IntegrityError, ProgrammingError, DataError)
_OTHER_TABLES = frozenset({"42P01", "42703", "42704", "42804", "42883", "42501", "3F000"})
"""PostgreSQL's codes (its manual, appendix A) for an undefined table, column, object or function, a column of another type, a
lack of rights, and a schema that does not exist."""
_NOT_THERE = ("no such table", "no such column")
"""How SQLite says the same."""


class CatalogDatabase:
    """Transactions on the catalog.

    Args:
        url: SQLAlchemy's, with the driver that ``gateway.config`` puts there.
        home: a directory of this machine in which it is noted that a database on a server has been written to.
    """

    def __init__(self, url: str, home: Path | None = None) -> None:
        self._url = make_url(url)
        self.path = Path(self._url.database or "") if self._url.get_backend_name() == "sqlite" else None
        self.written = home / "catalog.written" if home is not None and self.path is None else None
        """Exists once this machine has read a change in the catalog of a server: tables without any are a lost catalog then."""
        self._one_writer = asyncio.Lock()
        self._engine = _postgres(self._url) if self.path is None else _sqlite(self.path)

    @property
    def shared(self) -> bool:
        """Whether gateways on other machines can have the same one."""
        return self.path is None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees one moment and changes nothing.

        Raises:
            CatalogUnavailable: the database cannot be reached, was lost meanwhile, or has not the tables of the catalog.
        """
        options = {} if self.path else {"isolation_level": "REPEATABLE READ"}
        with _unavailable():
            async with self._engine.connect() as connection:
                await connection.execution_options(**options)
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is kept if the block ends without an exception.

        Raises:
            CatalogUnavailable: the database cannot be reached, was lost meanwhile, or has not the tables of the catalog.
        """
        with _unavailable():
            async with self._turn(), self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection

    def _turn(self) -> AbstractAsyncContextManager[object]:
        """SQLite's waiting for a lock is by chance, and many who wait here would have some wait for too long."""
        return nullcontext() if self.shared else self._one_writer

    async def close(self) -> None:
        """Close the connections; a server that does not answer is not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._engine.dispose()


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        cause = error.orig or error
        if getattr(cause, "sqlstate", "") in _OTHER_TABLES or str(cause).startswith(_NOT_THERE):
            raise CatalogUnusable(_reason(cause)) from error
        if isinstance(error, _OURS):
            raise
        raise CatalogUnavailable(_reason(cause)) from error
    except (OSError, TimeoutError, PoolTimeout, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise CatalogUnavailable(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """What a driver says, on one line; SQLAlchemy's own text would have the statement and its parameters."""
    lines = str(error).splitlines()
    text = lines[0].rpartition("'>: ")[2] if lines else ""
    return text[:200] or type(error).__name__


def _sqlite(path: Path) -> AsyncEngine:
    # mode=rw: a missing file is an error. Whoever may begin a new one does so by ``create``.
    url = URL.create(
        "sqlite+aiosqlite", database=f"file:{quote(str(path.absolute()))}", query={"mode": "rw", "uri": "true"}
    )
    engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": PATIENCE})
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions when it thinks that one is needed; "begin" below is when.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres(url: URL) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=2,
        max_overflow=4,
        pool_timeout=PATIENCE,
        pool_pre_ping=True,
        pool_recycle=600,
        connect_args={"timeout": PATIENCE, "command_timeout": PATIENCE},
    )


def witnesses(path: Path) -> tuple[Path, Path]:
    """Files that exist beside an SQLite catalog once it was begun: its key, or a mark where the key is configured."""
    return path.with_name(f"{path.name}.key"), path.with_name(f"{path.name}.begun")


def was_begun(path: Path) -> bool:
    """Whether there was a catalog at ``path``, whatever has become of the file itself."""
    return any(witness.exists() for witness in witnesses(path))


def create_file(path: Path) -> None:
    """Make sure that there is a file for SQLite, readable by its owner only; an empty file is an empty database.

    Raises:
        OSError: its folder cannot be written.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
