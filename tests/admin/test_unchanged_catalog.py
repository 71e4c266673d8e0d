"""Polls of a SQLite catalog that has not been written since the last one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.admin.catalog import database
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.schema import tenants
from tests.admin.admin_world import Clock

ACTOR = Actor("admin", "192.0.2.7", "request-1", TokenRole.ADMIN)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog of SQLite, read once."""
    made = Catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", "", Clock())
    await made.look()
    yield made
    await made.close()


async def test_a_poll_of_an_unchanged_file_opens_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a file that has not been written since the last poll is not opened; one that was is read, however soon."""
    os.utime(tmp_path / "catalog.db", (0, 0))
    monkeypatch.setattr(database, "_SETTLED", 0)
    await catalog.look()
    reading, opened = catalog.database.reading, []

    def counted() -> AbstractAsyncContextManager[AsyncConnection]:
        opened.append(True)
        return reading()

    monkeypatch.setattr(catalog.database, "reading", counted)
    assert [(await catalog.look()).version for _ in range(3)] == [0] * 3
    assert opened == []
    other = Catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", "", Clock())
    await other.look()
    async with other.changes.change(ACTOR, "tenants.create", "vision") as change:
        row = {"name": "vision", "description": "", "enabled": True, "created_at": 0.0, "revision": change.revision}
        await change.connection.execute(insert(tenants).values(**row))
    await other.close()
    assert list((await catalog.look()).tenants) == ["vision"]


async def test_a_file_written_just_now_is_opened(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the next write might leave the file the time that it has, so its time says nothing yet."""
    monkeypatch.setattr(database, "_SETTLED", 3600 * 10**9)
    assert await catalog.database.state() is None
    monkeypatch.setattr(database, "_SETTLED", 0)
    assert await catalog.database.state() is not None
