"""Migrations of the catalog's tables, by Alembic (``upgrading.py``), in one transaction under one lock.

Alembic is imported only for a catalog of another revision.

On SQLite the transaction is the lock. On PostgreSQL it is an advisory lock for the transaction, because tables that do not exist
cannot be locked. Migrations only add, so gateways of the previous version keep working during a rolling upgrade.

Tables are created only for a new catalog. A file that is missing or empty beside the key of a catalog is a lost catalog: new
tables would make revoked keys valid again. A database on a server without tables is lost too, if this machine has read changes
from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select, text

from gateway.admin.catalog.database import PATIENCE, CatalogDatabase, create_file, was_begun, witnesses
from gateway.admin.catalog.schema import REVISION, meta, metadata
from gateway.base.imports import imported
from gateway.model.errors import CatalogUnavailable, ConfigError
from gateway.store.files.threads import within

_LOCK = 0x6C61_7264_6572
"""The number of the advisory lock: "larder" in hexadecimal."""
_UPGRADING = "gateway.admin.catalog.upgrading"
_VERSION = Table("alembic_version", MetaData(), Column("version_num", Text, primary_key=True))
"""Alembic's own table: one row, the revision."""


async def migrate(database: CatalogDatabase) -> tuple[str, str]:
    """Bring the tables up to date.

    Returns:
        The revision before, empty for a new database, and the revision now.

    Raises:
        CatalogUnavailable: the database cannot be reached, or refuses the change; nothing was changed.
        ConfigError: the catalog was written by a newer version of Larder, tables of its revision are missing, or the file of a
            catalog is missing or empty.
    """
    if database.path is not None:
        await within(PATIENCE, partial(_prepare, database.path))
    async with database.reading() as connection:
        revision, missing = await connection.run_sync(_revision_and_missing)
    if revision and missing:
        raise ConfigError(
            f"database.url: the catalog is marked as revision {revision}, but lacks the tables {', '.join(missing)}; "
            "restore the backup. To start over, with nothing revoked, first drop alembic_version and the remaining tables"
        )
    if revision == REVISION:
        return revision, revision
    if not revision and (written := await within(PATIENCE, partial(read_before, database))) is not None:
        raise ConfigError(f"database.url: {lost_tables(written, 'has no tables')}")
    upgrade = (await asyncio.to_thread(imported, _UPGRADING)).upgrade
    async with database.writing() as connection:
        if database.shared:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        return await connection.run_sync(_upgrade, upgrade, database.path)


def _prepare(path: Path) -> None:
    # In this order: the key of a catalog is written after its file.
    if was_begun(path) and not path.exists():
        raise _lost(path, "is missing")
    try:
        create_file(path)
    except OSError as error:
        raise CatalogUnavailable(f"{path}: {error.strerror}") from None


def read_before(database: CatalogDatabase) -> Path | None:
    """The marker that this machine has read changes from a server; ``None`` without one. Blocks."""
    written = database.written
    return written if written is not None and written.exists() else None


def lost_tables(written: Path, what: str) -> str:
    """The error message for a lost catalog on a server, with its remedy."""
    return (
        f"it {what}, though this gateway has read changes in it before; restore the backup, or all revocations are lost. "
        f"To begin anew, with nothing revoked, remove {written} at every gateway"
    )


def _lost(path: Path, what: str) -> ConfigError:
    witness = next(file for file in witnesses(path) if file.exists())
    return ConfigError(
        f"{path}: {what}, though {witness} of its catalog exists; restore it from the backup, or all revocations are lost. "
        f"To begin anew, remove {witness.name} too"
    )


def revision_of(connection: Connection) -> str:
    """The revision of the tables; empty for none."""
    if not inspect(connection).has_table(_VERSION.name):
        return ""
    return connection.scalar(select(_VERSION.c.version_num)) or ""


def _revision_and_missing(connection: Connection) -> tuple[str, list[str]]:
    """The revision of the tables, and those of this revision that are missing."""
    there, revision = set(inspect(connection).get_table_names()), revision_of(connection)
    wanted = metadata.tables if revision == REVISION else (meta.name,)
    return revision, sorted({*wanted} - there)


def _upgrade(connection: Connection, upgrade: Callable[[Connection, str], None], path: Path | None) -> tuple[str, str]:
    revision = revision_of(connection)
    # Under the lock: a gateway that starts at the same moment has committed its tables before it writes the key.
    if not revision and path is not None and was_begun(path):
        raise _lost(path, "has no tables")
    if revision != REVISION:
        upgrade(connection, revision)
    return revision, REVISION
