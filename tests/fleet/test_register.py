"""Heartbeats read the whole register only when it has changed, otherwise only the node's own entry."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.fleet.nodes.membership import Membership
from gateway.fleet.redis.embedded import EmbeddedRedis
from tests.fleet.conftest import until
from tests.fleet.test_membership import BRIEF, heard, joined, node, nodes, states

NODES, EXPIRIES = "larder:default:nodes", "larder:default:nodes:expiries"


@pytest.fixture
async def redis(redis_server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A client beside the nodes."""
    async with Redis.from_url(redis_server.url) as client:
        yield client


async def whole_readings(redis: Redis) -> int:
    """The number of reads of a whole hash."""
    return int((await redis.info("commandstats"))["cmdstat_hgetall"]["calls"])


async def beat(*members: Membership) -> None:
    """A heartbeat of each, in this order."""
    for member in members:
        await member.beat()


async def test_heartbeats_read_no_other_entry_while_nothing_changes(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Rule: the reads of a heartbeat do not grow with the fleet; one that finds a change reads everything, once."""
    async with nodes(redis_server.url, "a", "b", "c") as [a, b, c]:
        await beat(a, b, c)
        before = await whole_readings(redis)
        for _ in range(5):
            await beat(a, b, c)
        assert await whole_readings(redis) == before
        await b.leave()
        for _ in range(5):
            await beat(a, b, c)
        assert await whole_readings(redis) == before + 3
        assert states(a) == states(c) == {"a": "READY", "b": "LEAVING", "c": "READY"}


async def test_nodes_of_earlier_versions_are_heard(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Rule: nodes of earlier versions write only the hash; the next heartbeat notices their changes and their expiry."""
    async with nodes(redis_server.url, "a", "b") as [a, _]:
        await beat(a)
        await redis.zrem(EXPIRIES, "b")
        text = await redis.hget(NODES, "b")  # type: ignore[misc]
        assert text is not None
        await redis.hset(NODES, "b", text.replace(b" READY ", b" LEAVING "))  # type: ignore[misc]
        await a.beat()
        assert states(a) == {"a": "READY", "b": "LEAVING"}
        await redis.hset(NODES, "b", text)  # type: ignore[misc]
        await a.beat()
        assert states(a) == {"a": "READY", "b": "READY"}
        await redis.hset(NODES, "b", b"1 " + text.partition(b" ")[2])  # type: ignore[misc]
        await a.beat()
        assert states(a) == {"a": "READY"}


async def test_a_silent_node_that_an_earlier_version_removes_is_gone(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Rule: a node that notices an expiry has all others read again, also those that did not see the entry vanish."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        c = joined(redis_server.url, node("c"), BRIEF)
        await heard(a, c)
        await heard(b, c)
        await beat(a, b)
        ended = time.monotonic() + 2 * BRIEF.expire
        await until(lambda: time.monotonic() > ended)
        await redis.hdel(NODES, "c")  # type: ignore[misc]
        await beat(a, b)
        assert "c" not in a.nodes
        assert "c" not in b.nodes
        await c.stop()


async def test_a_flush_that_a_sibling_noticed_takes_nobody(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Rule: a worker detects a flush even if a sibling has already written their node's entry again."""
    me = node("a")
    async with nodes(redis_server.url, "b") as [b]:
        siblings = [joined(redis_server.url, me), joined(redis_server.url, me)]
        for member in siblings:
            member.ready()
        await beat(*siblings, b, *siblings)
        await redis.flushall()
        await beat(*siblings, *siblings)
        assert [states(member) for member in siblings] == [{"a": "READY", "b": "READY"}] * 2
        for member in siblings:
            await member.stop()
