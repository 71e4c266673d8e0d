"""SQLite under the catalog.

``database.py`` imports this module for the first transaction. SQLAlchemy's asyncio part brings its object-relational mapper,
which gateways without a catalog need not import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool


def engine(path: Path, patience: float, writes: str) -> AsyncEngine:
    """Create the engine of an existing file; it opens a connection for each transaction.

    Args:
        path: of the file.
        patience: seconds that a lock may take.
        writes: the execution option of a writing transaction, which takes the lock at its beginning.
    """
    # mode=rw: a missing file is an error; ``create_file`` makes a new one.
    url = URL.create(
        "sqlite+aiosqlite", database=f"file:{quote(str(path.absolute()))}", query={"mode": "rw", "uri": "true"}
    )
    made = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": patience})

    def begin(connection: Connection) -> None:
        waits = connection.get_execution_options().get(writes, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if waits else "BEGIN")

    event.listen(made.sync_engine, "connect", _prepare)
    event.listen(made.sync_engine, "begin", begin)
    return made


def _prepare(connection: Any, _record: Any) -> None:
    # ``begin`` begins transactions, not the driver.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
