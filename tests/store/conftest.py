"""Stores in temporary directories, closed when the test ends."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.base.config import CacheSettings
from gateway.store.store import Store
from rig.forked import Forked
from rig.processes import kill_tree
from tests.stores import BLOCK, FakeClock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The cache directory."""
    return tmp_path / "cache"


@pytest.fixture
def clock() -> FakeClock:
    """The stores' clock."""
    return FakeClock()


@pytest.fixture
async def open_store(root: Path, clock: FakeClock):
    """Returns a function that opens stores on ``root``; stores left open are closed when the test ends."""
    opened: list[Store] = []

    async def open_one(**settings) -> Store:
        directory = settings.pop("directory", None)
        path = settings.pop("dir", str(root))
        settings = {"capacity": 10**9, "reserve": 0, "block_size": BLOCK, **settings}
        store = await Store.open(CacheSettings(dir=path, **settings), now=clock, directory=directory)
        opened.append(store)
        closed = store.close

        async def close() -> None:
            if store in opened:
                opened.remove(store)
                await closed()

        store.close = close
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store):
    """One open store."""
    return await open_store()


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Runs a module with arguments in a process that has imported the gateway; kills it when the test ends."""
    started: list[Forked] = []

    def start(module: str, *arguments: object) -> Forked:
        log = tmp_path / f"{len(started)}.log"
        started.append(Forked([str(each) for each in arguments], os.environ, log, module=module, isolated=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            kill_tree(process.pid)
            process.wait()
        process.stdout.close()
