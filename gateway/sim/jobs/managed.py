"""Larder's own caching: the manager's plan, made by the shipped policies and executed at once.

Every ``interval`` the manager gets the reports of jobs and nodes, from which ``policies.space.manager.decide`` makes a plan. As
on the nodes, a dataset keeps items up to its target, and takes room from datasets that exceed theirs. For a dataset held in
part, demand decides which items stay and which a batch takes (``sim.jobs.demand``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.policies.items.batch import choose
from gateway.policies.items.datasets import CachingMode, decide
from gateway.policies.items.demand import JOBS
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams
from gateway.policies.space.manager import decide as decide_plan
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals
from gateway.sim.jobs.demand import SimulatedDemand
from gateway.sim.jobs.items import Numbers, SimulatedItems, SimulatedSpace
from gateway.sim.jobs.job import JobRun, Picked, shuffled
from gateway.sim.world.clock import Clock
from larder.planner import Candidates, EpochOrder

TENANT = "sim"
PER_ITEM = 4
"""Offers that a loader asks for, per item of a batch (``larder.training.sharing``)."""


@dataclass(frozen=True, slots=True)
class Managing:
    """Parameters of the manager of a run."""

    settings: ManagerParams
    interval: float
    requested: Mapping[str, str]
    seed: int
    orders: bool = True
    """Whether homes know the orders that jobs follow exactly."""


class Managed:
    """Caching by the plan."""

    substitutes = True
    shares = True

    def __init__(self, clock: Clock, space: SimulatedSpace, managing: Managing, jobs: Sequence[JobRun]) -> None:
        self.plan = Plan()
        self._clock = clock
        self._space = space
        self._managing = managing
        self._jobs = jobs
        self._generator = np.random.default_rng([managing.seed, 10**6])
        self._demand = {name: SimulatedDemand(items, clock, self._generator) for name, items in space.datasets.items()}

    # --- for jobs

    def serves(self, job: JobRun) -> bool:
        """Whether the job gets hits: not if the plan excludes it or refuses it hits, or does not cache its dataset."""
        order = self.job_order(job)
        return self._stores(job) and (order is None or order.cache)

    def _stores(self, job: JobRun) -> bool:
        """Whether items that a job reads may stay, even if the job is refused hits, because other jobs need them."""
        order = self.job_order(job)
        if order is not None and not order.cache and order.phase is not Phase.PROBE_MISS:
            return False
        return self._caching(job.items) is not CachingMode.NONE

    def phase(self, job: JobRun) -> Phase:
        """The phase in the plan."""
        order = self.job_order(job)
        return Phase.STEADY if order is None else order.phase

    def order(self, job: JobRun, epoch: int) -> EpochOrder:
        """Uniform."""
        return shuffled(job.items.count, job.seed, epoch)

    def begun(self, job: JobRun) -> None:
        """Record that the job needs all items again."""
        self._demand_of(job).begin(job)

    def offers(self, job: JobRun, take: int) -> Numbers:
        """Items of a dataset held in part that other jobs have consumed."""
        if self._caching(job.items) in (CachingMode.NONE, CachingMode.FULL) or not self.serves(job):
            return np.zeros(0, np.int64)
        return self._demand_of(job).offers(job.name, PER_ITEM * take)

    def pick(self, job: JobRun, candidates: Candidates) -> Picked:
        """The items to deliver and to load; for a dataset held in part, demand decides. A job that is refused hits first takes
        items that it would have to read anyway.
        """
        items, take = job.items, candidates.take
        resident = items.resident[candidates.indices]
        if not self.serves(job):
            refused = np.argsort(resident, kind="stable") if self._stores(job) else np.arange(len(resident))
            return Picked(np.zeros(0, np.int64), refused[:take])
        if np.count_nonzero(resident[:take]) == take:
            return Picked(np.arange(take), np.zeros(0, np.int64))
        if self._caching(items) is CachingMode.FULL:
            order = self._generator.permutation(len(resident))
            choice = choose(order, resident, items.fetching[candidates.indices])
        else:
            choice = self._demand_of(job).choose(job.name, candidates, resident, self._free(items))
        hits = choice.resident[:take]
        missing = choice.others[: take - len(hits)]
        return Picked(np.concatenate([hits, choice.spare[: take - len(hits) - len(missing)]]), missing)

    def reserve(self, job: JobRun, numbers: Numbers) -> Numbers:
        """Reserve room for items about to be read: first free room, then the room of residents that are needed less."""
        items = job.items
        if not self._stores(job):
            return numbers[:0]
        new = numbers[~items.resident[numbers]]
        free = min(self._free(items), len(new))
        self._reclaim(items, free)
        stored, rest = new[:free], new[free:]
        if len(rest) and self._caching(items) is not CachingMode.FULL:
            stored = np.concatenate([stored, self._replacing(job, rest)])
        items.reserved += len(stored)
        self._space.reserved += len(stored) * items.size
        return stored

    def _replacing(self, job: JobRun, numbers: Numbers) -> Numbers:
        """The items for which other items are evicted."""
        demand = self._demand_of(job)
        uses = demand.next_uses() if self._managing.orders else None
        if uses is not None:
            entering, gone = demand.replace_by_use(job.name, uses, numbers)
            self._space.remove(job.items, gone)
            return entering
        need = demand.need_after(job.name, numbers)
        wanted = numbers[np.argsort(-need.astype(np.int64), kind="stable")][: np.count_nonzero(need)]
        if not len(wanted):
            return wanted
        leaving = demand.replace(np.sort(need[need > 0])[::-1].tolist())
        self._space.remove(job.items, np.array([index for chosen in leaving for index in chosen], np.int64))
        return wanted[[bool(chosen) for chosen in leaving]]

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Store the items for which room was reserved."""
        items.reserved -= len(numbers)
        self._space.reserved -= len(numbers) * items.size
        self._space.add(items, numbers)

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Record that the job no longer needs the items in its epoch."""
        self._demand_of(job).consumed(job.name, numbers)

    def joined(self, job: JobRun) -> None:
        """Make a new plan for a new job."""
        self.decide()

    def left(self, job: JobRun) -> None:
        """Forget a job's needs; the next decision handles the rest."""
        self._demand_of(job).leave(job.name)

    def _demand_of(self, job: JobRun) -> SimulatedDemand:
        return self._demand[job.items.spec.name]

    # --- room

    def _free(self, items: SimulatedItems) -> int:
        """Number of further items that fit into a dataset's target."""
        room = self._space.room(items) + int(sum(over for _, over in self._beyond(items)) / items.size)
        held = int(np.count_nonzero(items.resident)) + items.reserved
        return max(0, min(int(self._target(items) / items.size + 1e-6) - held, room))

    def _beyond(self, spared: SimulatedItems) -> list[tuple[SimulatedItems, float]]:
        """The datasets that exceed their targets, and by how many bytes."""
        others = [items for items in self._space.datasets.values() if items is not spared]
        over = [(items, np.count_nonzero(items.resident) * items.size - self._target(items)) for items in others]
        return [(items, beyond) for items, beyond in over if beyond >= items.size]

    def _reclaim(self, items: SimulatedItems, count: int) -> None:
        """Evict items of datasets that exceed their targets, the least needed first, until ``items`` fit."""
        for other, over in self._beyond(items):
            lack = (count - self._space.room(items)) * items.size
            if lack <= 0:
                return
            most = min(-(-lack // other.size), over // other.size)
            leaving = self._demand[other.spec.name].least_needed(JOBS + 1, int(most))[: int(most)]
            self._space.remove(other, np.array([index for index, _ in leaving], np.int64))

    def _target(self, items: SimulatedItems) -> int:
        order = self.plan.of(items.spec.name)
        return int(items.spec.size) if order is None else order.target

    # --- the manager

    def run(self) -> None:
        """Decide now, and again after every interval."""
        self.decide()
        self._clock.after(self._managing.interval, self.run)

    def decide(self) -> None:
        """Decide once, and apply the decision."""
        self.plan = decide_plan(self.plan, self._facts(), self._clock.now, self._managing.settings)
        for items in self._space.datasets.values():
            if self._caching(items) is CachingMode.NONE:
                self._space.remove(items, np.flatnonzero(items.resident))

    def _facts(self) -> Facts:
        datasets = {
            name: DatasetFacts(
                size=items.spec.size,
                items=items.count,
                requested=self._managing.requested[name],
                resident_share=share(items),
            )
            for name, items in self._space.datasets.items()
        }
        jobs = {f"{TENANT}/{job.name}": self._job_facts(job) for job in self._jobs if job.running}
        return Facts(capacity=int(self._space.capacity), datasets=datasets, jobs=jobs)

    def _job_facts(self, job: JobRun) -> JobFacts:
        return JobFacts(
            tenant=TENANT,
            job=job.name,
            dataset=job.items.spec.name,
            gpus=job.spec.gpus,
            totals={
                phase: PhaseTotals(of.steps, of.seconds, of.waited, of.items, of.hits)
                for phase, of in job.totals.items()
            },
            joined_at=job.joined_at,
            batch_size=job.batch_items,
        )

    # --- look-ups

    def _caching(self, items: SimulatedItems) -> CachingMode:
        order = self.plan.of(items.spec.name)
        if order is not None:
            return order.caching
        return decide(self._managing.requested[items.spec.name], items.spec.size, int(self._space.capacity)).caching

    def job_order(self, job: JobRun) -> JobOrder | None:
        """The plan's decision for a job."""
        return self.plan.jobs.get(f"{TENANT}/{job.name}")


def share(items: SimulatedItems) -> float:
    """The cached share of a dataset's items."""
    return float(np.count_nonzero(items.resident)) / items.count
