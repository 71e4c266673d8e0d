"""Real redis-servers for the fleet's tests."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.redis.connection import commands
from gateway.fleet.redis.embedded import EmbeddedRedis
from rig.redis_server import RedisServer
from rig.world import Origin
from tests.fleet.job_book import LONG


async def until(condition: Callable[[], bool], within: float = 15.0) -> None:
    """Wait until a condition holds. Raises TimeoutError after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never came true")
        await asyncio.sleep(0.01)


def counted(name: str, **labels: str) -> float:
    """A metric's value in this process."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory with a path short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="larder-t-") as name:
        yield Path(name) / "run"


@pytest.fixture
async def redis_server(run_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    """A running redis-server that is started again when it dies."""
    async with EmbeddedRedis(run_dir) as server:
        yield server


@pytest.fixture
def shared_redis() -> Iterator[RedisServer]:
    """A redis-server on a port, for nodes that are processes."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def store() -> Iterator[Origin]:
    """A store behind nodes that are processes."""
    with Origin() as started:
        yield started


@pytest.fixture
async def redis(redis_server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A connection for commands."""
    connection = commands(redis_server.url, 5.0)
    yield connection
    await connection.aclose()


@pytest.fixture
def jobs(redis: Redis) -> Jobs:
    """Returns the jobs of a zone; none of them expires during the test."""
    return Jobs(redis, "larder:z:", LONG)
