"""``larder-gateway migrate``: the migration that ``serve`` runs at its start, for deployments that run it separately."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.catalog.migrating import migrate
from gateway.base.config import load_settings
from gateway.commands.common.grammar import describe, jsonable
from gateway.commands.common.output import document, line


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _migrate,
        "Migrate the catalog's tables (database.url) to this version. A gateway does so at its start; run this first if\n"
        "gateways may not change tables. Gateways of the previous version keep working with the new tables.",
        "larder-gateway migrate --config /etc/larder/larder.toml",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="configuration with the database.url to migrate")
    jsonable(command)


def _migrate(options: Namespace) -> int:
    settings = load_settings(options.config, os.environ)
    before, after = asyncio.run(_migrated(settings.catalog_url, Path(settings.cache.dir)))
    if options.json:
        document({"before": before or None, "after": after})
    elif before == after:
        line(f"the tables are up to date (revision {after})")
    else:
        line(f"the tables are now at revision {after} ({f'previously {before}' if before else 'newly created'})")
    return 0


async def _migrated(url: str, home: Path) -> tuple[str, str]:
    database = CatalogDatabase(url, home)
    try:
        return await migrate(database)
    finally:
        await database.close()
