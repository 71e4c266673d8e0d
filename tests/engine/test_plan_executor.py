"""The plan performed on one node, over a real store: what a dataset was granted is not evicted for room in reserve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gateway.engine.base.planned import Planned
from gateway.engine.space.job_readers import OpenDatasets
from gateway.engine.space.plan_executor import PlanExchange, PlanExecutor
from gateway.fleet.jobs.jobs import JobRecord
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools
from tests.engine.datasets import Shelf, equal_bodies, shelved
from tests.engine.test_demand_swaps import CAPACITY, SIZE


class NoJobs:
    """A zone without jobs."""

    async def records(self) -> list[JobRecord]:
        """None."""
        return []


class Told:
    """What nodes report."""

    async def send(self, node: str, report: Mapping[str, object]) -> None:
        """Nobody listens."""


class Alone:
    """A fleet of one node."""

    me = "node"


def executor_of(shelf: Shelf, plan: Plan) -> PlanExecutor:
    """The plan executor of a node that follows a plan."""
    planned = Planned(lambda: plan, lambda: CAPACITY)
    store = shelf.bench.store
    told = PlanExchange(planned, cast(Any, NoJobs()), cast(Any, Told()), cast(Any, Alone()))
    return PlanExecutor(store, OpenDatasets(shelf.registry.get, shelf.registry.contents, lambda _identity: True), told)


async def test_a_whole_dataset_within_its_grant_is_not_evicted(tmp_path: Path) -> None:
    """Rule: bytes of a dataset with space need no room in reserve, also where it is whole: 97 of 100 items stay."""
    async with shelved(tmp_path, CAPACITY) as shelf:
        data = await shelf.dataset(equal_bodies(97, SIZE), "full")
        order = PoolOrder(CachingMode.FULL, WhyCaching.REQUESTED, 97 * SIZE)
        plan = Plan(version=1, pools=dataset_pools({data.registration.content.id: order}))
        assert await shelf.bench.store.try_lock()
        executor = executor_of(shelf, plan)
        await data.fill(range(90))
        await executor.run_once()
        await data.fill(range(90, 97))
        await shelf.bench.store.sweep()
        await executor.stop()
        assert len(data.resident) == 97
        assert shelf.bench.store.status().bytes <= CAPACITY
