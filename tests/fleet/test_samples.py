"""Samples and status of nodes in a real Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.nodes.samples import Samples
from gateway.model.counters import Counters

Z = "larder:z:"


async def test_a_restart_keeps_what_was_counted_before_it(redis: Redis) -> None:
    """Rule: the last counters before a restart join the totals from before restarts, once."""
    samples = Samples(redis, Z)
    await samples.send("a", "boot-1", Counters(requests=7, sent_bytes=1.5))
    first = await samples.send("a", "boot-1", Counters(requests=9, sent_bytes=2.5))
    assert (await samples.statuses()).retired == Counters()
    await samples.send("a", "boot-2", Counters(requests=1))
    await samples.send("a", "boot-2", Counters(requests=2))
    found = await samples.statuses()
    assert found.retired == Counters(requests=9, sent_bytes=2.5)
    assert (found.counted["a"].boot, found.counted["a"].counters.requests) == ("boot-2", 2)
    recent = (await samples.recent(["a"]))["a"]
    assert ([one.counters.requests for one in recent], recent[1].at) == ([7, 9, 1, 2], first)
    assert [one.counters.requests for one in (await samples.long(["a"]))["a"]] == [7]


async def test_of_too_many_nodes_the_oldest_is_forgotten(redis: Redis) -> None:
    """Rule: a forgotten node's counters stay in the totals, its status goes; known nodes displace no other."""
    samples = Samples(redis, Z, most=2)
    for name in ("a", "b", "b", "c"):
        await samples.send(name, "boot", Counters(requests=3))
        await samples.say(name, {"name": name})
    found = await samples.statuses()
    assert (set(found.counted), found.retired) == ({"b", "c"}, Counters(requests=3))
    assert {name: told.document for name, told in found.nodes.items()} == {"b": {"name": "b"}, "c": {"name": "c"}}


async def test_what_another_version_wrote_is_replaced(redis: Redis) -> None:
    """Rule: a sample that cannot be read adds nothing to the totals and stops no report."""
    samples = Samples(redis, Z)
    await redis.hset(f"{Z}counted", "a", "later {")
    await samples.send("a", "boot", Counters(requests=3))
    found = await samples.statuses()
    assert (found.counted["a"].counters.requests, found.retired) == (3, Counters())
