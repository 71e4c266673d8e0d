"""In which order blobs leave when the plan has a say in it; over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.engine.base.planned import Planned
from gateway.engine.space import pool_assignments
from gateway.engine.space.pool_assignments import PoolAssignments
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import PAUSED, Pool
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools, node_pools
from rig.digests import Row
from tests.engine.datasets import Data, Shelf, equal_bodies, shelved

CAPACITY = 100_000
GIVEN = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT)
TAKEN = PoolOrder(CachingMode.NONE, WhyCaching.NO_BENEFIT)
IDLE = PoolOrder(CachingMode.FULL, WhyCaching.NO_JOBS)


@dataclass
class Ranks:
    """A cache for a hundred items, with the plan's orders for its datasets."""

    shelf: Shelf
    orders: dict[str, PoolOrder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin as a node that was just started."""
        planned = Planned(lambda: self.plan, lambda: CAPACITY)
        self.assignments = PoolAssignments(self.shelf.bench.store, planned.keeps, "lru")

    @property
    def plan(self) -> Plan:
        """The plan, as this node knows it."""
        return Plan(version=1, pools=dataset_pools(self.orders))

    async def hold(self, name: str, count: int = 40) -> Data:
        """A dataset whose items are in the cache, used after all that were there before."""
        self.shelf.bench.now[0] += 100
        data = await self.shelf.dataset(equal_bodies(count, 1000, name), "full")
        await data.warm(range(count))
        return data

    def say(self, data: Data, order: PoolOrder) -> None:
        """Have the plan say something."""
        self.orders[data.registration.content.id] = order

    async def settle(self) -> None:
        """Run enough turns that every item is ranked, including the periodic full pass."""
        for _ in range(2 * pool_assignments._EVERY):
            await self.assignments.assign(list(self.shelf.registry.contents()), self.plan, CAPACITY)

    async def need(self, items: int) -> None:
        """Need room for so many."""
        assert await self.shelf.bench.store.make_room(1000 * items)


@pytest.fixture
async def ranks(tmp_path: Path) -> AsyncIterator[Ranks]:
    """A cache that is empty."""
    async with shelved(tmp_path, capacity=CAPACITY) as shelf:
        yield Ranks(shelf)


def test_which_pools_a_plan_makes() -> None:
    """Rule: granted space becomes a target, withdrawn space a target of 0; a dataset without jobs has no pool."""
    datasets = {"given": replace(GIVEN, target=500), "taken": TAKEN, "idle": IDLE}
    assert node_pools(Plan(version=1, pools=dataset_pools(datasets)), 1000, 1000) == (
        Pool("dataset:given", 500, "uniform"),
        Pool("dataset:taken", 0, "uniform"),
    )


def test_a_node_has_its_share_of_a_pool() -> None:
    """Rule: a node has its part of a pool's target by capacity and a tenth more, never more than the target."""
    shared = Plan(version=1, pools=dataset_pools({"given": replace(GIVEN, target=500)}))
    assert [pool.target for pool in node_pools(shared, 1000, 4000)] == [138]


def test_a_dataset_of_unknown_size_has_what_others_leave() -> None:
    """Rule: a dataset with space and without lengths gets what a node can hold beside the other pools: all of it if it is alone,
    and nothing that was granted to others."""
    alone = Plan(version=1, pools=dataset_pools({"given": GIVEN}))
    assert [pool.target for pool in node_pools(alone, 1000, 4000)] == [989]
    beside = dataset_pools({"given": GIVEN, "known": replace(GIVEN, target=600), "other": GIVEN})
    targets = {pool.name: pool.target for pool in node_pools(Plan(version=1, pools=beside), 1000, 1000)}
    assert targets == {"dataset:given": 194, "dataset:known": 600, "dataset:other": 194}
    full = dataset_pools({"given": GIVEN, "known": replace(GIVEN, target=980)})
    (left, _) = node_pools(Plan(version=1, pools=full), 1000, 1000)
    assert 0 < left.target < 10
    assert left.target != PAUSED


async def test_without_a_plan_the_least_recently_used_go(ranks: Ranks) -> None:
    """Rule: without a plan, the least recently used blobs are evicted."""
    old, new = await ranks.hold("old"), await ranks.hold("new")
    await ranks.settle()
    await ranks.need(30)
    assert len(old.resident) <= 25
    assert len(new.resident) == 40


async def test_what_was_given_space_goes_last(ranks: Ranks) -> None:
    """Rule: items of datasets with granted space are evicted after all others, even if used longest ago."""
    old, new = await ranks.hold("old"), await ranks.hold("new")
    ranks.say(old, GIVEN)
    await ranks.settle()
    await ranks.need(30)
    assert len(old.resident) == 40
    assert len(new.resident) <= 25


async def test_what_space_was_taken_from_goes_first(ranks: Ranks) -> None:
    """Rule: items of a dataset that lost its space leave before all that were used longer ago."""
    old, new = await ranks.hold("old"), await ranks.hold("new")
    ranks.say(new, TAKEN)
    await ranks.settle()
    await ranks.need(30)
    assert len(old.resident) == 40
    assert len(new.resident) <= 25


async def test_a_grant_that_ends_leaves_items_as_used_now(ranks: Ranks) -> None:
    """Rule: when a dataset leaves the plan, its items count as used at that moment."""
    old = await ranks.hold("old")
    ranks.say(old, GIVEN)
    await ranks.settle()
    ranks.orders.clear()
    await ranks.settle()
    new = await ranks.hold("new")
    await ranks.need(30)
    assert len(new.resident) == 40
    assert len(old.resident) <= 25


async def test_what_the_plan_gives_up_is_not_counted_as_evicted(ranks: Ranks) -> None:
    """Rule: blobs that the plan releases do not count as evicted."""
    data = await ranks.hold("data", 20)
    store = ranks.shelf.bench.store
    assert await store.pools.evict([data.registration.content.digest(index) for index in range(5)]) == 5
    assert (store.status().evicted_blobs, store.status().evicted_bytes) == (0, 0)


async def test_items_that_come_later_are_ranked_too(ranks: Ranks) -> None:
    """Rule: items stored after the assignment enter the dataset's pool, also those evicted in between."""
    data = await ranks.hold("data", 20)
    ranks.say(data, GIVEN)
    await ranks.settle()
    await ranks.shelf.bench.store.pools.evict([data.registration.content.digest(index) for index in range(5)])
    await data.warm(range(5))
    await ranks.settle()
    other = await ranks.hold("other", 60)
    await ranks.need(60)
    assert len(data.resident) == 20
    assert len(other.resident) <= 20


async def test_shared_bytes_keep_the_better_standing(ranks: Ranks) -> None:
    """Rule: bytes shared with a dataset that keeps its space stay in that dataset's pool."""
    first = await ranks.hold("same")
    second = await ranks.shelf.register([_row(first, index) for index in range(30)], first.bodies[:30], "full")
    await second.warm(range(30))
    other = await ranks.hold("other", 40)
    ranks.say(second, GIVEN)
    ranks.say(first, TAKEN)
    await ranks.settle()
    await ranks.need(40)
    assert first.resident >= set(range(30))
    assert len(second.resident) == 30
    assert len(other.resident) < 40


async def test_a_restart_takes_every_rank_back(ranks: Ranks) -> None:
    """Rule: a restart evicts blobs of pools that no plan has any more like all others."""
    old = await ranks.hold("old")
    ranks.say(old, GIVEN)
    await ranks.settle()
    again = Ranks(ranks.shelf)
    await again.settle()
    new = await ranks.hold("new")
    await ranks.need(30)
    assert len(new.resident) == 40
    assert len(old.resident) <= 25


def _row(data: Data, index: int) -> Row:
    location = data.registration.locations.of(index)
    return Row(data.registration.content.digest(index), location.bucket, location.key, None, 1000)
