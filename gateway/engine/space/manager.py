"""The manager's loop: once per heartbeat the zone's leader decides how much space each pool gets, and every node follows.

Every worker of a node that is READY tries for the lease (gateway/fleet/jobs/leadership.py). The leader reads the jobs and the
nodes' reports of what they hold, and takes the operators' overrides from its catalog. ``policies.space.manager.decide`` makes
the next plan from the last one. The plan is the only state, so another leader continues from it. Time is Redis's, which is one
clock for all leaders. Before it plans, the leader decides on the pipelines of jobs from their reports (pipeline_decisions.py).

If Redis is lost, no gateway leads and every node keeps its plan. If Redis is emptied, the jobs are unknown until they register
again, when a heartbeat is answered UnknownJob. A plan made before that would take all their space. So the next leader publishes
the last plan that it knows, and decides again when the plan's jobs have returned, or after the time in which a silent job
expires.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.base import metrics
from gateway.engine.operations.traffic import SILENCE
from gateway.engine.space.changes import changes
from gateway.engine.space.epoch_counts import EpochCounts
from gateway.engine.space.pipeline_decisions import PipelineFacts, decide_pipelines
from gateway.fleet.jobs.jobs import JobRecord, Jobs, KnownJob
from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.jobs.pipelines import DETAILED, KnownPipeline, Pipelines
from gateway.fleet.jobs.plans import Plans
from gateway.fleet.jobs.results import ResultUses
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.beginnings import Beginnings
from gateway.fleet.nodes.live import LiveExchange
from gateway.fleet.nodes.reports import (
    DEMAND,
    DEMAND_SILENCE,
    HELD,
    HELD_ITEMS,
    MISSES,
    SCORES,
    STREAMS,
    NodeReport,
    NodeReports,
    ResultsUsed,
)
from gateway.fleet.nodes.trends import Trends
from gateway.model.fleet import Node, NodeState
from gateway.policies.health.misses import MissReport
from gateway.policies.items.datasets import CachingMode, wanted_mode
from gateway.policies.pools import RESULTS
from gateway.policies.space.autocache import COMPUTE, CacheReason
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.importance import ScoreReport
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import Phase
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan
from gateway.policies.space.prices import SECONDS, UnitPrices
from gateway.policies.space.results_needs import ResultsNeed
from gateway.policies.space.results_space import ResultsUse, results_room
from gateway.policies.streams.zone import NodeStreams, PoolReport, ZoneStream, zone_streams
from gateway.policies.watermarks import GRANTABLE

_FORGET_EVERY = 60
_STREAMS_EVERY = 3
"""Turns after which the reports of streams are read again: 50 nodes with 256 each take 0.1 s to read."""

log = logging.getLogger("larder.manager")


class Silences(NamedTuple):
    """Seconds after which an entry in Redis is ignored: a silent job, a node's report, unused results."""

    jobs: float
    nodes: float
    results: float


@dataclass(frozen=True, slots=True)
class Coordination:
    """One worker's access to the zone's documents in Redis, besides the fleet's membership."""

    jobs: Jobs
    plans: Plans
    reports: NodeReports[dict[str, NodeReport]]
    streams: NodeReports[NodeStreams]
    scores: NodeReports[dict[str, ScoreReport]]
    pipelines: Pipelines
    results: ResultUses
    held: NodeReports[dict[str, PoolReport]]
    misses: NodeReports[MissReport]
    live: LiveExchange
    begun: Beginnings
    trends: Trends
    demand: NodeReports[dict[str, int]]
    leadership: Leadership

    @classmethod
    def of(cls, redis: Redis, prefix: str, me: str, silences: Silences) -> Coordination:
        """The documents of a zone, whose keys begin with ``prefix``; ``me`` is unique to this worker."""
        return cls(
            Jobs(redis, prefix, silences.jobs),
            Plans(redis, prefix),
            NodeReports(redis, prefix, HELD_ITEMS, silences.nodes),
            NodeReports(redis, prefix, STREAMS, silences.nodes),
            NodeReports(redis, prefix, SCORES, silences.nodes),
            Pipelines(redis, prefix, silences.jobs),
            ResultUses(redis, prefix, silences.results),
            NodeReports(redis, prefix, HELD, silences.nodes),
            NodeReports(redis, prefix, MISSES, SILENCE),
            LiveExchange(redis, prefix),
            Beginnings(redis, prefix),
            Trends(redis, prefix),
            NodeReports(redis, prefix, DEMAND, DEMAND_SILENCE),
            Leadership(redis, prefix, me),
        )


@dataclass(frozen=True, slots=True)
class Electorate:
    """The live nodes of the zone, and whether this worker's node may lead."""

    nodes: Callable[[], Iterable[Node]]
    may_lead: Callable[[], bool]

    def ready(self) -> list[Node]:
        """The READY nodes, which are home of some objects."""
        return [node for node in self.nodes() if node.state is NodeState.READY]


class Manager:
    """Manages the zone while this worker leads it, and follows the plan otherwise.

    Args:
        parts: its data in Redis.
        electorate: the nodes present.
        settings: how decisions are made.
        patience: seconds that jobs have to register again after Redis was emptied.
        overrides: of operators; called only while this worker may lead.
    """

    def __init__(
        self,
        parts: Coordination,
        electorate: Electorate,
        settings: ManagerParams,
        patience: float,
        overrides: Callable[[], Overrides],
    ) -> None:
        self._parts = parts
        self._overrides = overrides
        self._electorate = electorate
        self._settings = settings
        self._patience = patience
        self._fence = 0
        self._written: Plan | None = None
        self._awaited: frozenset[str] = frozenset()
        self._until = 0.0
        self._turns = 0
        self._streams: Mapping[str, ZoneStream] = {}
        self._scores: Mapping[str, Mapping[str, ScoreReport]] = {}
        self._results: list[ResultsUse] = []
        self._epochs = EpochCounts()
        self._lost = False
        self._shown: Plan | None = None

    @property
    def leads(self) -> bool:
        """Whether this worker leads, as far as it knows."""
        return self._parts.leadership.fence > 0

    async def run_once(self) -> None:
        """Lead or follow, once per heartbeat. While Redis is down nothing changes."""
        try:
            await self._lead_or_follow()
        except DOWN as error:
            if not self._lost:
                log.warning(
                    "Redis cannot be reached; the plan stays as it is: %(error)s", {"error": type(error).__name__}
                )
            self._lost = True
        else:
            self._lost = False
        metrics.MANAGER_LEADING.set(self.leads)
        if self._shown is not self._parts.plans.plan:
            self._shown = self._parts.plans.plan
            _show(self._shown)

    async def stop(self) -> None:
        """Give up the leadership at once."""
        try:
            await self._parts.leadership.resign()
        except DOWN:
            return  # the lease expires

    async def _lead_or_follow(self) -> None:
        leadership, plans = self._parts.leadership, self._parts.plans
        if not self._electorate.may_lead():
            await leadership.resign()
            await plans.refresh()
        elif await leadership.lead(plans.plan.fence):
            await self._lead(leadership.fence)
        else:
            await plans.follow(leadership.stamp)

    async def _lead(self, fence: int) -> None:
        now, jobs = await self._parts.jobs.all()
        if fence != self._fence:
            await self._take_office(fence, now)
            self._epochs = EpochCounts()
        self._epochs.note(jobs)
        before = after = self._parts.plans.plan
        room = results_room(before, sum(node.capacity for node in self._electorate.ready()))
        facts = PipelineFacts(now, room, self._overrides().pipelines)
        await decide_pipelines(self._parts.pipelines, fence, [job.record for job in jobs], facts)
        present = {job.record.key for job in jobs}
        if self._awaited <= present or now >= self._until:
            self._awaited = frozenset()
            after = decide(before, await self._facts(before, jobs), now, self._settings)
        await self._publish(replace(after, fence=fence), changes(before, after, now))

    async def _take_office(self, fence: int, now: float) -> None:
        plans = self._parts.plans
        readable = await plans.latest()
        self._fence, self._written = fence, None
        self._awaited = frozenset() if readable else frozenset(plans.plan.jobs)
        self._until = now + self._patience
        log.info(
            "this worker leads the zone now, with fence %(fence)d, from version %(version)d of the plan",
            {"fence": fence, "version": plans.plan.version},
        )

    async def _publish(self, plan: Plan, events: list[dict[str, Any]]) -> None:
        if plan == self._written:
            return
        try:
            taken = await self._parts.plans.write(plan, events)
        except DOWN:
            # Redis may have accepted it nevertheless: read it again before any further decision.
            self._fence = 0
            raise
        if taken:
            self._written = plan
            _count(events)
            return
        metrics.MANAGER_DEPOSED.inc()
        log.warning("a plan was refused: another worker leads by now")
        self._fence = 0
        await self._parts.leadership.resign()
        await self._parts.plans.refresh()

    async def _facts(self, plan: Plan, jobs: list[KnownJob]) -> Facts:
        parts, ready, overrides = self._parts, self._electorate.ready(), self._overrides()
        known = _claimed([job.record for job in jobs])
        # A dataset without jobs keeps its space until another one needs it.
        holding = {name for name, order in plan.datasets.items() if order.caching is not CachingMode.NONE}
        known |= await parts.jobs.sizes(sorted((holding | overrides.names) - set(known)))
        reports = await parts.reports.all() if known else {}
        by_node = [reports.get(node.id, {}) for node in ready]
        self._turns += 1
        if self._turns % _FORGET_EVERY == 0:
            await parts.jobs.forget_sizes({*known, *overrides.names})
        datasets = {
            dataset: DatasetFacts(
                size,
                items,
                requested,
                overrides.modes.get(dataset, ""),
                _share(dataset, items, by_node),
                overrides.quotas.get(dataset),
            )
            for dataset, (size, items, requested) in known.items()
        }
        capacity = int(GRANTABLE * sum(node.capacity for node in ready))
        if (self._turns - 1) % _STREAMS_EVERY == 0:
            self._streams = zone_streams(await parts.streams.all())
            self._scores = _by_dataset(await parts.scores.all())
            pipelines = await parts.pipelines.of([job.record for job in jobs])
            self._results = _results(jobs, pipelines)
            _show_pipelines(pipelines.values())
        facts = {job.record.key: _facts_of(job) for job in jobs}
        need = _needs(await parts.results.all(), self._results, overrides)
        return Facts(capacity, datasets, facts, self._streams, self._scores, self._results, need, overrides.pins)


def _needs(
    uses: Mapping[str, ResultsUsed],
    bidders: Iterable[ResultsUse],
    overrides: Overrides,
) -> dict[str, ResultsNeed]:
    """The needs of result pools; a pool without a known element has none yet, unless a pipeline bids for it."""
    sizes = {bidder.pool: (bidder.tenant, 0) for bidder in bidders}
    sizes |= {f"{RESULTS}{name}": (used.tenant, used.size) for name, used in uses.items() if used.size}
    return {
        pool: ResultsNeed(tenant, size, overrides.modes.get(pool, ""), overrides.quotas.get(pool))
        for pool, (tenant, size) in sizes.items()
    }


def _show(plan: Plan) -> None:
    """Update the metrics of the plan in force."""
    metrics.PLAN_VERSION.set(plan.version)
    phases = [order.phase for order in plan.jobs.values()]
    for phase in Phase:
        metrics.JOBS.labels(phase.value).set(phases.count(phase))
    metrics.JOBS_CACHED.set(sum(order.cache for order in plan.jobs.values()))
    modes = [order.caching for order in plan.datasets.values()]
    for mode in CachingMode:
        metrics.PLANNED_DATASETS.labels(mode.value).set(modes.count(mode))
    metrics.PLANNED_BYTES.set(sum(order.target for order in plan.datasets.values()))


def _show_pipelines(pipelines: Collection[KnownPipeline]) -> None:
    """Update the metric of pipelines."""
    decisions = [known.decision for known in pipelines if known.decision is not None]
    waiting = sum(decision.reason is CacheReason.PROFILING for decision in decisions)
    caching = sum(decision.stage != COMPUTE for decision in decisions)
    counts = {"profile": waiting, "cache": caching, "compute": len(decisions) - waiting - caching}
    for mode, count in counts.items():
        metrics.PIPELINES.labels(mode).set(count)


def _results(jobs: Iterable[KnownJob], pipelines: Mapping[str, KnownPipeline]) -> list[ResultsUse]:
    """The results in use: one entry for each job whose pipeline stores or reads results."""
    uses = []
    for job in jobs:
        known = pipelines.get(job.record.key, KnownPipeline())
        decision = known.decision
        if decision is None or decision.stage not in decision.pools:
            continue
        seconds, waited, items = (
            sum(getattr(total, name) for total in job.totals.values()) for name in ("seconds", "waited", "items")
        )
        own = max(0.0, seconds - waited) / items if items else 0.0
        workers = sum(profile.workers for profile in known.profiles.values())
        if (profiled := len(known.profiles)) == DETAILED < job.record.ranks:
            workers = workers * job.record.ranks // profiled  # the other ranks send no profile
        uses.append(
            ResultsUse(decision.pools[decision.stage], decision, own, workers, job.record.gpus, job.record.tenant)
        )
    return uses


def _count(events: Iterable[Mapping[str, Any]]) -> None:
    """Count the changes of a published plan."""
    for event in events:
        metrics.PLAN_CHANGES.labels(event["what"]).inc()
        if event["what"] == "judged":
            metrics.JOB_PHASES.labels(event["phase"]).inc()


def _claimed(records: Iterable[JobRecord]) -> dict[str, tuple[int, int, str]]:
    """Size in bytes, items, and requested mode of each dataset that jobs read.

    Sizes are claims, and tenants may claim different ones for the same dataset; one tenant's claim must not decide for the
    others. So the size is the lower median of the tenants' claims. Requested modes that differ are ignored.
    """
    of_dataset: dict[str, list[JobRecord]] = {}
    for record in records:
        of_dataset.setdefault(record.dataset, []).append(record)
    claims = {}
    for dataset, those in of_dataset.items():
        sizes: dict[str, int] = {}
        for record in those:
            sizes[record.tenant] = max(record.size, sizes.get(record.tenant, 0))
        wishes = {wanted_mode(record.requested) for record in those}
        size = median_low([size for size in sizes.values() if size] or [0])
        claims[dataset] = (size, those[0].items, wishes.pop() if len(wishes) == 1 else "auto")
    return claims


def _by_dataset(reports: Mapping[str, Mapping[str, ScoreReport]]) -> dict[str, dict[str, ScoreReport]]:
    """The nodes' reports on the importance of items, by dataset."""
    by_dataset: dict[str, dict[str, ScoreReport]] = {}
    for node, of_node in sorted(reports.items()):
        for dataset, report in of_node.items():
            by_dataset.setdefault(dataset, {})[node] = report
    return by_dataset


def _share(dataset: str, items: int, reports: list[dict[str, NodeReport]]) -> float:
    resident = sum(report[dataset].resident for report in reports if dataset in report)
    return min(1.0, resident / items) if items else 1.0


def _facts_of(job: KnownJob) -> JobFacts:
    record = job.record
    return JobFacts(
        record.tenant,
        record.job,
        record.dataset,
        record.gpus,
        job.totals,
        job.joined_at,
        record.caching,
        record.batch_size,
        record.ranks,
    )


def settings_of(probe_batches: int, results_percent: int = 50, prices: UnitPrices = SECONDS) -> ManagerParams:
    """The policy's settings, from the configuration."""
    usual = ManagerParams()
    probe = replace(usual.probe, batches=probe_batches)
    return replace(usual, probe=probe, results_share=results_percent / 100, prices=prices)
