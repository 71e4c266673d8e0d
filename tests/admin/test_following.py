"""How gateways hear of a change, and what one does whose admin addresses were closed since."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.admin.catalog import database
from gateway.admin.catalog.following import Announcements
from gateway.admin.catalog.migrating import migrate
from gateway.config import load_settings
from gateway.wiring.admin import has_catalog
from tests.admin.admin_world import AdminWorld
from tests.admin.asked import TOKEN, ask, refusal
from tests.gateways import Settings, gateway
from tests.origins.processes import wait_until
from tests.scenarios.redis_server import RedisServer
from tests.scenarios.world import SOON, Origin


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis that can be killed."""
    with RedisServer() as server:
        yield server


async def test_a_change_is_said_through_redis(redis: RedisServer) -> None:
    """Rule: who hears it looks at once; after Redis was lost too, and meanwhile saying it is no error."""
    said = Announcements(redis.url, "larder:test:catalog")
    woken = asyncio.Queue[None]()
    hearing = asyncio.create_task(said.hear(lambda: woken.put_nowait(None)))
    try:
        await asyncio.wait_for(woken.get(), SOON)
        await said.say()
        await asyncio.wait_for(woken.get(), SOON)
        await asyncio.to_thread(redis.kill)
        await said.say()
        await asyncio.to_thread(redis.start)
        await asyncio.wait_for(woken.get(), SOON)
        await said.say()
        await asyncio.wait_for(woken.get(), SOON)
    finally:
        hearing.cancel()
        await said.close()


def test_closing_the_admin_addresses_revokes_no_revocation(tmp_path: Path) -> None:
    """Rule: a gateway of two workers that has had a catalog reads it, also when its tokens were taken out of the file since.

    At its most talkative, it says no secret.
    """
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
            wait_until(lambda: refusal(running, "kept", secrets["kept"]) == "", SOON, "the key's being known")
        settings.extra = talkative
        with gateway(settings, tmp_path / "home") as running:
            assert ask(running, "GET", "/credentials")[1]["code"] == "AdminDisabled"
            wait_until(lambda: running.metric("larder_catalog_reachable") == 1, SOON, "every worker's having read it")
            assert refusal(running, "kept", secrets["kept"]) == ""
            assert refusal(running, "gone", secrets["gone"]) == "InvalidAccessKeyId"
        logs = "".join(path.read_text() for path in (tmp_path / "home").glob("*.log"))
    assert [secret for secret in [TOKEN, *secrets.values()] if secret in logs] == []


async def test_when_there_is_a_catalog(tmp_path: Path) -> None:
    """Rule: it is read where one can be written to, or was there before; a gateway that has neither needs no database."""
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
    for before in ("", "0002"):
        assert await migrate(database.Database(url)) == (before, "0002")


async def test_a_catalog_that_takes_no_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: whatever keeps it from being written to keeps no gateway from starting: it says who was revoked."""
    file = tmp_path / "catalog.db"
    async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as world:
        secret = (await world.create(access_key_id="vision"))["secret_access_key"]
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with AdminWorld.opened(f"sqlite+aiosqlite:///{file}", "") as again:
            assert again.refusal("vision", secret) == ""
            await again.ask("POST", "/credentials/vision/revoke", 503)
