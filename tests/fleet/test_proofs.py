"""Register entries are signed: write access to Redis alone does not make a node."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from gateway.fleet.nodes.membership import Membership
from gateway.fleet.redis.connection import commands, text_of
from gateway.fleet.redis.embedded import EmbeddedRedis
from tests.fleet.conftest import counted
from tests.fleet.test_membership import LONG, node


async def test_who_can_only_write_to_redis_is_no_node(redis_server: EmbeddedRedis) -> None:
    """Rule: a node is believed to be one if it knows the secret; others are named, counted, and never home of anything."""
    before = counted("larder_fleet_conflicts_total", reason="secret")
    members = [
        Membership(redis_server.url, node(name), "larder:default:", LONG, secret)
        for name, secret in (("a", "right"), ("b", "right"), ("c", "wrong"), ("d", ""))
    ]
    async with AsyncExitStack() as stack:
        for member in members:
            stack.push_async_callback(member.stop)
        for member in members:
            member.ready()
        for member in members * 2:
            await member.beat()
        assert set(members[0].nodes) == set(members[0].ring.ids) == {"a", "b"}
        redis = commands(redis_server.url, 5.0)
        entry = text_of(await redis.hget("larder:default:nodes", "b") or "")
        await redis.hset("larder:default:nodes", "e", entry)
        await members[0].beat()
        assert set(members[0].nodes) == {"a", "b"}
        await redis.hset("larder:default:nodes", "b", entry.replace("http://b:9000", "http://elsewhere:9000"))
        await members[0].beat()
        await redis.aclose()
        assert set(members[0].nodes) == set(members[0].ring.ids) == {"a"}
        assert counted("larder_fleet_conflicts_total", reason="secret") >= before + 4
        assert set(members[2].ring.ids) == {"c"}


async def test_another_secret_is_a_problem_of_both(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: while it lasts both say so, with the remedy, and warn of it once a minute; when the other has left, neither does."""
    async with AsyncExitStack() as stack:
        a, b = (
            Membership(redis_server.url, node(name), "larder:default:", LONG, secret)
            for name, secret in (("a", "right"), ("b", "wrong"))
        )
        for member in (a, b):
            stack.push_async_callback(member.stop)
        for member in (a, b, a, b):
            await member.beat()
        for member, other in ((a, "b"), (b, "a")):
            assert f"node {other} at http://{other}:9000 does not know this fleet's secret" in member.isolation_reason
            assert "the same fleet.secret" in member.isolation_reason
        told = [record.message for record in caplog.records if "fleet.secret" in record.message]
        assert sorted(told) == sorted([a.isolation_reason, b.isolation_reason])
        redis = commands(redis_server.url, 5.0)
        await redis.hdel("larder:default:nodes", "b")
        await redis.aclose()
        await a.beat()
        assert a.isolation_reason == ""
