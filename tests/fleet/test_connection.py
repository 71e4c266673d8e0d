"""Connections to Redis fail with redis-py's own errors, under the event loop that gateways use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.fleet.redis.connection import commands, single
from rig.redis_server import RedisServer
from tests.fleet.conftest import until

Connect = Callable[[str], Awaitable[Any]]


async def of_its_own(url: str) -> Any:
    """A connection as a subscription has it."""
    connection = single(url, 5.0)
    await connection.connect()
    return connection


async def of_a_pool(url: str) -> Any:
    """A connection as a command takes it."""
    return await commands(url, 5.0).connection_pool.get_connection()


@pytest.mark.parametrize("connect", [of_its_own, of_a_pool])
def test_writing_to_a_closed_transport_is_a_lost_connection(shared_redis: RedisServer, connect: Connect) -> None:
    """Rule: uvloop's RuntimeError for a transport that Redis has closed reaches callers as redis-py's ConnectionError."""

    async def write() -> None:
        connection = await connect(shared_redis.url)
        connection._writer.transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(RedisConnectionError):
            await connection.send_command("PING", check_health=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())


def test_a_connection_that_redis_has_closed_is_replaced(shared_redis: RedisServer) -> None:
    """Rule: the first command after a restart of Redis succeeds, although the pooled connection was to the old process."""

    async def ask() -> None:
        client = commands(shared_redis.url, 5.0)
        await client.ping()
        connection = await client.connection_pool.get_connection()
        await client.connection_pool.release(connection)
        shared_redis.kill()
        await until(connection._reader.at_eof)
        shared_redis.start()
        assert await client.ping()
        await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


async def test_connections_share_how_they_introduce_themselves(shared_redis: RedisServer) -> None:
    """Rule: a connection does not look up the version of redis-py again, which takes milliseconds of the event loop."""
    pooled = await of_a_pool(shared_redis.url)
    alone = await of_its_own(shared_redis.url)
    try:
        assert alone.driver_info is pooled.driver_info
    finally:
        await alone.disconnect()
        await pooled.disconnect()
