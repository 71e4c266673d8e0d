"""A database that answers, but has not the tables of the catalog."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.admin.catalog import migrating
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.database import witnesses
from gateway.admin.catalog.following import Follower
from gateway.admin.catalog.schema import metadata
from gateway.admin.catalog.snapshot import Snapshot
from gateway.model.errors import CatalogUnavailable, CatalogUnusable, ConfigError
from rig.processes import wait_until
from tests.admin.admin_world import KEY, AdminWorld, Clock
from tests.admin.postgres_server import PostgresServer


def kind_of(follower: Follower) -> str:
    """The kind of problem that a follower reports; empty if none."""
    return follower.trouble.kind if follower.trouble is not None else ""


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("ALTER TABLE meta RENAME TO away", "ALTER TABLE away RENAME TO meta"),
        (
            "ALTER TABLE credentials RENAME COLUMN secrets TO away",
            "ALTER TABLE credentials RENAME COLUMN away TO secrets",
        ),
    ],
)
async def test_a_database_without_the_tables_is_one_problem_and_one_line(
    catalog_url: str, catalog_key: str, broken: str, mended: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: missing or different tables leave the last snapshot in force, and are logged once without a traceback."""
    async with AdminWorld.opened(catalog_url, catalog_key) as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
        looks = itertools.count()

        async def pause(_seconds: float) -> None:
            if next(looks) == 5:
                raise EndOfTest

        await _run(world.catalog, broken)
        # Somebody may still have changed it: what is new cannot be read either.
        world.catalog.last = replace(world.catalog.last, mark="another")
        follower = Follower(world.catalog, pause)
        with pytest.raises(EndOfTest):
            await follower.run()
        assert kind_of(follower) == "catalog-tables"
        assert "stays in force" in follower.trouble.what
        assert "larder-gateway migrate" in follower.trouble.remedy
        assert world.refusal("vision", secret) == ""
        assert [(line.levelname, line.exc_info) for line in caplog.records if line.name == "larder.admin"] == [
            ("WARNING", None)
        ]
        await _run(world.catalog, mended)
        await follower.look()
        assert follower.trouble is None


async def test_a_user_without_rights_is_told_from_a_database_that_is_away(postgres: PostgresServer) -> None:
    """Rule: PostgreSQL that denies the tables to the gateway's user is reachable; the remedy is about the tables."""
    url = postgres.database()
    name = url.rpartition("/")[2]
    async with AdminWorld.opened(url, KEY):
        postgres.ask(f"CREATE ROLE guest_{name} LOGIN", name)
        guest = Catalog(url.replace("//larder@", f"//guest_{name}@"), KEY, Clock())
        follower = Follower(guest)
        await follower.look()
        assert kind_of(follower) == "catalog-tables"
        await guest.close()


async def test_a_catalog_that_was_begun_anew_revokes_no_revocation(catalog_url: str, catalog_key: str) -> None:
    """Rule: running gateways refuse an empty catalog in the place of one with changes; revoked keys stay revoked."""
    async with AdminWorld.opened(catalog_url, catalog_key) as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
        await world.ask("POST", "/credentials/vision/revoke", 200)
        for table in (*metadata.tables, "alembic_version"):
            await _run(world.catalog, f"DROP TABLE {table}")
        if (path := world.catalog.database.path) is not None:
            for witness in witnesses(path):
                witness.unlink(missing_ok=True)
        await migrating.migrate(world.catalog.database)
        follower = Follower(world.catalog)
        await follower.look()
        assert kind_of(follower) == "catalog-tables"
        assert world.refusal("vision", secret) == "InvalidAccessKeyId"


async def test_lost_tables_on_a_server_are_not_made_anew_by_a_restart(postgres: PostgresServer, tmp_path: Path) -> None:
    """Rule: a gateway that has read changes in a catalog refuses it without its tables, and with empty ones that another gateway
    made, also after a restart; restored, or where the note is removed, it is used."""
    url = postgres.database()
    async with AdminWorld.opened(url, KEY, home=tmp_path) as world:
        await world.create(access_key_id="vision")
        await world.ask("POST", "/credentials/vision/revoke", 200)
        note = world.catalog.database.written
        await asyncio.to_thread(wait_until, note.exists, 30, "the note that the catalog was written to")
        for table in (*metadata.tables, "alembic_version"):
            await _run(world.catalog, f"ALTER TABLE {table} RENAME TO away_{table}")
    again = Catalog(url, KEY, Clock(), tmp_path)
    with pytest.raises(ConfigError, match=r"has no tables.*restore the backup"):
        await again.look()
    await again.close()
    for table in (*metadata.tables, "alembic_version"):
        postgres.ask(f"ALTER TABLE away_{table} RENAME TO {table}", url.rpartition("/")[2])
    async with AdminWorld.opened(url, KEY, home=tmp_path) as world:
        assert "vision" in world.catalog.last.revocations
        for table in (*metadata.tables, "alembic_version"):
            await _run(world.catalog, f"DROP TABLE {table} CASCADE")
    await _opened(Catalog(url, KEY, Clock()))
    with pytest.raises(CatalogUnusable, match=r"is empty.*restore the backup"):
        await _opened(Catalog(url, KEY, Clock(), tmp_path))
    note.unlink()
    await _opened(Catalog(url, KEY, Clock(), tmp_path))


async def _opened(catalog: Catalog) -> None:
    try:
        await catalog.look()
    finally:
        await catalog.close()


async def test_a_read_that_does_not_end_bounds_no_look(
    catalog_url: str, catalog_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: reading a catalog on a hung disk fails like reading an unreachable one; the pending read continues."""
    catalog = Catalog(catalog_url, catalog_key, Clock())
    catalog.longest_read = 0.01
    answers, read = asyncio.Event(), catalog._read

    async def late() -> Snapshot:
        await answers.wait()
        return await read()

    monkeypatch.setattr(catalog, "_read", late)
    for _ in range(2):
        with pytest.raises(CatalogUnavailable, match="did not answer"):
            await catalog.look()
    answers.set()
    catalog.longest_read = 60.0
    assert (await catalog.look()).version == 0
    await catalog.close()


async def test_migrate_says_which_tables_were_lost(catalog_url: str, catalog_key: str) -> None:
    """Rule: a database that says it has all tables, and lacks some, is not called up to date."""
    async with AdminWorld.opened(catalog_url, catalog_key) as world:
        await _run(world.catalog, "DROP TABLE tenants")
        with pytest.raises(ConfigError, match="lacks the tables tenants; restore the backup"):
            await migrating.migrate(world.catalog.database)


class EndOfTest(BaseException):
    """Enough looks were taken."""


async def _run(catalog: Catalog, statement: str) -> None:
    async with catalog.database.writing() as connection:
        await connection.execute(text(statement))
