"""Polls of a SQLite catalog that has not been written since the last one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.schema import tenants
from tests.admin.admin_world import Clock, UnreadDatabase

ACTOR = Actor("admin", "192.0.2.7", "request-1", TokenRole.ADMIN)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog of SQLite, read once."""
    made = Catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", "", Clock())
    await made.look()
    yield made
    await made.close()


async def test_a_poll_of_an_unchanged_file_opens_nothing(catalog: Catalog, tmp_path: Path) -> None:
    """Rule: a poll does not open a file that was not written since the last one; any later write is read."""
    os.utime(tmp_path / "catalog.db", (0, 0))
    catalog.database.settled = 0
    await catalog.look()
    read = catalog.database
    catalog.database = UnreadDatabase(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}")
    catalog.database.settled = 0
    assert [(await catalog.look()).version for _ in range(3)] == [0] * 3
    catalog.database = read
    other = Catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}", "", Clock())
    await other.look()
    async with other.changes.change(ACTOR, "tenants.create", "vision") as change:
        row = {"name": "vision", "description": "", "enabled": True, "created_at": 0.0, "revision": change.revision}
        await change.connection.execute(insert(tenants).values(**row))
    await other.close()
    assert list((await catalog.look()).tenants) == ["vision"]


async def test_a_file_written_just_now_is_opened(catalog: Catalog) -> None:
    """Rule: a file written just now is opened again: another write may leave it the same time."""
    catalog.database.settled = 3600
    assert await catalog.database.state() is None
    catalog.database.settled = 0
    assert await catalog.database.state() is not None
