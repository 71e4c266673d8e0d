"""Followers of the catalog: announcements, revocations, and gateways whose admin addresses were closed."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from gateway.admin.catalog import database
from gateway.admin.catalog.following import Announcements
from gateway.admin.catalog.migrating import migrate
from gateway.admin.catalog.withdrawals import KEY, TENANT, Withdrawal
from gateway.base.config import load_settings
from gateway.wiring.admin import has_catalog
from rig.gateways import Settings, gateway
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import SOON, Origin
from tests.admin.admin_world import AdminWorld, UnreadDatabase
from tests.admin.asked import TOKEN, ask, refusal

CHANNEL = "larder:test:catalog"
REFUSED = "InvalidAccessKeyId"


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis that can be killed."""
    with RedisServer() as server:
        yield server


async def test_a_change_is_said_through_redis(redis: RedisServer) -> None:
    """Rule: an announced change makes followers poll at once, also after a loss of Redis; announcing during it is no error."""
    said = Announcements(redis.url, CHANNEL)
    woken = asyncio.Queue[None]()

    async def withdraw(_withdrawals: Iterable[Withdrawal]) -> None:
        return

    hearing = asyncio.create_task(said.hear(lambda: woken.put_nowait(None), withdraw))
    try:
        await asyncio.wait_for(woken.get(), SOON)
        await said.say(())
        await asyncio.wait_for(woken.get(), SOON)
        await asyncio.to_thread(redis.kill)
        await said.say(())
        await asyncio.to_thread(redis.start)
        await asyncio.wait_for(woken.get(), SOON)
        await said.say(())
        await asyncio.wait_for(woken.get(), SOON)
    finally:
        hearing.cancel()
        await said.close()


async def test_rights_that_are_taken_away_are_kept_in_redis(redis: RedisServer) -> None:
    """Rule: a later follower gets withdrawals too, those made while Redis was lost included; unsigned ones are ignored."""
    one, other = (Announcements(redis.url, CHANNEL, "the secret of all nodes") for _ in range(2))
    forger = Announcements(redis.url, CHANNEL, "the secret of no node")
    elsewhere = Announcements(redis.url, "larder:other:catalog", "the secret of all nodes")
    early, late = (Withdrawal(KEY, name, version, 1.5) for name, version in (("early", 7), ("late", 8)))
    heard = asyncio.Queue[list[Withdrawal]]()

    async def withdraw(withdrawals: Iterable[Withdrawal]) -> None:
        heard.put_nowait(list(withdrawals))

    async def ignore(_withdrawals: Iterable[Withdrawal]) -> None:
        return

    await one.say([early])
    await forger.say([Withdrawal(KEY, "forged", 9, 1.5)])
    await elsewhere.say([Withdrawal(TENANT, "moved", 9, 1.5)])
    with Redis.from_url(redis.url) as client:
        place = f"{CHANNEL}:withdrawn"
        (moved,) = client.zrange("larder:other:catalog:withdrawn", 0, -1)
        client.zadd(place, {moved: 2e9, b"\xff": 2e9, b'{"what": []}': 2e9, b"[" * 100_000: 2e9})
        assert 0 < client.ttl(place) <= 86_400
    hearing = [asyncio.create_task(each.hear(lambda: None, then)) for each, then in ((one, ignore), (other, withdraw))]
    try:
        assert await asyncio.wait_for(heard.get(), SOON) == [early]
        await asyncio.to_thread(redis.kill)
        await one.say([late])
        await asyncio.to_thread(redis.start)
        while await asyncio.wait_for(heard.get(), SOON) != [late]:
            await one.say(())
    finally:
        for task in hearing:
            task.cancel()
        for each in (one, other, forger, elsewhere):
            await each.close()


async def test_what_was_taken_away_comes_back_by_the_catalog_only(tmp_path: Path) -> None:
    """Rule: a key or a tenant is refused until the catalog is read at that version or later; then the catalog alone counts."""
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", "") as world:
        await world.ask("POST", "/tenants", 201, {"name": "vision"})
        secrets = {
            name: (await world.create(access_key_id=name, tenant=tenant))["secret_access_key"]
            for name, tenant in (("one", ""), ("two", "vision"), ("three", ""))
        }
        known = (await world.catalog.look()).version
        await world.catalog.withdraw([Withdrawal(KEY, "three", known, 0.0)])
        assert world.refusal("three", secrets["three"]) == "", "the catalog knows better"
        later = [Withdrawal(KEY, "one", known + 1, 0.0), Withdrawal(TENANT, "vision", known + 2, 0.0)]
        await world.catalog.withdraw(later)
        await world.catalog.look()
        assert [world.refusal(name, secrets[name]) for name in secrets] == [REFUSED, REFUSED, ""]
        assert (await world.ask("GET", "/credentials/one", 200))["revoked"] is True
        assert (await world.ask("GET", "/tenants/vision", 200))["enabled"] is False
        await world.ask("POST", "/tenants", 201, {"name": "other"})
        assert [world.refusal(name, secrets[name]) for name in secrets] == ["", REFUSED, ""]
        await world.ask("POST", "/tenants", 201, {"name": "another"})
        await world.catalog.withdraw(later)
        assert [world.refusal(name, secrets[name]) for name in secrets] == ["", "", ""]


async def test_a_key_is_revoked_also_when_the_catalog_is_lost_at_that_moment(tmp_path: Path) -> None:
    """Rule: an acknowledged revocation is in force here although the catalog cannot be read again, and is announced."""
    told: list[Withdrawal] = []

    async def tell(withdrawn: Iterable[Withdrawal]) -> None:
        told.extend(withdrawn)

    url = f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"
    async with AdminWorld.opened(url, "") as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
        world.catalog.on_change(tell)
        world.catalog.database = UnreadDatabase(url)
        await world.ask("POST", "/credentials/vision/revoke", 200)
        assert world.refusal("vision", secret) == REFUSED
        assert [(each.what, each.name) for each in told] == [(KEY, "vision")]


def test_closing_the_admin_addresses_revokes_no_revocation(tmp_path: Path) -> None:
    """Rule: a gateway of two workers that has had a catalog reads it, also when its tokens were taken out of the file since.

    At its most talkative, it says no secret. Its cache directory, though others could look into it before, is its user's only.
    """
    before, cache = os.umask(0o022), tmp_path / "cache"
    (cache / "blobs/00").mkdir(parents=True)
    try:
        _run_twice(tmp_path)
    finally:
        os.umask(before)


def _run_twice(tmp_path: Path) -> None:
    with Origin() as origin:
        origin.s3.put("bucket", "key", b"content")
        settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
        talkative = '[log]\nlevel = "debug"\n'
        settings.extra = f'{talkative}[admin]\ntoken = "{TOKEN}"\n'
        with gateway(settings, tmp_path / "home") as running:
            secrets = {
                name: ask(running, "POST", "/credentials", {"access_key_id": name})[1]["secret_access_key"]
                for name in ("kept", "gone")
            }
            assert ask(running, "POST", "/credentials/gone/revoke")[0] == 200
            assert _open_to_others(settings.cache) == []
            wait_until(lambda: refusal(running, "kept", secrets["kept"]) == "", SOON, "the key's being known")
        settings.extra = talkative
        with gateway(settings, tmp_path / "home") as running:
            assert ask(running, "GET", "/credentials")[1]["code"] == "AdminDisabled"
            wait_until(lambda: running.metric("larder_catalog_reachable") == 1, SOON, "every worker's having read it")
            assert refusal(running, "kept", secrets["kept"]) == ""
            assert refusal(running, "gone", secrets["gone"]) == "InvalidAccessKeyId"
        logs = "".join(path.read_text() for path in (tmp_path / "home").glob("*.log"))
    assert [secret for secret in [TOKEN, *secrets.values()] if secret in logs] == []


def _open_to_others(cache: Path) -> list[str]:
    """Paths of a cache directory open to other users; files of counters are left out, as their folder is closed."""
    found = [cache, *(path for path in cache.rglob("*") if not path.parent.name.startswith("metrics-"))]
    return [str(path) for path in found if path.lstat().st_mode & 0o077]


async def test_when_there_is_a_catalog(tmp_path: Path) -> None:
    """Rule: a gateway reads a catalog if its admin addresses are open or a catalog existed before; others need no database."""
    path = tmp_path / "larder.toml"
    base = f'[[origins]]\nendpoint = "http://127.0.0.1:1"\n[cache]\ndir = {json.dumps(str(tmp_path / "cache"))}\n'
    path.write_text(base)
    assert not has_catalog(load_settings(path))
    path.write_text(f'{base}[admin]\nread_token = "r"\n')
    assert has_catalog(load_settings(path))
    path.write_text(base)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/catalog.db.key").touch()
    assert has_catalog(load_settings(path)), "it was lost"
    (tmp_path / "cache/catalog.db.key").unlink()
    assert not has_catalog(load_settings(path))
    database.create_file(tmp_path / "cache/catalog.db")
    assert has_catalog(load_settings(path))
    url = f"sqlite+aiosqlite:///{tmp_path / 'cache/catalog.db'}"
    for before in ("", "0007"):
        assert await migrate(database.CatalogDatabase(url)) == (before, "0007")


async def test_a_catalog_that_takes_no_writes_is_read(tmp_path: Path) -> None:
    """Rule: a gateway starts with a catalog that takes no writes, and reads the revocations."""
    file = tmp_path / "catalog.db"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "", patience=0.1) as again:
            assert again.refusal("vision", secret) == ""
            await again.ask("POST", "/credentials/vision/revoke", 503)
