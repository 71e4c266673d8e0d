"""Pools of streams on a node, as the plan wants them; over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.base.config import CacheSettings
from gateway.engine.space.pool_assignments import PoolAssignments
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.store.store import Store
from tests.stores import put

CAPACITY = 100_000
STREAM = "stream:bucket/a/"


@dataclass
class Node:
    """A node that follows a plan with one stream."""

    store: Store
    orders: dict[str, PoolOrder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin as a node that was just started."""
        self.assignments = PoolAssignments(self.store, lambda *_: True, "lru")

    async def fill(self, prefix: str, count: int) -> None:
        """Objects of 1,000 bytes."""
        for number in range(count):
            assert await self.store.make_room(1000)
            await put(self.store, f"{prefix}{number}", f"{prefix}{number}".encode().ljust(1000, b"."))

    async def follow(self, target: int, order: str = "uniform") -> dict[str, int]:
        """Follow a plan for some turns; the bytes of each pool."""
        mode = CachingMode.FULL if target else CachingMode.NONE
        self.orders[STREAM] = PoolOrder(mode, WhyCaching.BENEFIT, target, order=order)
        return await self.run_once()

    async def run_once(self) -> dict[str, int]:
        """Some turns; the bytes of each pool."""
        for _ in range(4):
            await self.assignments.assign([], Plan(1, 1, dict(self.orders)), CAPACITY)
            await self.store.sweep()
        return {row.pool.name: row.ledger.size for row in await self.store.pools.usage()}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with an empty cache."""
    settings = CacheSettings(dir=str(tmp_path / "cache"), capacity=CAPACITY, block_size=4096, reserve=0)
    store = await Store.open(settings, now=lambda: 1000.0)
    assert await store.try_lock()
    yield Node(store)
    await store.close()


async def test_a_stream_takes_its_objects_over_and_gives_them_back(node: Node) -> None:
    """Rule: a stream in the plan gets its cached objects; one that the plan drops leaves them to ``default``."""
    await node.fill("a/", 20)
    await node.fill("b/", 10)
    held = await node.follow(50_000)
    assert held == {STREAM: 20_000, "default": 10_000}
    assert await node.follow(50_000, "lru") == held
    node.orders.clear()
    assert await node.run_once() == {"default": 30_000}


async def test_a_stream_over_its_target_replaces_its_own(node: Node) -> None:
    """Rule: new objects of a stream displace objects of that stream, not those of others."""
    await node.fill("b/", 50)
    await node.follow(30_000, "lru")
    await node.fill("a/", 60)
    held = await node.run_once()
    assert held["default"] == 50_000
    assert held[STREAM] <= 45_000


@pytest.mark.parametrize(("others", "released"), [(10, False), (65, True)])
async def test_a_stream_that_has_ended_makes_room_when_it_is_needed(node: Node, others: int, released: bool) -> None:
    """Rule: in a nearly full cache an ended stream's objects are released at once and counted as released; in an emptier cache
    they stay, since nothing else needs their room."""
    await node.follow(80_000)
    await node.fill("a/", 20)
    await node.fill("b/", others)
    held = await node.run_once()
    assert held[STREAM] > 0
    after = await node.follow(0)
    assert (after.get(STREAM, 0) == 0) is released
    assert after["default"] == held["default"]
    assert node.store.status().released_bytes == (held[STREAM] if released else 0)


async def test_what_leaves_a_prefix_without_space_is_no_sign_of_a_small_cache(node: Node) -> None:
    """Rule: however fast such a prefix is read, its objects are released when room is needed, and none of others are evicted."""
    await node.fill("b/", 30)
    await node.follow(0, "lru")
    await node.fill("a/", 200)
    status = node.store.status()
    assert (status.evicted_blobs, status.evicted_bytes) == (0, 0)
    assert status.released_bytes >= 100_000
    assert (await node.run_once())["default"] == 30_000


@pytest.mark.parametrize(("target", "released"), [(65_000, True), (30_000, False)])
async def test_a_stream_that_has_ended_is_released_for_one_that_grows(node: Node, target: int, released: bool) -> None:
    """Rule: in a half-empty cache it is released as a whole once another stream's target exceeds the free space."""
    other = "stream:bucket/b/"
    node.orders[other] = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT, 20_000, order="uniform")
    await node.follow(80_000)
    await node.fill("a/", 30)
    await node.fill("b/", 10)
    assert (await node.run_once())[STREAM] == 30_000
    node.orders[other] = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT, target, order="uniform")
    after = await node.follow(0)
    assert after.get(STREAM, 0) == (0 if released else 30_000)
    assert after[other] == 10_000
