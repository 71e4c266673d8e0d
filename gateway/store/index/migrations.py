"""The index's schema, brought up to date in place: a cache that an older version of Larder filled is kept.

Each step leads from one version to the next. All of it is one transaction, so a migration that was killed has not happened, and
the next start does it. Making the index over the ranks takes about a second per million blobs; until then the cache is not used.

An index of a newer version is left alone: this version cannot read it, and does not know what it would lose.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from gateway.policies.breaker import FailureKind
from gateway.store.failures import DiskFault
from gateway.store.index.schema import DEFAULT_POOL, NODE, SCHEMA_VERSION, create_schema, driver_of, pools, rollback


def migrate(connection: Connection, born: int) -> None:
    """Bring the index to this version's schema; ``born`` (nanoseconds since the epoch) is noted in a new one.

    Raises:
        DiskFault: NEWER, when a newer version of Larder wrote the index, which is left as it is; CORRUPT, when no version did.
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
    """The version of an index; of a new one, this version's."""
    if not connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'meta'").scalar():
        return SCHEMA_VERSION
    found = connection.exec_driver_sql("SELECT value FROM meta WHERE name = 'schema'").scalar()
    if found is not None and found > SCHEMA_VERSION:
        raise DiskFault(
            FailureKind.NEWER,
            f"index.db was written by a newer version of Larder (schema {found}, this version has {SCHEMA_VERSION}); "
            "it is left as it is. Install that version, or give this one another cache.dir",
        )
    if found != SCHEMA_VERSION and found not in _STEPS:
        raise DiskFault(FailureKind.CORRUPT, f"index.db has schema {found}, which no version of Larder wrote")
    return int(found)


def _from_2(connection: Connection) -> None:
    """Pools and ranks: the time of last use becomes the rank, and everything is in the pool ``default``."""
    for statement in (
        "DROP TRIGGER IF EXISTS blob_added",
        "DROP TRIGGER IF EXISTS blob_removed",
        "DROP INDEX IF EXISTS blobs_by_use",
        "ALTER TABLE blobs RENAME COLUMN last_used TO rank",
        f"ALTER TABLE blobs ADD COLUMN pool INTEGER NOT NULL DEFAULT {DEFAULT_POOL}",
        # Version 2 wrote times ten years ahead for what the fleet's plan had given space to.
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


_STEPS: dict[int, Callable[[Connection], None]] = {2: _from_2}
"""By the version that a step leads on from."""
