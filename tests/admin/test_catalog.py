"""The catalog: changes that are whole, secrets that are sealed, and what happens when the database is not there."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.admin.catalog import database, migrating
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor, Changes
from gateway.admin.catalog.following import PAUSE, Follower
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.schema import REVISION, audit, credentials, meta, metadata, revocations, tenants
from gateway.admin.catalog.snapshot import Snapshot
from gateway.admin.catalog.upgrading import SCRIPTS
from gateway.admin.catalog.vault import file_vault
from gateway.admin.fleet.overrides import Decision, write_decision
from gateway.model.datasets import ApiError
from gateway.model.errors import CatalogUnavailable, ConfigError
from gateway.policies.space.overrides import Overrides
from tests.admin.admin_world import KEY, AdminWorld, Clock
from tests.admin.postgres_server import PostgresServer

ACTOR = Actor("admin", "192.0.2.7", "request-1", TokenRole.ADMIN)
TENANT = {"name": "vision", "description": "", "enabled": True, "created_at": 0.0}


async def add_tenant(catalog: Catalog, name: str = "vision") -> None:
    """A change."""
    async with catalog.changes.change(ACTOR, "tenants.create", name) as change:
        await change.connection.execute(insert(tenants).values(**{**TENANT, "name": name}, revision=change.revision))


async def lines(catalog: Catalog) -> list[str]:
    """The targets in the audit log, in order."""
    async with catalog.database.reading() as connection:
        return list((await connection.execute(select(audit.c.target).order_by(audit.c.id))).scalars())


async def test_gateways_that_start_together_begin_one_catalog(catalog_url: str, catalog_key: str) -> None:
    """Rule: all workers of a new deployment start at once; the tables are made once, and all have the same key."""
    catalogs = [Catalog(catalog_url, catalog_key, Clock()) for _ in range(6)]
    try:
        snapshots = await asyncio.gather(*(catalog.look() for catalog in catalogs))
        assert [snapshot.version for snapshot in snapshots] == [0] * 6
        sealed = catalogs[0].vault.seal("somebody", {"secret": "x"})
        assert [catalog.vault.open("somebody", sealed) for catalog in catalogs] == [{"secret": "x"}] * 6
    finally:
        for catalog in catalogs:
            await catalog.close()


async def test_the_migrations_make_what_the_code_expects(admin: AdminWorld) -> None:
    """Rule: schema.py and the migrations say the same, or a new column works on the author's machine only."""

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with admin.catalog.database.reading() as connection:
        assert await connection.run_sync(differences) == []


async def test_text_that_the_database_cannot_have_is_not_an_outage(admin: AdminWorld) -> None:
    """Rule: U+0000, which PostgreSQL refuses in text, is the caller's mistake; the catalog is not reported as unreachable."""
    refused = pytest.raises(ApiError, match=r"U\+0000") if admin.catalog.database.shared else nullcontext()
    with refused:
        async with admin.catalog.database.reading() as connection:
            await connection.execute(select(tenants).where(tenants.c.name == "\0"))


def test_the_revision_of_the_tables_is_the_last_scripts() -> None:
    """Rule: a start compares the catalog with a constant instead of asking Alembic for its last script."""
    assert ScriptDirectory(str(SCRIPTS)).get_current_head() == REVISION


class EndedHalfWay(BaseException):
    """Ends a migration with an exception that no handler expects."""


async def test_a_migration_that_fails_half_way_leaves_nothing(
    catalog_url: str, catalog_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the tables of a migration are made together with the note that they were made, or not at all."""
    upgrade = migrating._upgrade

    def breaking(*arguments: Any) -> tuple[str, str]:
        upgrade(*arguments)
        raise EndedHalfWay

    monkeypatch.setattr(migrating, "_upgrade", breaking)
    broken = Catalog(catalog_url, catalog_key, Clock())
    with pytest.raises(EndedHalfWay):
        await broken.look()
    async with broken.database.reading() as connection:
        assert await connection.run_sync(migrating.revision_of) == ""
    await broken.close()
    monkeypatch.undo()
    whole = Catalog(catalog_url, catalog_key, Clock())
    assert (await whole.look()).version == 0
    await whole.close()


async def test_a_catalog_of_a_newer_version_is_refused(admin: AdminWorld, catalog_url: str, catalog_key: str) -> None:
    """Rule: a gateway refuses a catalog of a newer version."""
    async with admin.catalog.database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    older = Catalog(catalog_url, catalog_key, Clock())
    with pytest.raises(ConfigError, match="newer version of Larder"):
        await older.look()
    await older.close()


async def test_a_change_that_fails_leaves_nothing(admin: AdminWorld) -> None:
    """Rule: a failed change leaves neither rows, nor an audit line, nor a new version."""
    catalog = admin.catalog

    async def fail() -> None:
        async with catalog.changes.change(ACTOR, "tenants.create", "vision") as change:
            await change.connection.execute(insert(tenants).values(**TENANT, revision=change.revision))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await catalog.look() == Snapshot(0)
    assert await lines(catalog) == []


async def test_changes_at_the_same_time_come_one_after_the_other(admin: AdminWorld) -> None:
    """Rule: concurrent changes get distinct versions and one audit line each."""
    await asyncio.gather(*(add_tenant(admin.catalog, f"t{number}") for number in range(8)))
    snapshot = await admin.catalog.look()
    assert snapshot.version == 8
    assert sorted(row.revision for row in snapshot.tenants.values()) == list(range(1, 9))
    assert sorted(await lines(admin.catalog)) == sorted(snapshot.tenants)


async def test_another_worker_sees_a_change_when_it_looks(
    admin: AdminWorld, catalog_url: str, catalog_key: str
) -> None:
    """Rule: a follower gets each change once."""
    other = Catalog(catalog_url, catalog_key, Clock())
    heard: list[int] = []

    async def hear(snapshot: Snapshot) -> None:
        heard.append(snapshot.version)

    other.follow(hear)
    await other.look()
    await add_tenant(admin.catalog)
    await other.look()
    await other.look()
    assert heard == [0, 1]
    assert list((await other.latest()).tenants) == ["vision"]
    await other.close()


async def test_another_worker_follows_an_override(admin: AdminWorld, catalog_url: str, catalog_key: str) -> None:
    """Rule: an override is in force at every worker once it has looked, and so is its end."""
    other = Catalog(catalog_url, catalog_key, Clock())
    pinned, reset = Decision("pin", 5, changed_at=1.0), Decision(changed_at=2.0)
    for decision, overrides in ((pinned, Overrides({"d": "pin"}, {"d": 5})), (reset, Overrides())):
        async with admin.catalog.changes.change(ACTOR, "datasets.override", "d") as change:
            await write_decision(change.connection, "d", decision)
        await other.look()
        assert admin.catalog.overrides == other.overrides == overrides
    await other.close()


async def test_followers_poll_twice_a_second(admin: AdminWorld) -> None:
    """Rule: followers see a revocation within half a second, with or without Redis."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise asyncio.CancelledError
        await add_tenant(admin.catalog)

    seen = admin.catalog.last
    assert seen is not None
    other = Follower(admin.catalog, wait)
    with suppress(asyncio.CancelledError):
        await other.run()
    assert waited == [PAUSE, PAUSE]
    assert PAUSE <= 0.5
    assert admin.catalog.last is not None
    assert admin.catalog.last.version == seen.version + 1


async def test_being_told_is_quicker_than_looking(admin: AdminWorld) -> None:
    """Rule: a woken follower polls at once."""
    follower = Follower(admin.catalog)
    follower.wake()
    await asyncio.wait_for(follower._pause(3600), 30)


async def test_a_secret_is_sealed_to_its_owner(admin: AdminWorld) -> None:
    """Rule: with write access to the database, and without its key, one key cannot be given another's secret."""
    for name in ("one", "other"):
        await admin.create(access_key_id=name)
    async with admin.catalog.changes.change(ACTOR, "test", "test") as change:
        secrets = await change.connection.scalar(
            select(credentials.c.secrets).where(credentials.c.access_key_id == "one")
        )
        await change.connection.execute(update(credentials).values(secrets=secrets))
    with pytest.raises(ConfigError, match="the secrets at credentials/other in the catalog belong to credentials/one"):
        await Catalog.look(admin.catalog)


async def test_another_key_is_refused_at_the_start(admin: AdminWorld, catalog_url: str) -> None:
    """Rule: a gateway with the wrong key refuses to start, with a message."""
    wrong = Catalog(catalog_url, KEY[::-1].replace("=", "A")[:43] + "=", Clock())
    with pytest.raises(ConfigError, match=r"is not the key that this catalog was begun with"):
        await wrong.look()
    await wrong.close()


async def test_a_lost_key_file_is_not_made_anew(tmp_path: Path) -> None:
    """Rule: a missing key file is an error; a new key would silently lose everything that was sealed."""
    url, file = f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", tmp_path / "catalog.db.key"
    first = Catalog(url, "", Clock())
    await first.look()
    await first.close()
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    second = Catalog(url, "", Clock())
    with pytest.raises(ConfigError, match=r"catalog\.db\.key: is missing.*restore it"):
        await second.look()
    assert not file.exists()
    await second.close()


async def test_what_a_killed_start_left_does_not_hinder_the_next(tmp_path: Path) -> None:
    """Rule: a start that was killed while it wrote the key file can be repeated, also under the same process id."""
    (tmp_path / f"catalog.db.key.{os.getpid()}").write_bytes(b"half a k")
    file_vault(tmp_path / "catalog.db.key", make=True)
    assert (tmp_path / "catalog.db.key").stat().st_mode & 0o777 == 0o600


async def test_no_secret_is_in_the_database(
    admin: AdminWorld, catalog_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Rule: secrets are sealed everywhere: in rows, in the audit log, in answers kept for Idempotency-Key."""
    told = [
        "tell-own-secret-1234",
        "tell-next-secret-567",
        "tell-origin-secret",
        "tell-origin-token",
        "tell-store-secret",
    ]
    body = {
        "access_key_id": "vision",
        "secret_access_key": told[0],
        "origin_access_key_id": "OK",
        "origin_secret_access_key": told[2],
        "origin_session_token": told[3],
    }
    await admin.ask("POST", "/credentials", 201, body, Idempotency_Key="1")
    rotation = {"grace": 60, "secret_access_key": told[1]}
    await admin.ask("POST", "/credentials/vision/rotate", 200, rotation, Idempotency_Key="2")
    await admin.ask(
        "POST", "/origins", 201,
        {"name": "o", "endpoint": "http://127.0.0.1:2", "access_key_id": "SK", "secret_access_key": told[4]},
    )  # fmt: skip
    await admin.ask("DELETE", "/credentials/vision", 204)
    if catalog_url.startswith("sqlite"):
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    else:
        name = catalog_url.rpartition("/")[2]
        content = repr([postgres.ask(f"SELECT * FROM {table}", name) for table in metadata.tables]).encode()
    assert b"vision" in content
    assert [secret for secret in told if secret.encode() in content] == []


async def test_what_was_read_last_stays_while_the_catalog_is_away(tmp_path: Path) -> None:
    """Rule: while the catalog is unreachable, polls have no effect and changes are refused whole; afterwards both resume."""
    file, away = tmp_path / "catalog.db", tmp_path / "elsewhere"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
        await world.ask("POST", "/credentials/vision/revoke", 200)
        file.rename(away)
        with pytest.raises(CatalogUnavailable):
            await world.catalog.look()
        assert not file.exists()
        assert world.refusal("vision", secret) == "InvalidAccessKeyId"
        assert len((await world.ask("GET", "/credentials", 200))["items"]) == 1
        problem = await world.ask("POST", "/tenants", 503, {"name": "t"})
        assert problem["code"] == "ServiceUnavailable"
        away.rename(file)
        await world.ask("POST", "/tenants", 201, {"name": "t"})


async def test_an_empty_file_in_the_place_of_the_catalog_is_no_catalog(tmp_path: Path) -> None:
    """Rule: an emptied file does not make revoked keys valid again."""
    file = tmp_path / "catalog.db"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
        await world.ask("POST", "/credentials/vision/revoke", 200)
        file.write_bytes(b"")
        with pytest.raises(CatalogUnavailable):
            await world.catalog.look()
        assert world.refusal("vision", secret) == "InvalidAccessKeyId"


async def test_a_catalog_that_was_restored_is_read_again(tmp_path: Path) -> None:
    """Rule: a backup has an older version, which is another one than the last, and so is read."""
    file = tmp_path / "catalog.db"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as world:
        await world.create(access_key_id="kept")
        backup = file.read_bytes()
        await world.create(access_key_id="lost")
        (tmp_path / "new").write_bytes(backup)
        os.replace(tmp_path / "new", file)
        assert list((await world.catalog.look()).credentials) == ["kept"]


async def test_a_database_that_takes_no_writes_is_said_to_be_so(tmp_path: Path) -> None:
    """Rule: if another process holds the lock for too long, a change fails as a whole; reads continue."""
    file = tmp_path / "catalog.db"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "", patience=0.1) as world:
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            problem = await world.ask("POST", "/tenants", 503, {"name": "t"})
            other.execute("ROLLBACK")
        other.close()
        assert "locked" in problem["detail"]
        assert (await world.ask("GET", "/tenants", 200))["items"] == []


async def test_a_postgresql_that_stops_and_comes_back(tmp_path: Path) -> None:
    """Rule: while PostgreSQL is unreachable, the last state stays in force, marked as such, and changes are refused."""
    with PostgresServer() as server:
        async with AdminWorld.opened(server.database(), KEY) as world:
            secret = (await world.create(access_key_id="vision"))["secret_access_key"]
            follower = Follower(world.catalog)
            await follower.look()
            server.stop()
            await follower.look()
            assert follower.trouble is not None
            for path in ("tenants", "credentials", "credentials/vision", "origins", "rules"):
                old = await world.http.get(f"/admin/{path}")
                assert (old.status_code, old.headers["x-larder-stale"]) == (200, "catalog"), path
            assert world.refusal("vision", secret) == ""
            await world.ask("POST", "/credentials/vision/revoke", 503)
            assert world.refusal("vision", secret) == ""
            server.start()
            await world.ask("POST", "/credentials/vision/revoke", 200)
            await follower.look()
            assert follower.trouble is None
            assert "x-larder-stale" not in (await world.http.get("/admin/credentials")).headers
            assert world.refusal("vision", secret) == "InvalidAccessKeyId"


async def test_a_version_is_read_as_a_whole(catalog_url: str, catalog_key: str) -> None:
    """Rule: a poll during a change sees all of it or nothing."""
    catalog = Catalog(catalog_url, catalog_key, Clock())
    if not catalog.database.shared:
        catalog.database.patience = 0.5  # a writer waits for the reader, in vain here
    await catalog.look()
    async with catalog.database.reading() as connection:
        assert await _version(connection) == "0"
        await _try_to_change(catalog)
        assert await _version(connection) == "0"
        assert (await connection.execute(select(tenants))).all() == []
    await catalog.close()


async def _version(connection: AsyncConnection) -> str:
    found = await connection.scalar(select(meta.c.value).where(meta.c.name == "version"))
    return str(found)


async def _try_to_change(catalog: Catalog) -> None:
    """Try to add a tenant; ignore a catalog that is unavailable."""
    with suppress(CatalogUnavailable):
        await add_tenant(catalog)


async def test_any_text_can_be_changed(admin: AdminWorld) -> None:
    """Rule: keys may have any characters, so the audit log takes them on either database."""
    async with admin.catalog.changes.change(ACTOR, "purge", "bucket/a\0b\N{GRINNING FACE}") as change:
        change.after = {"prefix": "a\0b"}
    assert await lines(admin.catalog) == ["bucket/a\N{SYMBOL FOR NULL}b\N{GRINNING FACE}"]


async def test_a_history_that_was_lost_is_no_longer_believed(
    catalog_url: str, catalog_key: str, admin: AdminWorld
) -> None:
    """Rule: after a failover to a standby that was behind, a revocation may get a version number that others have already read;
    it still takes effect."""
    other = Catalog(catalog_url, catalog_key, Clock())
    try:
        secret = (await admin.create(access_key_id="vision"))["secret_access_key"]
        lost = await admin.catalog.look()
        async with other.database.writing() as connection:
            await connection.execute(update(meta).where(meta.c.name == "version").values(value=str(lost.version - 1)))
        async with other.changes.change(ACTOR, "credentials.revoke", "vision") as change:
            row = {"access_key_id": "vision", "revoked_at": 0.0, "revision": change.revision}
            await change.connection.execute(insert(revocations).values(**row))
        assert (await other.look()).version == lost.version
        await admin.catalog.look()
        assert admin.refusal("vision", secret) == "InvalidAccessKeyId"
    finally:
        await other.close()


async def test_those_who_write_take_turns(tmp_path: Path) -> None:
    """Rule: on SQLite, changes that come together at one worker are all made, however little they may wait for a lock."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"
    async with AdminWorld.opened(url, ""):
        impatient = database.CatalogDatabase(url)
        impatient.patience = 0.0

        async def nothing(_withdrawn: object) -> None:
            return

        changes = Changes(impatient, Clock(), nothing)

        async def change(number: int) -> int:
            async with changes.change(ACTOR, "tenants.create", str(number)) as made:
                return made.revision

        assert sorted(await asyncio.gather(*map(change, range(20)))) == list(range(1, 21))
        await impatient.close()


async def test_a_lost_catalog_is_not_begun_anew(tmp_path: Path) -> None:
    """Rule: revoked keys of the file would be valid again in a new catalog; an operator who wants that removes its key too."""
    file = tmp_path / "catalog.db"
    url = f"sqlite+aiosqlite:///{file}"
    async with AdminWorld.opened(url, ""):
        pass
    file.unlink()
    with pytest.raises(ConfigError, match=r"catalog\.db: is missing"):
        async with AdminWorld.opened(url, ""):
            pass
    assert not file.exists()
    file.with_name("catalog.db.key").unlink()
    async with AdminWorld.opened(url, ""):
        pass


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize("by_command", [False, True])
async def test_an_emptied_catalog_is_not_begun_anew(tmp_path: Path, key: str, by_command: bool) -> None:
    """Rule: a file of 0 bytes, as a crash leaves it, counts as a lost catalog, for a key in a file or in the settings."""
    file = tmp_path / "catalog.db"
    url = f"sqlite+aiosqlite:///{file}"
    async with AdminWorld.opened(url, key) as world:
        await world.create(access_key_id="vision")
        await world.ask("POST", "/credentials/vision/revoke", 200)
    catalog = Catalog(url, key, Clock())
    first = migrating.migrate(catalog.database) if by_command else catalog.look()
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"catalog\.db: has no tables"):
        await first
    await catalog.close()


@pytest.mark.parametrize("left", [1, 100, 512, 4096, 4097, 20_000])
async def test_a_truncated_catalog_is_not_begun_anew(tmp_path: Path, left: int) -> None:
    """Rule: a file truncated at any length is refused; the gateway is not ready."""
    file = tmp_path / "catalog.db"
    url = f"sqlite+aiosqlite:///{file}"
    async with AdminWorld.opened(url, "") as world:
        await world.create(access_key_id="vision")
    file.write_bytes(file.read_bytes()[:left])
    catalog = Catalog(url, "", Clock())
    with pytest.raises((CatalogUnavailable, ConfigError)):
        await catalog.look()
    await catalog.close()


async def test_an_empty_key_file_is_no_key(tmp_path: Path) -> None:
    """Rule: a key that a crash has emptied is refused, and not replaced by a new one."""
    file = tmp_path / "catalog.db"
    url = f"sqlite+aiosqlite:///{file}"
    async with AdminWorld.opened(url, ""):
        pass
    file.with_name("catalog.db.key").write_bytes(b"")
    with pytest.raises(ConfigError, match="is not a key"):
        async with AdminWorld.opened(url, ""):
            pass
