"""Brings the catalog's tables up to this version, by Alembic; only ``migrating.py`` imports this module, for a migration."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from gateway.model.errors import ConfigError

SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, revision: str) -> None:
    """Run the scripts after ``revision``, which is empty for a new database.

    Raises:
        ConfigError: the catalog was written by a newer version of Larder.
    """
    known = [script.revision for script in ScriptDirectory(str(SCRIPTS)).walk_revisions()]
    if revision and revision not in known:
        raise ConfigError(
            f"database.url: the catalog was written by a newer version of Larder (revision {revision}, this one knows "
            f"{known[0]}); run that version, or restore a backup"
        )
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
