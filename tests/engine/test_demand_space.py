"""Space of datasets that are kept in part, in the engine: who makes room for whom, and what leaves first; over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.engine.base.planned import Planned
from gateway.engine.space.pool_assignments import PoolAssignments
from gateway.model.reader import ReadingJob
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import dataset_pool
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools
from tests.engine.datasets import Data, Shelf, equal_bodies, shelved
from tests.engine.test_demand_swaps import CAPACITY, ONE, OTHER, SIZE, read


@dataclass
class Zone:
    """A cache of a hundred items, and the plan that divides it."""

    shelf: Shelf
    targets: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the engine follow the plan."""
        planned = Planned(lambda: self.plan, lambda: CAPACITY)
        self._assignments = PoolAssignments(self.shelf.bench.store, planned.keeps, "lru")
        self.shelf.batches.fetches.demand._share = planned.share

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        orders = {
            name: PoolOrder(CachingMode.PART if target else CachingMode.NONE, WhyCaching.BENEFIT, target)
            for name, target in self.targets.items()
        }
        return Plan(version=1, pools=dataset_pools(orders))

    async def give(self, data: Data, items: int) -> None:
        """Give a dataset space for so many items."""
        self.targets[data.registration.content.id] = items * SIZE
        await self._assignments.assign(list(self.shelf.registry.contents()), self.plan, CAPACITY)

    async def dataset(self, name: str) -> Data:
        """A dataset of two hundred items."""
        return await self.shelf.dataset(equal_bodies(200, SIZE, name), "part")

    async def read(self, data: Data, items: int, reader: ReadingJob = ONE) -> None:
        """Read a dataset's first items in small batches."""
        for start in range(0, items, 10):
            self.shelf.batches.fetches.demand._noted.clear()
            await read(data, range(start, start + 10), reader)


@pytest.fixture
async def zone(tmp_path: Path) -> AsyncIterator[Zone]:
    """A cache of a hundred items of a thousand bytes."""
    async with shelved(tmp_path, CAPACITY) as shelf:
        yield Zone(shelf)


async def test_a_dataset_below_its_space_displaces_those_above_theirs(zone: Zone) -> None:
    """Rule: it gets nearly all of its space, by what is over the space of others, which keep theirs."""
    first, second = await zone.dataset("first"), await zone.dataset("second")
    await zone.give(first, 50)
    await first.fill(range(100))
    assert len(first.resident) > 90
    await zone.give(second, 40)
    await zone.read(second, 100)
    assert 39 <= len(second.resident) <= 50
    assert len(first.resident) >= 50
    assert zone.shelf.bench.store.status().bytes <= CAPACITY


async def test_plain_reads_make_room_for_a_dataset_below_its_space(zone: Zone) -> None:
    """Rule: what nobody was given space for leaves for a dataset that was."""
    other, data = await zone.dataset("other"), await zone.dataset("given")
    await other.fill(range(100))
    await zone.give(data, 80)
    await zone.read(data, 150)
    assert len(data.resident) >= 79


async def test_a_dataset_that_has_its_space_displaces_nobody(zone: Zone) -> None:
    """Rule: beyond its space it takes free room only, however often it is read."""
    first, second = await zone.dataset("first"), await zone.dataset("second")
    await zone.give(first, 70)
    await first.fill(range(100))
    await zone.give(second, 15)
    await zone.read(second, 200)
    held = len(first.resident)
    assert held >= 70
    await zone.read(second, 200, ReadingJob("t", "one", 1))
    assert len(first.resident) == held


async def test_a_dataset_grows_by_what_it_lacks_between_two_estimates(zone: Zone) -> None:
    """Rule: loads count as held before the next estimate, so what comes after the dataset has its space displaces nothing: it
    enters free room at most, such as evictions leave."""
    first, second = await zone.dataset("first"), await zone.dataset("second")
    await zone.give(first, 70)
    await first.fill(range(100))
    await zone.give(second, 15)
    demand = zone.shelf.batches.fetches.demand
    demand._clock = lambda: 0.0
    await read(second, range(30), ONE)
    while demand._growth(second.registration.content) >= SIZE:
        await read(second, range(30), ONE)
    kept = second.resident
    for index in range(30, 100):
        await read(second, [index], ONE)
    assert kept <= second.resident
    assert 10 <= len(second.resident) <= 30


async def test_the_least_needed_items_of_a_shrinking_dataset_leave_first(zone: Zone) -> None:
    """Rule: a dataset that loses space gives what all jobs have consumed, then what one still needs, then the rest."""
    first, second = await zone.dataset("first"), await zone.dataset("second")
    await zone.give(first, 90)
    await first.fill(range(100))
    before = sorted(first.resident)
    consumed, needed_once = set(before[:30]), set(before[30:60])
    await read(first, consumed | needed_once, ONE)
    await read(first, consumed, OTHER)
    await zone.give(first, 20)
    await zone.give(second, 50)
    await zone.read(second, 100)
    gone = set(before) - first.resident
    assert len(gone) > 40
    assert consumed <= gone <= consumed | needed_once


async def test_what_a_job_of_another_dataset_needs_leaves_last(zone: Zone) -> None:
    """Rule: bytes that are items of two datasets are needed by the jobs of both."""
    bodies = equal_bodies(100, SIZE, "both")
    first = await zone.shelf.dataset(bodies, "part")
    twin = await zone.shelf.dataset(bodies[:50] + equal_bodies(1, SIZE, "own"), "part")
    await zone.give(first, 90)
    await first.fill(range(80))
    await read(first, range(80), ONE)
    await read(twin, range(30), OTHER)
    least = zone.shelf.bench.store.items.least_needed(20)[dataset_pool(first.registration.content.id)]
    needed = {twin.registration.content.digest(index) for index in range(30, 50)}
    assert len(least) == 20
    assert not needed & set(least)
    everything = zone.shelf.bench.store.items.least_needed(80)[dataset_pool(first.registration.content.id)]
    assert set(everything[-20:]) == needed
