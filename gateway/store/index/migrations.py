"""Migrates the index's schema in place, so that a cache filled by an older version of Larder is kept.

Each step migrates one version to the next. All steps run in one transaction, so a killed migration has no effect, and
the next start repeats it. Creating the index over the ranks takes about a second per million blobs; until then the cache is not
used.

An index of a newer version is left alone: this version can neither read it nor judge the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection

from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault
from gateway.store.index.schema import (
    DEFAULT_POOL,
    NODE,
    PART,
    SCHEMA_VERSION,
    create_schema,
    driver_of,
    pools,
    rollback,
)


def migrate(connection: Connection, born: int) -> None:
    """Migrate the index to this version's schema; ``born`` (nanoseconds since the epoch) is stored in a new index.

    Raises:
        DiskFault: NEWER if a newer version of Larder wrote the index, which is left unchanged; CORRUPT if no version of Larder
            wrote it.
    """
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        for version in range(_version(connection), SCHEMA_VERSION):
            _STEPS[version](connection)
        create_schema(connection, born)
        connection.exec_driver_sql("UPDATE meta SET value = ? WHERE name = 'schema'", (SCHEMA_VERSION,))
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        rollback(driver_of(connection))
        raise


def _version(connection: Connection) -> int:
    """The version of an index; for a new index, this version's."""
    if not connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'meta'").scalar():
        return SCHEMA_VERSION
    version = connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'schema'").scalar()
    if type(version) is not int:
        raise DiskFault(FailureKind.CORRUPT, f"index.db has schema {version!r}, which no version of Larder wrote")
    if version > SCHEMA_VERSION:
        raise DiskFault(
            FailureKind.NEWER,
            f"index.db was written by a newer version of Larder (schema {version}, this version has {SCHEMA_VERSION}); "
            "it is left unchanged. Install that version, or set another cache.dir",
        )
    if version != SCHEMA_VERSION and version not in _STEPS:
        raise DiskFault(FailureKind.CORRUPT, f"index.db has schema {version}, which no version of Larder wrote")
    return version


def _from_2(connection: Connection) -> None:
    """Pools and ranks: the time of last use becomes the rank, and everything is in the pool ``default``."""
    for statement in (
        "DROP TRIGGER IF EXISTS blob_added",
        "DROP TRIGGER IF EXISTS blob_removed",
        "DROP INDEX IF EXISTS blobs_by_use",
        "ALTER TABLE blobs RENAME COLUMN last_used TO rank",
        f"ALTER TABLE blobs ADD COLUMN pool INTEGER NOT NULL DEFAULT {DEFAULT_POOL}",
        # Version 2 marked blobs with granted space by times ten years ahead.
        "UPDATE blobs SET rank = CAST(strftime('%s') AS REAL) WHERE rank > CAST(strftime('%s') AS REAL)",
        "CREATE INDEX blobs_by_rank ON blobs (pool, rank)",
    ):
        connection.exec_driver_sql(statement)
    pools.create(connection)
    for number, name in ((NODE, "node"), (DEFAULT_POOL, "default")):
        connection.exec_driver_sql(
            "INSERT INTO pools (id, name, eviction, target, bytes, blobs) SELECT ?, ?, 'lru', 0, bytes, blobs FROM spaces",
            (number, name),
        )
    connection.exec_driver_sql("DROP TABLE spaces")


def _from_3(connection: Connection) -> None:
    """Checksums of rows. Older rows have none, because writing millions of checksums would keep the cache closed."""
    for table in ("objects", "object_blocks", "grants"):
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN seal BIGINT")


def _from_4(connection: Connection) -> None:
    """Ties to parts of blobs. What is stored has none; each blob counts as one element."""
    _add(connection, "object_blocks", dict.fromkeys(PART, "BIGINT"))
    _add(connection, "blobs", {"elements": "INTEGER NOT NULL DEFAULT 1"})
    _add(connection, "pools", {"elements": "BIGINT NOT NULL DEFAULT 0"})
    connection.exec_driver_sql("UPDATE pools SET elements = blobs")
    for trigger in ("blob_added", "blob_removed", "blob_moved"):
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")


def _add(connection: Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add columns, except those of a table that an earlier step has created as it is now."""
    known = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")}
    for name, kind in columns.items():
        if name not in known:
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


_STEPS: dict[int, Callable[[Connection], None]] = {2: _from_2, 3: _from_3, 4: _from_4}
"""Migration steps, by the version that they start from."""
