"""Membership over redis-servers that are killed, flushed and restarted.

Tests send heartbeats explicitly; expiries are long unless the rule is about time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from redis.asyncio import Redis

from gateway.fleet.nodes.membership import Membership, Pace
from gateway.fleet.nodes.node_id import new_boot
from gateway.fleet.nodes.register import Heard
from gateway.fleet.redis.embedded import EmbeddedRedis
from gateway.model.fleet import PROTOCOL, Node, NodeState
from gateway.policies.fleet.ring import Ring
from rig.redis_server import RedisServer
from tests.fleet.conftest import counted, until

LONG = Pace(heartbeat=3600, expire=3600)
"""For rules that are not about time."""
BRIEF = Pace(heartbeat=3600, expire=0.3)
"""For nodes that are to expire."""
SECRET = "the secret of these nodes"
KEYS = np.random.Generator(np.random.PCG64(3)).integers(0, 2**64, size=500, dtype=np.uint64)


def node(name: str, **changes: object) -> Node:
    """A node that was just started."""
    made = Node(name, f"http://{name}:9000", 1000, "default", NodeState.JOINING, PROTOCOL, new_boot())
    return replace(made, **changes)  # type: ignore[arg-type]


def joined(url: str, me: Node, pace: Pace = LONG) -> Membership:
    """The membership of one worker; it has not sent a heartbeat yet."""
    return Membership(url, me, f"larder:{me.zone}:", pace, SECRET)


@asynccontextmanager
async def nodes(url: str, *names: str, pace: Pace = LONG) -> AsyncIterator[list[Membership]]:
    """Nodes that are ready and know each other."""
    async with AsyncExitStack() as stack:
        members = []
        for name in names:
            member = joined(url, node(name), pace)
            stack.push_async_callback(member.stop)
            members.append(member)
            member.ready()
        for _ in range(2):
            for member in members:
                await member.beat()
        yield members


@pytest.fixture
async def stopped_later() -> AsyncIterator[Callable[[Membership], Membership]]:
    """Returns a function that registers a membership to be stopped after the test."""
    async with AsyncExitStack() as stack:

        def later(member: Membership) -> Membership:
            stack.push_async_callback(member.stop)
            return member

        yield later


Later = Callable[[Membership], Membership]


def states(member: Membership) -> dict[str, str]:
    """The nodes that a worker knows."""
    return {name: known.state.value for name, known in member.nodes.items()}


async def heard(member: Membership, other: Membership) -> None:
    """Have a node known that may expire at any moment."""
    while other.me not in member.nodes:
        await other.beat()
        await member.beat()


async def grow_older(url: str, seconds: float) -> None:
    """Move the times of all register entries ``seconds`` into the past."""
    async with Redis.from_url(url) as redis:
        for name, entry in (await redis.hgetall("larder:default:nodes")).items():  # type: ignore[misc]
            til, since, rest = entry.decode().split(" ", 2)
            shifted = f"{int(til) - int(seconds * 1000)} {int(since) - int(seconds * 1000)} {rest}"
            await redis.hset("larder:default:nodes", name, shifted)  # type: ignore[misc]
        await redis.delete("larder:default:nodes:version")


async def test_nodes_learn_of_each_other(redis_server: EmbeddedRedis) -> None:
    """Rule: after a heartbeat of each, every node knows all, with their reports, and has the same ring."""
    async with nodes(redis_server.url, "a", "b", "c") as members:
        assert [states(member) for member in members] == [dict.fromkeys("abc", "READY")] * 3
        assert {member.ring.ids for member in members} == {("a", "b", "c")}
        assert members[0].nodes["b"] == replace(members[1].nodes["b"])
        assert members[0].nodes["b"].address == "http://b:9000"
        assert not any(member.alone or member.conflict for member in members)


async def test_homes_are_nodes_and_here(redis_server: EmbeddedRedis) -> None:
    """Rule: each key has one home in the fleet: for its home it is "here", for all others that node."""
    async with nodes(redis_server.url, "a", "b", "c") as members:
        for key in KEYS[:50].tolist():
            homes = [member.home(key) for member in members]
            names = {home.id for home in homes if home is not None} | {
                member.me for member, home in zip(members, homes, strict=True) if home is None
            }
            assert len(names) == 1
            assert homes.count(None) == 1
        for member in members:
            numbers, there = member.homes(KEYS)
            found = [None if number < 0 else there[number] for number in numbers]
            assert found == [member.home(key) for key in KEYS.tolist()]


async def test_homes_are_those_of_one_moment(redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a node that leaves while a thread computes homes is among them, and not among the next ones."""
    homes = Ring.homes
    async with nodes(redis_server.url, "a", "b", "c") as [a, _, _]:

        def overtaken(ring: Ring, keys: NDArray[np.uint64]) -> NDArray[np.int16]:
            a._hear(Heard((), gone=frozenset("b")))
            return homes(ring, keys)

        monkeypatch.setattr(Ring, "homes", overtaken)
        assert [[node.id for node in a.homes(KEYS)[1]] for _ in range(2)] == [["a", "b", "c"], ["a", "c"]]


async def test_a_node_that_joins_is_not_home_of_anything_yet(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: JOINING nodes are known, but not in the ring; ready ones are."""
    async with nodes(redis_server.url, "a") as [a]:
        b = stopped_later(joined(redis_server.url, node("b")))
        await b.beat()
        await a.beat()
        assert states(a) == {"a": "READY", "b": "JOINING"}
        assert a.alone
        assert b.ring.ids == ("a",)
        b.ready()
        await b.beat()
        await a.beat()
        assert a.ring.ids == b.ring.ids == ("a", "b")


async def test_a_node_that_leaves_is_out_at_once(redis_server: EmbeddedRedis) -> None:
    """Rule: with their next heartbeat the others do not ask it for anything, also when it has ended before."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        await b.leave()
        await b.stop()
        await a.beat()
        assert states(a) == {"a": "READY", "b": "LEAVING"}
        assert a.ring.ids == ("a",)
        assert a.alone


async def test_the_id_of_a_node_that_left_is_free(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: a node that is stopped and started again, elsewhere even, joins at once."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        await b.leave()
        await b.stop()
        again = stopped_later(joined(redis_server.url, node("b", address="http://elsewhere:9000")))
        again.ready()
        await again.beat()
        await a.beat()
        assert not again.conflict
        assert a.nodes["b"].address == "http://elsewhere:9000"
        assert a.ring.ids == ("a", "b")


async def test_a_node_that_falls_silent_is_gone_after_its_expiry(redis_server: EmbeddedRedis) -> None:
    """Rule: a killed node is dropped when its entry has expired, and not before."""
    async with nodes(redis_server.url, "a") as [a]:
        b = joined(redis_server.url, node("b"), BRIEF)
        b.ready()
        await heard(a, b)
        assert a.ring.ids == ("a", "b")
        version = a.version
        while "b" in a.nodes:
            await a.beat()
        assert a.ring.ids == ("a",)
        assert a.version > version
        await b.stop()


async def test_no_ring_collapses_when_redis_is_flushed(redis_server: EmbeddedRedis) -> None:
    """Rule: after a flush the first node sees no other, and keeps the known ones until they had time to come back."""
    async with nodes(redis_server.url, "a", "b", "c") as [a, b, c]:
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        ring, version = a.ring, a.version
        for member in (a, b, c):
            await member.beat()
            assert states(a) == dict.fromkeys("abc", "READY")
        assert a.ring is ring
        assert a.version == version


async def test_who_does_not_come_back_after_a_flush_is_gone(redis_server: EmbeddedRedis) -> None:
    """Rule: a node that does not come back is kept for as long as its entry would have lasted."""
    async with nodes(redis_server.url, "a") as [a]:
        b = joined(redis_server.url, node("b"), BRIEF)
        await heard(a, b)
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        while "b" in a.nodes:
            await a.beat()
        await b.stop()


async def test_the_fleet_stays_as_known_while_redis_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: no node expires without Redis, nor when it comes back empty after longer than an expiry; one line is logged."""
    with RedisServer() as server:
        url = f"redis://127.0.0.1:{server.port}"
        async with nodes(url, "a") as [a]:
            b = joined(url, node("b"), BRIEF)
            b.ready()
            await heard(a, b)
            server.kill()
            ended = time.monotonic() + 2 * BRIEF.expire
            await a.beat()
            assert not a.reachable
            await until(lambda: time.monotonic() > ended)
            await a.beat()
            assert a.ring.ids == ("a", "b")
            server.start()
            await a.beat()
            assert a.reachable
            assert a.ring.ids == ("a", "b")
            await b.stop()
    assert [record.message for record in caplog.records if "is not reachable" in record.message] != []
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_node_starts_without_redis_and_joins_later(stopped_later: Later) -> None:
    """Rule: with Redis down at the start a node is alone and serves; it joins as soon as Redis answers."""
    with RedisServer() as server:
        server.kill()
        url = f"redis://127.0.0.1:{server.port}"
        a = stopped_later(joined(url, node("a"), Pace(heartbeat=0.05, expire=60)))
        await a.start()
        a.ready()
        assert a.alone
        assert a.ring.ids == ("a",)
        assert a.home(1) is None
        assert not a.reachable
        server.start()
        b = stopped_later(joined(url, node("b"), Pace(heartbeat=0.05, expire=60)))
        await b.start()
        b.ready()
        await until(lambda: a.ring.ids == b.ring.ids == ("a", "b"))


async def test_two_nodes_of_one_id_are_no_two_nodes(
    redis_server: EmbeddedRedis, stopped_later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: of two nodes with one id, the later one does not join, reports the conflict and serves alone; the first stays."""
    before = counted("larder_fleet_conflicts_total", reason="id")
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        copy = stopped_later(joined(redis_server.url, node("a", address="http://copy:9000")))
        copy.ready()
        for member in (copy, a, b, copy):
            await member.beat()
        assert "http://a:9000" in copy.conflict
        assert "id" in copy.conflict
        assert copy.alone
        assert [copy.home(key) for key in KEYS[:20].tolist()] == [None] * 20
        assert copy.homes(KEYS)[0].tolist() == [-1] * len(KEYS)
        assert not a.conflict
        assert b.nodes["a"].address == "http://a:9000"
    assert counted("larder_fleet_conflicts_total", reason="id") == before + 1
    assert len([record for record in caplog.records if "cannot join" in record.message]) == 1


async def test_who_was_refused_joins_when_the_other_has_expired(
    redis_server: EmbeddedRedis, stopped_later: Later
) -> None:
    """Rule: a node that was killed and comes back at another address waits for its own old entry to expire."""
    old = stopped_later(joined(redis_server.url, node("a")))
    await old.beat()
    new = stopped_later(joined(redis_server.url, node("a", address="http://new:9000")))
    new.ready()
    await new.beat()
    assert new.conflict
    await grow_older(redis_server.url, LONG.expire + 1)
    await new.beat()
    assert not new.conflict
    assert new.ring.ids == ("a",)
    assert new.nodes["a"].address == "http://new:9000"


async def test_a_killed_node_comes_back_at_its_address_at_once(
    redis_server: EmbeddedRedis, stopped_later: Later
) -> None:
    """Rule: a later start at the same host and port as an id's holder is its successor."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        again = stopped_later(joined(redis_server.url, node("b")))
        again.ready()
        await again.beat()
        await a.beat()
        assert not again.conflict
        assert a.nodes["b"].boot == again.nodes["b"].boot != b.nodes["b"].boot
        await b.beat()
        assert b.conflict, "the old one, were it alive, must not take the id back"


async def test_nodes_of_another_protocol_share_nothing(
    redis_server: EmbeddedRedis, stopped_later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: they are neither asked nor home; each logs and counts that once, not with every heartbeat."""
    before = counted("larder_fleet_conflicts_total", reason="protocol")
    async with nodes(redis_server.url, "a") as [a]:
        b = stopped_later(joined(redis_server.url, node("b", protocol=PROTOCOL + 1)))
        b.ready()
        await b.beat()
        for _ in range(3):
            await a.beat()
            await b.beat()
        assert states(a) == {"a": "READY"}
        assert states(b) == {"b": "READY"}
        assert a.alone
        assert b.alone
    assert counted("larder_fleet_conflicts_total", reason="protocol") == before + 2
    assert len([record for record in caplog.records if "of the peer protocol" in record.message]) == 2


async def test_zones_do_not_know_each_other(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: each zone has its nodes and its ring; even an id may be there in both."""
    async with nodes(redis_server.url, "a") as [a]:
        other = stopped_later(joined(redis_server.url, node("a", zone="other")))
        other.ready()
        await other.beat()
        await a.beat()
        assert not a.conflict
        assert not other.conflict
        assert a.alone
        assert other.alone


async def test_the_workers_of_a_node_are_one_node(redis_server: EmbeddedRedis) -> None:
    """Rule: five workers have one entry; when one knows that the disk was read, all are ready."""
    me = node("a")
    async with nodes(redis_server.url, "b") as [b], AsyncExitStack() as stack:
        workers = [joined(redis_server.url, me) for _ in range(5)]
        for worker in workers:
            stack.push_async_callback(worker.stop)
            await worker.beat()
        await b.beat()
        assert states(b) == {"a": "JOINING", "b": "READY"}
        workers[3].ready()
        for worker in (workers[3], *workers):
            await worker.beat()
        await b.beat()
        assert states(b) == {"a": "READY", "b": "READY"}
        assert all(worker.ring.ids == ("a", "b") and not worker.conflict for worker in workers)
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        await workers[0].beat()
        await b.beat()
        assert states(b) == {"a": "READY", "b": "READY"}


async def test_a_worker_that_is_replaced_does_not_take_its_node_along(redis_server: EmbeddedRedis) -> None:
    """Rule: a worker that ends reports its node as leaving; its siblings' next heartbeats undo that."""
    me = node("a")
    async with nodes(redis_server.url, "b") as [b], AsyncExitStack() as stack:
        one, other = joined(redis_server.url, me), joined(redis_server.url, me)
        stack.push_async_callback(other.stop)
        one.ready()
        await one.beat()
        await other.beat()
        await one.leave()
        await other.beat()
        await one.stop()
        new = joined(redis_server.url, me)
        stack.push_async_callback(new.stop)
        await new.beat()
        await b.beat()
        assert states(b) == {"a": "READY", "b": "READY"}
        assert new.state is NodeState.READY


async def test_clocks_of_nodes_do_not_matter(redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a node whose clock is five minutes ahead, or behind, joins and stays like any other."""
    real = time.time
    async with nodes(redis_server.url, "a") as [a]:
        for name, skew in (("ahead", 300.0), ("behind", -300.0)):
            monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
            monkeypatch.setattr(time, "time_ns", lambda skew=skew: int((real() + skew) * 1e9))
            async with nodes(redis_server.url, name) as [b]:
                await a.beat()
                assert a.ring.ids == b.ring.ids == tuple(sorted({"a", name}))
                await b.leave()
            await a.beat()
            assert a.ring.ids == ("a",)


async def test_who_may_not_join_counts_nobody_as_ready(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: a node whose id another holds shows one joining node, and names both remedies."""
    async with nodes(redis_server.url, "a", "b"):
        copy = stopped_later(joined(redis_server.url, node("a", address="http://elsewhere:9000")))
        copy.ready()
        await copy.beat()
        assert "cache directory" in copy.conflict
        assert "fleet.node" in copy.conflict
        shown = [counted("larder_fleet_nodes", state=state) for state in ("JOINING", "READY", "LEAVING")]
        assert shown == [1, 0, 0]


@pytest.mark.parametrize("age", [1000, 100])
async def test_who_was_home_before_a_node_joined(redis_server: EmbeddedRedis, stopped_later: Later, age: float) -> None:
    """Rule: the previous home of a new node's keys is the next older node in the ring, which may still have them."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        await grow_older(redis_server.url, age)
        old = a.ring
        new = stopped_later(joined(redis_server.url, node("new")))
        new.ready()
        for member in (a, b, new, a, b):
            await member.beat()
        for key in KEYS[:100].tolist():
            earlier, moved = old.ranked(key, 1)[0], new.ring.ranked(key, 1) == ["new"]
            for member in (a, b, new) if moved or age == 1000 else ():
                found = member.previous_owner(key)
                assert (found.id if found else None) == (earlier if moved and earlier != member.me else None)


async def test_all_who_leave_may_have_it_still(redis_server: EmbeddedRedis) -> None:
    """Rule: of those that leave one after the other, each that would be home of a key is asked for it, the best first."""
    async with nodes(redis_server.url, "a", "b", "c") as [a, b, c]:
        await grow_older(redis_server.url, 1000)
        await c.beat()
        old = c.ring
        for member in (a, b):
            await member.leave()
            await c.beat()
        for key in KEYS[:100].tolist():
            ranked = old.ranked(key, 3)
            assert [node.id for node in c.previous_owners(key)] == ranked[: ranked.index("c")]


async def test_how_long_nodes_are_ready_survives_a_flush(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: nodes that register again after a flush keep their time of becoming ready."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        await grow_older(redis_server.url, 1000)
        await a.beat()
        await b.beat()
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
        new = stopped_later(joined(redis_server.url, node("new")))
        new.ready()
        for member in (a, b, new):
            await member.beat()
        assert {found.id for key in KEYS.tolist() if (found := new.previous_owner(key))} == {"a", "b"}


async def test_after_ten_minutes_everything_has_moved(redis_server: EmbeddedRedis) -> None:
    """Rule: previous homes are asked for ten minutes after a change."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        await grow_older(redis_server.url, 601)
        for member in (a, b, a):
            await member.beat()
        assert [a.previous_owner(key) for key in KEYS.tolist()] == [None] * len(KEYS)


async def test_heartbeats_go_on_by_themselves(redis_server: EmbeddedRedis, stopped_later: Later) -> None:
    """Rule: a started node sends heartbeats in the background, and reports a change of its state within one interval."""
    quick = Pace(heartbeat=0.02, expire=60)
    a = stopped_later(joined(redis_server.url, node("a"), quick))
    b = stopped_later(joined(redis_server.url, node("b"), quick))
    await asyncio.gather(a.start(), b.start())
    await until(lambda: states(a) == states(b) == {"a": "JOINING", "b": "JOINING"})
    a.ready()
    b.ready()
    await until(lambda: a.ring.ids == b.ring.ids == ("a", "b"))
    await b.leave()
    await until(lambda: states(a) == {"a": "READY", "b": "LEAVING"})


async def test_damaged_entries_are_dropped(redis_server: EmbeddedRedis) -> None:
    """Rule: invalid entries do not keep the nodes from seeing each other."""
    async with nodes(redis_server.url, "a", "b") as [a, _]:
        async with Redis.from_url(redis_server.url) as redis:
            await redis.hset("larder:default:nodes", "x", "nonsense")  # type: ignore[misc]
            await redis.hset("larder:default:nodes", "y", "99999999999999 0 READY b p {}")  # type: ignore[misc]
            await redis.hset("larder:default:nodes", "z", "99999999999999 0 READY b p [1]")  # type: ignore[misc]
        await a.beat()
        assert states(a) == {"a": "READY", "b": "READY"}
