"""The catalog's tables, brought up to date: Alembic's migrations, run in one transaction under one lock.

On SQLite the transaction itself is the lock. On PostgreSQL it is an advisory lock, which ends with the transaction: tables
that do not exist yet cannot be locked. Migrations only add: a gateway of the version before goes on working while its fleet is
replaced node by node.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from gateway.admin.catalog.database import Database
from gateway.admin.catalog.schema import meta, metadata
from gateway.model.errors import ConfigError

SCRIPTS = Path(__file__).parent / "migrations"
_LOCK = 0x6C61_7264_6572
"""The number of the advisory lock: "larder" in hexadecimal."""


async def migrate(database: Database) -> tuple[str, str]:
    """Bring the tables up to date; does nothing where they are.

    Returns:
        The revision that was there, empty for a new database, and the one that is there now.

    Raises:
        CatalogUnavailable: the database cannot be reached, or refuses; nothing was changed.
        ConfigError: it was written by a newer version of Larder, or tables that it says it has are missing.
    """
    async with database.reading() as connection:
        found, missing = await connection.run_sync(_found)
    if found and missing:
        raise ConfigError(
            f"database.url: the catalog is at revision {found} by its own word, but lacks the tables {', '.join(missing)}; "
            "restore the backup. To begin anew, with nothing revoked, drop alembic_version and what is left of the tables first"
        )
    if found == head():
        return found, found
    async with database.writing() as connection:
        if database.shared:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        return await connection.run_sync(_upgrade)


def revision_of(connection: Connection) -> str:
    """The revision of the tables, empty where there are none."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def _found(connection: Connection) -> tuple[str, list[str]]:
    """The revision of the tables, and those that are missing; a table of a later revision than that is not missed."""
    there, found = set(inspect(connection).get_table_names()), revision_of(connection)
    wanted = metadata.tables if found == head() else (meta.name,)
    return found, sorted({*wanted} - there)


def head() -> str:
    """The revision that this version of Larder has."""
    return ScriptDirectory(str(SCRIPTS)).get_current_head() or ""


def _upgrade(connection: Connection) -> tuple[str, str]:
    found = revision_of(connection)
    known = [script.revision for script in ScriptDirectory(str(SCRIPTS)).walk_revisions()]
    if found and found not in known:
        raise ConfigError(
            f"database.url: the catalog was written by a newer version of Larder (revision {found}, this one knows {known[0]}); "
            "run that version, or restore a backup"
        )
    if found != known[0]:
        config = Config()
        config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return found, known[0]
