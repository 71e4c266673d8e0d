"""Larder's own caching: the manager's plan, decided by the shipped policies and carried out at once.

Every ``interval`` the manager gets the reports of jobs and nodes, and ``policies.space.manager.decide`` makes a plan of them.
As on the nodes, what is stored and what leaves follows from the plan: items of a dataset that is held whole, of chunks that are
held, of none. Chunks that the plan wants are preloaded with the bandwidth that jobs leave. The order of an epoch is decided by
``policies.space.chunk_order`` from what jobs propose and where they are, as the gateways do with Redis (fleet/jobs/jobs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.policies.items.datasets import CachingMode, decide
from gateway.policies.space.chunk_order import ChunkNumbers, Opening, OrderState, Place, open_epoch
from gateway.policies.space.manager import DatasetFacts, Facts, JobFacts, ManagerParams
from gateway.policies.space.manager import decide as decide_plan
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals
from gateway.sim.clock import Clock
from gateway.sim.jobs.items import Numbers, SimulatedItems, SimulatedSpace, chunk_numbers, dataset_id
from gateway.sim.jobs.job import JobRun
from larder.planner import EpochOrder, Layout

TENANT = "sim"
LUMP = 4
"""Items that are preloaded at a time, at most."""


@dataclass(frozen=True, slots=True)
class Managing:
    """Parameters of the manager of a run. ``preload`` in bytes per second; 0 has no limit."""

    settings: ManagerParams
    interval: float
    preload: float
    requested: Mapping[str, str]
    seed: int


class Managed:
    """Caching by the plan."""

    substitutes = True
    shares = True

    def __init__(self, clock: Clock, space: SimulatedSpace, managing: Managing, jobs: Sequence[JobRun]) -> None:
        self.plan = Plan()
        self.spans: dict[str, dict[int, list[list[float]]]] = {name: {} for name in space.datasets}
        """By dataset and chunk: when items of the chunk were in the cache, as pairs of times."""
        self.most_chunks: dict[str, int] = dict.fromkeys(space.datasets, 0)
        """By dataset: the most chunks that had items in the cache at a time while it was rotated."""
        self.starts: dict[str, int] = {}
        """By job: the chunk that it began with."""
        self._clock = clock
        self._space = space
        self._managing = managing
        self._jobs = jobs
        self._cuts: dict[str, tuple[tuple[int, int], Numbers]] = {}
        self._preloading: set[str] = set()
        self._layouts: dict[str, Layout] = {}
        self._orders: dict[str, dict[int, ChunkNumbers]] = {}
        self._places: dict[str, dict[str, Place | None]] = {name: {} for name in space.datasets}
        self._sequences: dict[str, ChunkNumbers] = {}
        self._generator = np.random.default_rng([managing.seed, 10**6])

    # --- for jobs

    def serves(self, job: JobRun) -> bool:
        """True unless the plan excludes this job from the cache, or does not cache its dataset."""
        order = self.job_order(job)
        if order is not None and (not order.cache or order.phase is Phase.PROBE_MISS):
            return False
        return self._caching(job.items) is not CachingMode.NONE

    def phase(self, job: JobRun) -> Phase:
        """As the plan says."""
        order = self.job_order(job)
        return Phase.STEADY if order is None else order.phase

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Store what the plan has room for."""
        caching = self._caching(items)
        if caching is CachingMode.CHUNKED:
            held = self._held(items)
            numbers = numbers[np.isin(self._chunk_of(items)[numbers], held)]
        elif caching is CachingMode.NONE:
            return
        self._space.add(items, numbers[: self._space.room(items)])

    def touch(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Do nothing: the plan does not depend on uses."""

    def order(self, job: JobRun, epoch: int) -> EpochOrder:
        """The chunks in the order that the fleet assigns to the job."""
        dataset = job.items.spec.name
        layout = self._layouts.setdefault(job.name, self._layout(job.items))
        proposal = EpochOrder(layout, seed=job.seed, epoch=epoch).numbers
        orders, places = self._orders.setdefault(job.name, {}), self._places[dataset]
        asked = Opening.under(self.plan.of(dataset), job.name, epoch, proposal)
        opened = open_epoch(asked, OrderState(orders, places, self._sequences.get(dataset, ())))
        for forgotten in opened.forgotten:
            del orders[forgotten]
        orders[epoch] = opened.order
        places[job.name] = opened.place or places[job.name]
        self._sequences[dataset] = opened.sequence or self._sequences.get(dataset, ())
        if not epoch:
            self.starts.setdefault(job.name, opened.order[0])
        return EpochOrder(layout, seed=job.seed, epoch=epoch, chunks=opened.order)

    def _layout(self, items: SimulatedItems) -> Layout:
        return Layout(items.count, *self._cut(items), order_seed=int(dataset_id(items.spec.name)[:16], 16))

    def joined(self, job: JobRun) -> None:
        """Make a new plan for a new job."""
        self.decide()

    def left(self, job: JobRun) -> None:
        """Forget the job's position; the next decision handles the rest."""
        self._places[job.items.spec.name].pop(job.name, None)

    # --- the manager

    def run(self) -> None:
        """Decide now, and again after every interval."""
        self.decide()
        self._clock.after(self._managing.interval, self.run)

    def decide(self) -> None:
        """Decide once, and apply the decision."""
        self.plan = decide_plan(self.plan, self._facts(), self._clock.now, self._managing.settings)
        for items in self._space.datasets.values():
            self._evict(items)
            self._observe(items)
        for items in self._space.datasets.values():
            self._preload(items)

    def _facts(self) -> Facts:
        datasets = {
            name: DatasetFacts(
                size=items.spec.size,
                items=items.count,
                requested=self._managing.requested[name],
                loaded=self._loaded(items),
                resident_share=float(np.count_nonzero(items.resident)) / items.count,
            )
            for name, items in self._space.datasets.items()
        }
        jobs = {f"{TENANT}/{job.name}": self._job_facts(job) for job in self._jobs if job.running}
        return Facts(capacity=int(self._space.capacity), datasets=datasets, jobs=jobs)

    def _job_facts(self, job: JobRun) -> JobFacts:
        upcoming = job.upcoming()
        place = self._places[job.items.spec.name].get(job.name)
        if place is not None:
            self._places[job.items.spec.name][job.name] = place.after(upcoming.epoch, upcoming.epoch_left)
        return JobFacts(
            tenant=TENANT,
            job=job.name,
            dataset=job.items.spec.name,
            gpus=job.spec.gpus,
            upcoming=upcoming.chunks,
            epoch_left=upcoming.epoch_left,
            totals={
                phase: PhaseTotals(of.steps, of.seconds, of.waited, of.items, of.hits)
                for phase, of in job.totals.items()
            },
            joined_at=job.joined_at,
        )

    # --- the nodes

    def _evict(self, items: SimulatedItems) -> None:
        caching = self._caching(items)
        if caching is CachingMode.NONE:
            self._space.remove(items, np.flatnonzero(items.resident))
        elif caching is CachingMode.CHUNKED:
            resident = np.flatnonzero(items.resident)
            chunks = self._chunk_of(items)[resident]
            self._space.remove(items, resident[~np.isin(chunks, self._held(items))])

    def _preload(self, items: SimulatedItems) -> None:
        name = items.spec.name
        order = self.plan.of(name)
        if name in self._preloading or order is None or order.chunks.loading < 0:
            return
        missing = np.flatnonzero((self._chunk_of(items) == order.chunks.loading) & ~items.resident & ~items.fetching)
        if not len(missing):
            return
        lump = self._generator.permutation(missing)[:LUMP]
        fetch = items.begin(lump)
        self._preloading.add(name)
        others = sum(1 for other in self.plan.datasets.values() if other.chunks.loading >= 0)

        def came() -> None:
            self._preloading.discard(name)
            self.keep(items, lump)
            items.end(fetch)
            self._preload(items)

        cap = self._managing.preload / others
        transfer = items.link.send(len(lump) * items.size, came, cap=cap, background=True)
        fetch.hurry = lambda: items.link.hurry(transfer)

    def _observe(self, items: SimulatedItems) -> None:
        """Record which chunks have items in the cache."""
        name = items.spec.name
        if self._caching(items) is not CachingMode.CHUNKED:
            return
        here = np.unique(self._chunk_of(items)[items.resident]).tolist()
        self.most_chunks[name] = max(self.most_chunks[name], len(here))
        now, before = self._clock.now, self._clock.now - self._managing.interval * 1.5
        for chunk in here:
            spans = self.spans[name].setdefault(chunk, [])
            if spans and spans[-1][1] >= before:
                spans[-1][1] = now
            else:
                spans.append([now, now])

    # --- look-ups

    def _caching(self, items: SimulatedItems) -> CachingMode:
        order = self.plan.of(items.spec.name)
        if order is not None:
            return order.caching
        return decide(self._managing.requested[items.spec.name], items.spec.size, int(self._space.capacity)).caching

    def job_order(self, job: JobRun) -> JobOrder | None:
        """The plan for a job."""
        return self.plan.jobs.get(f"{TENANT}/{job.name}")

    def _held(self, items: SimulatedItems) -> tuple[int, ...]:
        order = self.plan.of(items.spec.name)
        return () if order is None else order.chunks.held

    def _loaded(self, items: SimulatedItems) -> bool:
        order = self.plan.of(items.spec.name)
        if order is None or order.chunks.loading < 0:
            return False
        return bool(items.resident[self._chunk_of(items) == order.chunks.loading].all())

    def _cut(self, items: SimulatedItems) -> tuple[int, int]:
        order = self.plan.of(items.spec.name)
        if order is not None:
            return order.partitions, order.units
        plan = decide(self._managing.requested[items.spec.name], items.spec.size, int(self._space.capacity))
        return plan.partitions, plan.units

    def _chunk_of(self, items: SimulatedItems) -> Numbers:
        cut = self._cut(items)
        known = self._cuts.get(items.spec.name)
        if known is None or known[0] != cut:
            known = self._cuts[items.spec.name] = (cut, chunk_numbers(dataset_id(items.spec.name), items.count, *cut))
        return known[1]
