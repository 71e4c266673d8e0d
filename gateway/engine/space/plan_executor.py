"""Executes the plan on one node: keeps its datasets open, charges blobs to pools, reports which items are here.

The keeper does it once per heartbeat. While Redis is down the plan does not change. Demand decides which items of a dataset are
loaded into its space (gateway/engine/items/demand.py). The plan decides which blobs are evicted first:
see gateway/engine/space/pool_assignments.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.engine.base.planned import Planned
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders, OpenDatasets
from gateway.engine.space.pool_assignments import PoolAssignments
from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.reports import NodeReport, NodeReports
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.opened import Registration
from gateway.store.store import Store

_SWEEP_EVERY = 10


@dataclass(frozen=True, slots=True)
class PlanExchange:
    """The exchange of plans and reports between the fleet and this node."""

    planned: Planned
    jobs: Jobs
    reports: NodeReports[dict[str, NodeReport]]
    membership: Membership


class PlanExecutor:
    """Executes the plan on this node.

    Args:
        store: of the node.
        shelves: the registered datasets.
        exchange: the fleet.
        eviction: order of the pool ``default``.
        scores: the importance of items.
    """

    def __init__(
        self,
        store: Store,
        shelves: OpenDatasets,
        exchange: PlanExchange,
        eviction: str = LeastRecentlyUsed.name,
        scores: ItemScores | None = None,
    ) -> None:
        self._store = store
        self._shelves = shelves
        self._exchange = exchange
        self._jobs = JobReaders(exchange.jobs, shelves, store.items)
        self._placed: dict[str, Registration] = {}
        self._wanted: frozenset[str] = frozenset()
        self._turns = 0
        self._reported = True
        self._assignments = PoolAssignments(store, exchange.planned.keeps, eviction, exchange.membership.me, scores)

    async def run_once(self) -> None:
        """Run once per heartbeat; does nothing in a worker without the node lock."""
        if not self._store.directory.locked:
            await self.stop()
            return
        orders = self._exchange.planned.plan.datasets
        self._jobs.look_again()
        await self._place(frozenset(name for name, order in orders.items() if order.caching is not CachingMode.NONE))
        planned = self._exchange.planned
        await self._assignments.assign(list(self._shelves.contents()), planned.plan, planned.capacity)
        try:
            await self._report(orders)
        except DOWN:
            return  # sent again with the next heartbeat

    async def stop(self) -> None:
        """Release the datasets."""
        await self._jobs.stop()
        self._placed.clear()
        self._wanted = frozenset()
        self._reported = True

    async def _place(self, wanted: frozenset[str]) -> None:
        """Keep datasets with space open: their items are protected and counted here, whichever worker serves them."""
        self._turns += 1
        if wanted == self._wanted and self._turns % _SWEEP_EVERY:
            return
        self._wanted = wanted
        self._placed = {name: known for name, known in self._placed.items() if name in wanted}
        looked = set()
        for record in await self._jobs.records():
            name = record.dataset
            if name in wanted and name not in looked:
                registration = await self._jobs.registration(record.tenant, name)
                if registration is not None:
                    looked.add(name)
                    self._store.items.adopt(registration.content)
                    self._placed[name] = registration

    async def _report(self, datasets: Iterable[str]) -> None:
        resident: dict[str, int] = {}
        for content in self._shelves.contents():
            held = content.states.resident
            resident[content.id] = max(resident.get(content.id, 0), held)
            if content.id in self._wanted:
                self._store.note_steady(content.tag, held * content.size // max(1, content.items))
        known = {name for name, items in resident.items() if items}.union(datasets)
        report = {name: NodeReport(resident=resident.get(name, 0)) for name in known}
        # Another worker may have reported for this node before: send an empty report once.
        if report or self._reported:
            await self._exchange.reports.send(self._exchange.membership.me, report)
            self._reported = bool(report)
