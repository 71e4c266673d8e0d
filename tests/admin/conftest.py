"""Catalogs on both databases, and the admin application over one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.admin.catalog.catalog import Catalog
from tests.admin.admin_world import KEY, AdminWorld, Clock
from tests.admin.postgres_server import PostgresServer, result_of


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests that stop nothing."""
    with PostgresServer() as server:
        yield server


async def _begin(url: str, key: str) -> None:
    catalog = Catalog(url, key, Clock())
    await catalog.look()
    await catalog.close()


@pytest.fixture(scope="session")
def begun_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty catalog and its key: running all migrations takes longer than most tests."""
    folder = tmp_path_factory.mktemp("begun")
    result_of(_begin(_file_in(folder), ""))
    return folder


@pytest.fixture(scope="session")
def begun_database(postgres: PostgresServer) -> str:
    """The name of a database with an empty catalog."""
    url = postgres.database()
    result_of(_begin(url, KEY))
    return url.rpartition("/")[2]


@pytest.fixture
def begun(begun_file: Path, tmp_path: Path) -> str:
    """An empty catalog in a file, with the tables of this version."""
    shutil.copytree(begun_file, tmp_path, dirs_exist_ok=True)
    return _file_in(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind: a new one or, beside the application, one with the tables of this version."""
    for_application = "admin" in request.fixturenames
    if request.param == "sqlite":
        url: str = request.getfixturevalue("begun") if for_application else _file_in(tmp_path)
        return url
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database(request.getfixturevalue("begun_database") if for_application else "template1")


@pytest.fixture
def catalog_key(catalog_url: str) -> str:
    """The key that seals secrets; empty on SQLite, which keeps a key in a file."""
    return "" if catalog_url.startswith("sqlite") else KEY


@pytest.fixture
async def admin(catalog_url: str, catalog_key: str) -> AsyncIterator[AdminWorld]:
    """The admin application over an empty catalog of each kind."""
    async with AdminWorld.opened(catalog_url, catalog_key) as world:
        yield world


def _file_in(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'catalog.db'}"
