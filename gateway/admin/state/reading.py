"""The state of the whole fleet, read by any node: overview, nodes, jobs and datasets are rendered from one ``FleetReading``.

The state of other nodes is in Redis. While Redis is unreachable, the last reading stays, with this node's part kept current. A
reading is shared for a second, however many pages refresh themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gateway.engine.operations.watch import NodeWatch
from gateway.engine.space.manager import Coordination
from gateway.fleet.jobs.datasets import DatasetTable, Name
from gateway.fleet.jobs.jobs import KnownJob
from gateway.fleet.jobs.pipelines import KnownPipeline, WorkersChange
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.reports import NodeReport, ResultsUsed
from gateway.fleet.nodes.samples import NodeSample, Samples
from gateway.fleet.redis.connection import why_down
from gateway.model.counters import Counters, Sample
from gateway.model.fleet import Node
from gateway.policies.health.misses import MissReport
from gateway.policies.space.importance import ScoreReport
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan
from gateway.policies.streams.zone import NodeStreams, PoolReport
from gateway.store.datasets.announced import AnnouncedRegistration, inventory
from gateway.store.datasets.folders import Folders

T = TypeVar("T")

BELIEVED = 1.0
"""Seconds for which a reading is reused."""
GONE = 10.0
"""Seconds of silence after which a node that is no longer a member counts as gone; longer than ``fleet.expire``."""
_ENOUGH = 15
"""Samples of a node that cover the last minute."""
_LOOK_AT_DISK = 5.0
"""Seconds between two reads of the registrations on this node's disk."""


@dataclass(frozen=True, slots=True)
class FleetSources:
    """Sources of a reading. ``table`` is ``None`` for a node outside a fleet, whose datasets are only in ``folders``.
    ``overrides`` are operators'."""

    samples: Samples
    coordination: Coordination
    membership: Membership
    watch: NodeWatch
    table: DatasetTable | None
    folders: Folders
    overrides: Callable[[], Overrides]
    probe_batches: int = 0


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The fleet at one moment. ``at`` is in seconds of Redis's clock; ``lost`` says why Redis is unreachable, or is empty.

    ``listed``: the registered datasets whose listings are recorded. ``begun`` has the times when problems of the zone began,
    ``mutes`` the times when operators' mutes end.
    ``probe_batches``: mini-batches for which a job is measured without the cache, and with it.
    """

    at: float = 0.0
    lost: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    statuses: Mapping[str, NodeSample] = field(default_factory=dict)
    samples: Mapping[str, list[Sample]] = field(default_factory=dict)
    counted: Mapping[str, Sample] = field(default_factory=dict)
    retired: Counters = field(default_factory=Counters)
    plan: Plan = field(default_factory=Plan)
    jobs: tuple[KnownJob, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    reports: Mapping[str, Mapping[str, NodeReport]] = field(default_factory=dict)
    streams: Mapping[str, NodeStreams] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, ScoreReport]] = field(default_factory=dict)
    pipelines: Mapping[str, KnownPipeline] = field(default_factory=dict)
    scaling: Mapping[str, Mapping[int, tuple[WorkersChange, ...]]] = field(default_factory=dict)
    results: Mapping[str, ResultsUsed] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, PoolReport]] = field(default_factory=dict)
    datasets: Mapping[Name, str] = field(default_factory=dict)
    listed: frozenset[Name] = frozenset()
    misses: Mapping[str, MissReport] = field(default_factory=dict)
    begun: Mapping[str, float] = field(default_factory=dict)
    mutes: Mapping[str, float] = field(default_factory=dict)
    probe_batches: int = 0

    @property
    def gone(self) -> Mapping[str, NodeSample]:
        """Last samples of nodes that left the fleet without stopping, and were neither dismissed nor replaced.

        A node is replaced by a member at the same address.
        """
        taken = {node.address for node in self.nodes.values()}
        return {
            name: sample
            for name, sample in self.statuses.items()
            if name not in self.nodes and sample.age > GONE and sample.document.get("address") not in taken
        }

    @property
    def capacity(self) -> int:
        """Bytes of all members' caches."""
        return sum(node.capacity for node in self.nodes.values())

    def status(self, node: str) -> Mapping[str, Any]:
        """The last report of a node; empty before the first."""
        return self.statuses[node].document if node in self.statuses else {}

    def reported_datasets(self) -> Iterator[Mapping[str, Any]]:
        """Reports of each node on datasets: items, bytes and resident items by id."""
        for name in self.nodes:
            datasets = self.status(name).get("datasets")
            if isinstance(datasets, Mapping):
                yield datasets

    def size_of(self, dataset: str) -> tuple[int | None, int | None]:
        """Items and bytes of a dataset, if a node or a job reports them."""
        said = [report[dataset] for report in self.reported_datasets() if dataset in report]
        if said:
            return max(int(sizes[0]) for sizes in said), max(int(sizes[1]) for sizes in said)
        records = [job.record for job in self.jobs if job.record.dataset == dataset]
        if records:
            return max(record.items for record in records), max(record.size for record in records)
        return None, None


class FleetReader:
    """Reads the state of the fleet, for one worker."""

    def __init__(self, sources: FleetSources, clock: Callable[[], float] = time.monotonic) -> None:
        self.sources = sources
        self._clock = clock
        self._reading = FleetReading()
        self._read_at = 0.0
        self._stale = True
        self._lost_at = 0.0
        self._own: tuple[float, Mapping[Name, AnnouncedRegistration]] = (float("-inf"), {})
        self._once = asyncio.Lock()

    @property
    def lost_for(self) -> float:
        """Seconds for which Redis has been unreachable; 0 while it answers."""
        return self._clock() - self._lost_at if self._reading.lost else 0.0

    @property
    def last(self) -> FleetReading:
        """The last reading."""
        return self._reading

    def stale(self) -> None:
        """Make the next ``look`` read again, after a change."""
        self._stale = True

    async def look(self) -> FleetReading:
        """A reading at most a second old."""
        async with self._once:
            if self._stale or self._clock() - self._read_at >= BELIEVED:
                await self._read()
            return self._reading

    async def find(self, list_of: Callable[[FleetReading], Iterable[T]], wanted: Callable[[T], bool]) -> T | None:
        """The wanted item of a list, read again if it is missing, as it may be newer than the last reading; ``None`` if there is
        none."""
        for _ in range(2):
            for entry in list_of(await self.look()):
                if wanted(entry):
                    return entry
            self.stale()
        return None

    async def _read(self) -> None:
        before, elapsed = self._reading, self._clock() - self._read_at
        self._stale = False
        try:
            self._reading = await self._from_redis()
        except DOWN as error:
            if not before.lost:
                self._lost_at = self._clock()
            at = before.at + elapsed if before.at else time.time()
            self._reading = replace(self._alone(before), at=at, lost=why_down(error))
        self._read_at = self._clock()

    async def _from_redis(self) -> FleetReading:
        sources = self.sources
        together = sources.coordination
        statuses = await sources.samples.statuses()
        nodes = dict(sources.membership.nodes)
        _, jobs = await together.jobs.all()
        records = [job.record for job in jobs]
        await together.plans.remember()
        registered = await self._registered()
        return FleetReading(
            at=statuses.now,
            nodes=nodes,
            statuses=statuses.nodes,
            samples=await sources.samples.recent(nodes, _ENOUGH),
            counted=statuses.counted,
            retired=statuses.retired,
            plan=together.plans.plan,
            jobs=tuple(jobs),
            overrides=sources.overrides(),
            reports=await together.reports.all(),
            streams=await together.streams.all(),
            scores=await together.scores.all(),
            pipelines=await together.pipelines.of(records),
            scaling=await together.pipelines.workers_of([record.key for record in records]),
            results=await together.results.all(),
            held=await together.held.all(),
            datasets={name: known.id for name, known in registered.items()},
            listed=frozenset(name for name, known in registered.items() if known.records_listings),
            misses=await together.misses.all(),
            begun=await together.begun.all(),
            mutes=await together.begun.mutes(),
            probe_batches=sources.probe_batches,
        )

    async def _registered(self) -> Mapping[Name, AnnouncedRegistration]:
        """The registered datasets: from the fleet's table, or from this node's disk."""
        if self.sources.table is not None:
            _, entries = await self.sources.table.all()
            return {name: AnnouncedRegistration(entry.tag, entry.stamp) for name, entry in entries.items()}
        if self._clock() - self._own[0] >= _LOOK_AT_DISK:
            self._own = (self._clock(), await asyncio.to_thread(inventory, self.sources.folders))
        return self._own[1]

    def _alone(self, before: FleetReading) -> FleetReading:
        """The last reading, with this node's own part updated."""
        watch, me = self.sources.watch, self.sources.membership.me
        statuses, samples = dict(before.statuses), dict(before.samples)
        if watch.document:
            statuses[me] = NodeSample(0.0, watch.document)
        if watch.recent:
            samples[me] = list(watch.recent)
        return replace(
            before,
            nodes=dict(self.sources.membership.nodes),
            statuses=statuses,
            samples=samples,
            overrides=self.sources.overrides(),
        )
