"""Catalogs on both databases, and the admin application over one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.admin.admin_world import KEY, AdminWorld
from tests.admin.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests that stop nothing."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def catalog_key(catalog_url: str) -> str:
    """What the secrets are sealed with: on SQLite, a key in a file."""
    return "" if catalog_url.startswith("sqlite") else KEY


@pytest.fixture
async def admin(catalog_url: str, catalog_key: str) -> AsyncIterator[AdminWorld]:
    """The admin application over a new catalog of each kind."""
    async with AdminWorld.opened(catalog_url, catalog_key) as world:
        yield world
