"""The index's tables, and how a connection to them is opened.

``blobs`` and ``objects`` meet in ``object_blocks``; every object is tied to at least one blob, and every blob to at least one
object, unless it was stored for its own sake, as an item of a dataset (``item``): that one is reached by its digest.
``spaces`` is kept by triggers, inside the transaction that changes ``blobs``, so the count is
right whichever worker writes. Row ids of objects start at a random number and are never reused: a worker that still
holds an id of a deleted row, or of an index that had to be thrown away, can never touch another object's grants.

SQLite in WAL mode with synchronous=NORMAL may lose the last transactions when the machine loses power, never its
consistency (https://www.sqlite.org/pragma.html#pragma_synchronous); a cache can afford the former.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
)
from sqlalchemy.pool import NullPool

from gateway.policies.breaker import FailureKind
from gateway.store.failures import DiskFault

SCHEMA_VERSION = 2

metadata = MetaData()

blobs = Table(
    "blobs",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
    Column("last_used", Float, nullable=False),
    Column("mtime_ns", BigInteger, nullable=False),
    Column("boot", BigInteger, nullable=False),
    Column("item", Integer, nullable=False, server_default="0"),
    Index("blobs_by_use", "last_used"),
    sqlite_with_rowid=False,
)

objects = Table(
    "objects",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("etag", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("last_modified", Text, nullable=False),
    Column("headers", Text, nullable=False),
    Column("checksums", Text),
    Column("block_size", BigInteger, nullable=False),
    Column("confirmed_at", Float, nullable=False),
    UniqueConstraint("origin", "bucket", "key"),
    sqlite_autoincrement=True,
)

object_blocks = Table(
    "object_blocks",
    metadata,
    Column("object_id", Integer, ForeignKey("objects.id", ondelete="CASCADE"), primary_key=True),
    Column("no", Integer, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Index("object_blocks_by_digest", "digest"),
    sqlite_with_rowid=False,
)

grants = Table(
    "grants",
    metadata,
    Column("object_id", Integer, ForeignKey("objects.id", ondelete="CASCADE"), primary_key=True),
    Column("identity", Text, primary_key=True),
    Column("granted_at", Float, nullable=False),
    sqlite_with_rowid=False,
)

spaces = Table(
    "spaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("blobs", BigInteger, nullable=False),
)

meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", BigInteger, nullable=False))

_TRIGGERS = (
    "CREATE TRIGGER IF NOT EXISTS blob_added AFTER INSERT ON blobs BEGIN "
    "UPDATE spaces SET bytes = bytes + NEW.size, blobs = blobs + 1 WHERE name = 'node'; END",
    "CREATE TRIGGER IF NOT EXISTS blob_removed AFTER DELETE ON blobs BEGIN "
    "UPDATE spaces SET bytes = bytes - OLD.size, blobs = blobs - 1 WHERE name = 'node'; END",
)


def open_engine(path: Path, *, patience: float) -> Engine:
    """An engine on the index at ``path``; a statement waits ``patience`` seconds for another process's lock.

    Connections are in autocommit mode: transactions are begun and ended by statements.
    """
    return create_engine(
        f"sqlite:///{path}", poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args={"timeout": patience}
    )


def prepare_connection(connection: Connection) -> None:
    """Set what SQLite keeps per connection; sizes bound the memory of a worker."""
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "cache_size = -8192",
        "journal_size_limit = 67108864",
    ):
        connection.exec_driver_sql(f"PRAGMA {pragma}").close()


def rollback(connection: sqlite3.Connection) -> None:
    """End a transaction without its effects, unless SQLite has already done so, as it does on a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def driver_of(connection: Connection) -> sqlite3.Connection:
    """The driver's connection behind one of SQLAlchemy."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def create_schema(connection: Connection, born: int) -> None:
    """Create what is missing, in one transaction; ``born`` (nanoseconds since the epoch) is noted in a new index.

    Raises:
        DiskFault: CORRUPT, when the index was written by a version of Larder with another schema.
    """
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        metadata.create_all(connection)
        for statement in _TRIGGERS:
            connection.exec_driver_sql(statement)
        first_id = int.from_bytes(os.urandom(5), "little") + 1
        new = connection.exec_driver_sql("INSERT OR IGNORE INTO meta VALUES ('born', ?)", (born,)).rowcount
        if new:
            connection.exec_driver_sql("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
            connection.exec_driver_sql("INSERT INTO spaces VALUES ('node', 0, 0)")
            connection.exec_driver_sql("INSERT INTO sqlite_sequence VALUES ('objects', ?)", (first_id,))
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        rollback(driver_of(connection))
        raise
    found = connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'schema'").scalar()
    if found != SCHEMA_VERSION:
        raise DiskFault(FailureKind.CORRUPT, f"index has schema {found}, this version needs {SCHEMA_VERSION}")
