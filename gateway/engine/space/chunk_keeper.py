"""One node's part in performing the plan: evict what has no place any more, load what is to come, say how far it is.

The worker with the node lock does it, once per heartbeat. Room is made before anything is loaded into it, so at no time are items
of more than two chunks of a dataset kept for their own sake. What leaves is decided by the plan that this node follows; while
Redis is lost the plan stands still, and a load that has begun goes on to its end.

A node reports a chunk as loaded when all that it can have of its part is there; also when its disk is ill, or when nobody tells
it where the items are (no job's registration is known here): what then is missing is read by those who need it. When nodes
come or go, homes move: the parts of all held chunks are looked at again.

Which blobs go first when room is needed follows the plan too: see gateway/engine/space/pool_assignments.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway import metrics
from gateway.engine.items.homes import keys_of
from gateway.engine.space.chunk_eviction import outside, placeless
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders, OpenDatasets
from gateway.engine.space.planned import Planned
from gateway.engine.space.pool_assignments import PoolAssignments
from gateway.engine.space.preload import Preloader, Reader
from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.reports import NodeReport, NodeReports
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import dataset_pool
from gateway.policies.space.orders import PoolOrder
from gateway.store.datasets.opened import Registration
from gateway.store.store import Store
from gateway.tasks import stop

_SWEEP_EVERY = 10
_PATIENCE = 10

log = logging.getLogger("larder.chunks")

Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlanExchange:
    """The exchange of plans and reports between the fleet and this node."""

    planned: Planned
    jobs: Jobs
    reports: NodeReports[dict[str, NodeReport]]
    membership: Membership


@dataclass(slots=True)
class _Load:
    """One chunk's part on this node. ``homes`` is the version of the membership for which it is loaded."""

    homes: int
    task: asyncio.Task[None]
    done: bool = False


@dataclass(slots=True)
class _Rotated:
    """A rotated dataset, as this node keeps it."""

    order: PoolOrder
    readers: list[Reader] = field(default_factory=list)
    turns: int = 0
    unknown_for: int = 0


class ChunkKeeper:
    """Performs the plan on this node.

    Args:
        store: of the node.
        preloader: brings items.
        shelves: what datasets there are.
        told: the fleet.
        eviction: order of the pool ``default``.
        scores: how important items are.
    """

    def __init__(
        self,
        store: Store,
        preloader: Preloader,
        shelves: OpenDatasets,
        told: PlanExchange,
        eviction: str = LeastRecentlyUsed.name,
        scores: ItemScores | None = None,
    ) -> None:
        self._store = store
        self._preloader = preloader
        self._shelves = shelves
        self._told = told
        self._rotated: dict[str, _Rotated] = {}
        self._loads: dict[Part, _Load] = {}
        self._jobs = JobReaders(told.jobs, shelves, store.items)
        self._placed: dict[str, Registration] = {}
        self._wanted: frozenset[str] = frozenset()
        self._turns = 0
        self._reported = True
        self._assignments = PoolAssignments(store, told.planned.keeps, eviction, told.membership.me, scores)

    async def turn(self) -> None:
        """Run once per heartbeat; does nothing in a worker without the node lock."""
        if not self._store.directory.locked:
            await self.stop()
            return
        orders = self._told.planned.plan.datasets
        rotated = {name: order for name, order in orders.items() if order.caching is CachingMode.CHUNKED}
        self._forget_others(rotated)
        self._jobs.look_again()
        await self._place(frozenset(name for name, order in orders.items() if order.caching is not CachingMode.NONE))
        for name, order in rotated.items():
            await self._keep(name, order)
        planned = self._told.planned
        await self._assignments.turn(list(self._shelves.contents()), planned.plan, planned.capacity)
        try:
            await self._report(orders)
        except DOWN:
            return  # it is said again with the next heartbeat

    async def stop(self) -> None:
        """Stop loading."""
        loads = [load.task for load in self._loads.values()]
        self._loads.clear()
        await stop(loads)
        await self._jobs.stop()
        self._rotated.clear()
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

    def _forget_others(self, rotated: dict[str, PoolOrder]) -> None:
        for name in [name for name in self._rotated if name not in rotated]:
            del self._rotated[name]
        for part in [
            part for part in self._loads if part[0] not in rotated or part[1] not in rotated[part[0]].chunks.held
        ]:
            self._loads.pop(part).task.cancel()

    async def _keep(self, name: str, order: PoolOrder) -> None:
        known = self._rotated.setdefault(name, _Rotated(order))
        if not known.readers or known.turns % _SWEEP_EVERY == 0:
            known.readers = await self._jobs.readers(name) or known.readers
            known.unknown_for = 0 if known.readers else known.unknown_for + 1
        if known.order.units != order.units:
            for part in [part for part in self._loads if part[0] == name]:
                self._loads.pop(part).task.cancel()
        changed = (known.order.chunks.held, known.order.units) != (order.chunks.held, order.units)
        if changed or known.turns % _SWEEP_EVERY == 0:
            await self._evict(name, order)
        known.order = order
        known.turns += 1
        if known.readers:
            self._load_all(name, order, known.readers)

    # --- room

    async def _evict(self, name: str, order: PoolOrder) -> None:
        for content in [content for content in self._shelves.contents() if content.id == name]:
            cut = self._told.planned.cut(content, order.partitions, order.units)
            indices = outside(content, cut, order.chunks.held)
            for gone, placed in placeless(content, indices, self._shelves.contents(), self._told.planned.keeps):
                if gone:
                    metrics.CHUNK_ITEMS.labels("evicted").inc(await self._store.pools.evict(gone))
                for dataset in {dataset for _, dataset in placed if dataset != name}:
                    left = [digest for digest, holder in placed if holder == dataset]
                    await self._store.pools.charge(left, dataset_pool(dataset))
                await asyncio.sleep(0)

    # --- loading

    def _load_all(self, name: str, order: PoolOrder, readers: list[Reader]) -> None:
        version = self._told.membership.version
        for chunk in order.chunks.held:
            load = self._loads.get((name, chunk))
            if load is not None and load.homes == version:
                continue
            if load is not None:
                load.task.cancel()
            task = asyncio.get_running_loop().create_task(self._load(name, order, chunk, readers))
            self._loads[name, chunk] = _Load(version, task)

    async def _load(self, name: str, order: PoolOrder, chunk: int, readers: list[Reader]) -> None:
        try:
            content = readers[0].registration.content
            indices = self._told.planned.cut(content, order.partitions, order.units).items_of(chunk)
            homes, _ = self._told.membership.homes(keys_of(content, indices))
            if self._store.usable:
                of_one = [reader for reader in readers if reader.registration.content is content]
                mine = indices[homes < 0]
                left = await self._preloader.load(of_one, mine)
                log.info(
                    "chunk %(chunk)d of dataset %(dataset)s: of %(items)d items %(home)d are at home here: %(held)d of those are "
                    "held, %(failed)d not to be had",
                    {
                        "chunk": chunk,
                        "dataset": name[:12],
                        "items": len(indices),
                        "home": len(mine),
                        "held": len(mine) - left,
                        "failed": left,
                    },
                )
        except Exception:
            # Whatever is wrong with this chunk must not hold up the rotation.
            log.exception("a chunk could not be loaded; it is read by those who need it")
        load = self._loads.get((name, chunk))
        if load is not None and load.task is asyncio.current_task():
            load.done = True

    # --- saying so

    async def _report(self, orders: Mapping[str, PoolOrder]) -> None:
        resident: dict[str, int] = {}
        for content in self._shelves.contents():
            if content.id in orders:
                resident[content.id] = max(resident.get(content.id, 0), content.states.resident)
        report = {
            name: NodeReport(order.chunks.loading if self._has(name, order) else -1, resident.get(name, 0))
            for name, order in orders.items()
        }
        # Another worker may have reported for this node before: nothing to report is said once.
        if report or self._reported:
            await self._told.reports.tell(self._told.membership.me, report)
            self._reported = bool(report)

    def _has(self, name: str, order: PoolOrder) -> bool:
        """Whether this node has what it can have of the chunk that is being loaded."""
        known = self._rotated.get(name)
        if known is None or order.chunks.loading < 0:
            return False
        load = self._loads.get((name, order.chunks.loading))
        return known.unknown_for > _PATIENCE if load is None else load.done
