"""What a node says of itself in Redis is signed: who can only write there is none."""

from __future__ import annotations

from contextlib import AsyncExitStack

from gateway.fleet.connection import commands, text_of
from gateway.fleet.embedded import EmbeddedRedis
from gateway.fleet.membership import Membership
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
