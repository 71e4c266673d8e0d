"""The index's tables, and how a connection to them is opened.

``blobs`` and ``objects`` are joined by ``object_blocks``; every object is tied to at least one blob, and every blob to at least
one object, unless it is stored for its own sake as an item of a dataset (``item``), found by its digest. Row ids of objects
start at a random number and are never reused: a worker that holds the id of a deleted row, or of a discarded index, can never
touch another object's grants.

Every blob is charged to one of ``pools`` and has a rank in its eviction order (gateway/policies/pools.py); the pool with the id
``NODE`` counts all blobs. Triggers keep the counts in ``pools``, inside the transaction that changes ``blobs`` or ``ghosts``, so
they are right whichever worker writes. ``ghosts`` are evicted blobs that a pool's order remembers.

A tie with ``start``, ``length`` and ``crc32`` is of a part of its blob: an element of a page of results (result_rows.py). The
``elements`` of a blob are the parts that something is tied to, 1 for other blobs.

``seal`` is the checksum of a row (seals.py).

SQLite in WAL mode with synchronous=NORMAL may lose the last transactions at a power failure, never its
consistency (https://www.sqlite.org/pragma.html#pragma_synchronous). A cache can afford that.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

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
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateIndex, CreateTable

from gateway.policies.pools import DEFAULT

T = TypeVar("T")
SCHEMA_VERSION = 5
PART = ("start", "length", "crc32")
"""The columns of a tie to a part of a blob; null in other ties."""
NODE, DEFAULT_POOL = 0, 1
"""Ids of pools: all blobs together, and ``policies.pools.DEFAULT``."""

ROWS = 64
"""Maximum rows of one statement: a power of two."""
_STATEMENTS = 256
"""Maximum statements that a connection keeps prepared. A long one takes 100 KB, so ``listed`` and ``insert`` use few lengths."""

metadata = MetaData()

blobs = Table(
    "blobs",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("crc32", BigInteger, nullable=False),
    Column("rank", Float, nullable=False),
    Column("mtime_ns", BigInteger, nullable=False),
    Column("boot", BigInteger, nullable=False),
    Column("item", Integer, nullable=False, server_default="0"),
    Column("pool", Integer, nullable=False, server_default=str(DEFAULT_POOL)),
    Column("elements", Integer, nullable=False, server_default="1"),
    Index("blobs_by_rank", "pool", "rank"),
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
    Column("seal", BigInteger),
    UniqueConstraint("origin", "bucket", "key"),
    sqlite_autoincrement=True,
)

object_blocks = Table(
    "object_blocks",
    metadata,
    Column("object_id", Integer, ForeignKey("objects.id", ondelete="CASCADE"), primary_key=True),
    Column("no", Integer, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("seal", BigInteger),
    *(Column(name, BigInteger) for name in PART),
    Index("object_blocks_by_digest", "digest"),
    sqlite_with_rowid=False,
)

grants = Table(
    "grants",
    metadata,
    Column("object_id", Integer, ForeignKey("objects.id", ondelete="CASCADE"), primary_key=True),
    Column("identity", Text, primary_key=True),
    Column("granted_at", Float, nullable=False),
    Column("seal", BigInteger),
    sqlite_with_rowid=False,
)

pools = Table(
    "pools",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("eviction", Text, nullable=False),
    Column("target", BigInteger, nullable=False),
    Column("minimum", BigInteger, nullable=False, server_default="0"),
    Column("retired", Integer, nullable=False, server_default="0"),
    Column("adapted", Float, nullable=False, server_default="0"),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in ("bytes", "blobs", "fresh", "ghosts", "fresh_ghosts")
    ),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in ("hits", "misses", "ghost_hits", "evicted_blobs", "evicted_bytes", "elements")
    ),
)

ghosts = Table(
    "ghosts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("rank", Float, nullable=False),
    Column("fresh", Integer, nullable=False),
    UniqueConstraint("pool", "digest"),
    Index("ghosts_by_age", "pool", "fresh", "id"),
    sqlite_autoincrement=True,
)

meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", BigInteger, nullable=False))

_ADD = (
    "UPDATE pools SET bytes = bytes + NEW.size, blobs = blobs + 1, elements = elements + NEW.elements, "
    "fresh = fresh + NEW.size * (NEW.rank < 0) WHERE id IN ({pools}); "
)
_SUBTRACT = (
    "UPDATE pools SET bytes = bytes - OLD.size, blobs = blobs - 1, elements = elements - OLD.elements, "
    "fresh = fresh - OLD.size * (OLD.rank < 0) WHERE id IN ({pools}); "
)
_TRIGGERS = (
    f"CREATE TRIGGER IF NOT EXISTS blob_added AFTER INSERT ON blobs BEGIN {_ADD.format(pools=f'{NODE}, NEW.pool')}END",
    f"CREATE TRIGGER IF NOT EXISTS blob_removed AFTER DELETE ON blobs BEGIN {_SUBTRACT.format(pools=f'{NODE}, OLD.pool')}END",
    "CREATE TRIGGER IF NOT EXISTS blob_moved AFTER UPDATE OF pool, rank, elements ON blobs "
    "WHEN OLD.pool <> NEW.pool OR (OLD.rank < 0) <> (NEW.rank < 0) OR OLD.elements <> NEW.elements BEGIN "
    f"{_SUBTRACT.format(pools=f'{NODE}, OLD.pool')}{_ADD.format(pools=f'{NODE}, NEW.pool')}END",
    "CREATE TRIGGER IF NOT EXISTS ghost_added AFTER INSERT ON ghosts BEGIN UPDATE pools SET "
    "ghosts = ghosts + NEW.size, fresh_ghosts = fresh_ghosts + NEW.size * NEW.fresh WHERE id = NEW.pool; END",
    "CREATE TRIGGER IF NOT EXISTS ghost_removed AFTER DELETE ON ghosts BEGIN UPDATE pools SET "
    "ghosts = ghosts - OLD.size, fresh_ghosts = fresh_ghosts - OLD.size * OLD.fresh WHERE id = OLD.pool; END",
)


def open_engine(path: Path, *, patience: float) -> Engine:
    """An engine on the index at ``path``; a statement waits ``patience`` seconds for another process's lock.

    Connections are in autocommit mode: transactions are begun and ended by statements.
    """
    return create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": patience, "cached_statements": _STATEMENTS},
    )


def prepare_connection(connection: Connection) -> None:
    """Set SQLite's options of a connection; sizes bound the memory of a worker."""
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "cache_size = -8192",
        "journal_size_limit = 67108864",
    ):
        connection.exec_driver_sql(f"PRAGMA {pragma}").close()


def listed(values: Sequence[T]) -> tuple[str, tuple[T, ...]]:
    """The ``?`` marks for a list after ``IN``, and its values, padded with the last one to a power of two, so that few
    statements are prepared.
    """
    if not values:
        return "", ()
    count = 1 << (len(values) - 1).bit_length()
    return ",".join("?" * count), (*values, *repeat(values[-1], count - len(values)))


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]]) -> int:
    """Insert rows; returns the last row's number. ``table`` is the table's name with its columns in brackets.

    A statement inserts ``ROWS`` rows, or a smaller power of two. A conflict rolls the whole transaction back. To undo one
    statement, SQLite would copy each page before a change, into a temporary file above 16 pages.
    """
    last = start = 0
    while start < len(rows):
        count = min(ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        page = rows[start : start + count]
        written = connection.execute(_insertion(table, len(page[0]), count), tuple(chain.from_iterable(page)))
        last = written.lastrowid or 0
        start += count
    return last


@lru_cache(maxsize=_STATEMENTS)
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT OR ROLLBACK INTO {table} VALUES {','.join([row] * rows)}"  # noqa: S608 - "?" only


def rollback(connection: sqlite3.Connection) -> None:
    """End a transaction without effect, unless SQLite has already done so, for example on a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def driver_of(connection: Connection) -> sqlite3.Connection:
    """The driver's connection behind an SQLAlchemy connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


@cache
def _definitions() -> tuple[str, ...]:
    """Statements that create missing tables and their indices. SQLAlchemy would first ask for each table."""
    statements: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        statements.append(CreateTable(table, if_not_exists=True))
        statements.extend(CreateIndex(index, if_not_exists=True) for index in table.indexes)
    return tuple(str(statement.compile(dialect=sqlite.dialect())) for statement in statements)


def create_schema(connection: Connection, born: int) -> None:
    """Create missing tables, inside a transaction; ``born`` (nanoseconds since the epoch) is stored in a new index."""
    for statement in (*_definitions(), *_TRIGGERS):
        connection.exec_driver_sql(statement)
    first_id = int.from_bytes(os.urandom(5), "little") + 1
    if connection.exec_driver_sql("INSERT OR IGNORE INTO meta VALUES ('born', ?)", (born,)).rowcount:
        connection.exec_driver_sql("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
        connection.exec_driver_sql("INSERT INTO sqlite_sequence VALUES ('objects', ?)", (first_id,))
    for number, name in ((NODE, "node"), (DEFAULT_POOL, DEFAULT)):
        connection.exec_driver_sql(
            "INSERT OR IGNORE INTO pools (id, name, eviction, target) VALUES (?, ?, ?, 0)", (number, name, "lru")
        )
