"""``larder-gateway migrate``: what ``serve`` does at its start, for those who want it done before, by somebody else."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from gateway.admin.catalog.database import CatalogDatabase
from gateway.admin.catalog.migrating import migrate
from gateway.commands.grammar import describe, jsonable
from gateway.commands.output import document, line
from gateway.config import load_settings


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _migrate,
        "Bring the catalog's tables (database.url) up to this version. A gateway does so at its start; do it before where\n"
        "gateways may not change tables. Gateways of the version before go on working with the new tables.",
        "larder-gateway migrate --config /etc/larder/larder.toml",
    )
    command.add_argument("--config", metavar="FILE", type=Path, help="configuration whose database.url is meant")
    jsonable(command)


def _migrate(options: Namespace) -> int:
    settings = load_settings(options.config, os.environ)
    before, after = asyncio.run(_migrated(settings.catalog_url, Path(settings.cache.dir)))
    if options.json:
        document({"before": before or None, "after": after})
    elif before == after:
        line(f"the tables are up to date (revision {after})")
    else:
        line(f"the tables are at revision {after} now ({f'it was {before}' if before else 'there were none'})")
    return 0


async def _migrated(url: str, home: Path) -> tuple[str, str]:
    database = CatalogDatabase(url, home)
    try:
        return await migrate(database)
    finally:
        await database.close()
