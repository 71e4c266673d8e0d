"""The manager's decision: which dataset gets which space, which chunks are held, which jobs are probed, all in one plan.

Quiver, sections 4.5 and 5, put together: ``probing`` measures what each job gains, ``allocation`` shares the space out by that,
``chunks`` rotates what is held in part. ``decide`` is a function of the last plan, of what is known now, and of the time. What it
must remember (``remembered``) is in the plan, so the next leader continues from the plan in Redis. Where the paper leaves a
choice:

- *Before anything is measured* a job counts as one that gains as much as ``assumed_benefit`` says: a new dataset deserves a try.
  As two chunks are the cheapest way to gain, every new dataset gets those before any gets all it asks for.
- *What two chunks bring* is what a job gained when it was measured with two chunks, *what all brings* what it gained with all.
  Where only one is known, two chunks are taken to bring half: 0.47, 0.46 and 0.90 in the paper's Table 3.
- *Moving space costs refills.* A dataset in use counts ``hysteresis`` times its gain, so others take its space only if they bring
  that much more; and a fleet that has become smaller is believed after ``patience`` only, as most nodes that go come back.
- *The cut into chunks stays* while jobs use a dataset, because they have laid out their epochs by it. It is the one that a
  gateway without a plan decides on (``datasets.units_of``), so that a job may begin before the first plan.
- *A job that left the cache* refers to no chunk and adds no gain. When it is probed again it counts just enough for its dataset
  to get what nobody else wants.
- *Pinned prefixes* come first (``pinned.py``); everybody else shares the rest.
- *Access streams* bid for space in the same ledger, with what they were worth in the last round. They share what they win.
- *Results of pipelines* bid too (``results_space.py``). Nothing is evicted for them once their pool is full, so its target also
  has what nobody wins.
- *A dataset without jobs* keeps what it has while there is room, and while it is within its quota. One that was never in the plan
  comes in only when an operator lets it have less than all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.policies.items.datasets import PARTITIONS, CachingMode, units_of
from gateway.policies.pools import STREAM
from gateway.policies.space.allocation import Allocation, Bid, Candidate, allocate
from gateway.policies.space.benefit import JobFacts, by_dataset, gain_of, order_of, probed
from gateway.policies.space.chunks import ChunkEvent, JobView, RotationMemory, rotate
from gateway.policies.space.importance import ScoredDataset, ScoreReport, important, unscored
from gateway.policies.space.orders import ChunkRotation, PoolOrder, WhyCaching
from gateway.policies.space.pinned import is_pinned, pinned_orders, unpinned
from gateway.policies.space.plan import Plan, dataset_pools
from gateway.policies.space.probing import PhaseTotals, ProbeSettings
from gateway.policies.space.remembered import RememberedJob
from gateway.policies.space.results_needs import ResultsNeed, ResultsRoom, permitted_bids, shared_orders
from gateway.policies.space.results_space import ResultsUse, results_bids, results_orders
from gateway.policies.space.stream_space import stream_bids, stream_orders
from gateway.policies.streams.zone import ZoneStream

CHUNKED_SHARE = 0.5
"""Assumed gain of two chunks, as a share of that of the whole dataset, until it is measured."""
IN_USE = (CachingMode.FULL, CachingMode.CHUNKED)
"""Modes whose space is not taken away lightly."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts of a dataset.

    ``size`` in bytes; ``requested`` a ``CachingMode`` or ``"auto"``; ``override`` is ``"pin"``, ``"never"`` or empty; ``loaded``:
    every node has its part of the chunk that the plan says is being loaded; ``resident_share`` of its items, 0 to 1;
    ``quota``: bytes that it may take at most, ``None`` for any number.
    """

    size: int
    items: int
    requested: str = "auto"
    override: str = ""
    loaded: bool = False
    resident_share: float = 0.0
    quota: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether it may take less than all of it."""
        return self.quota is not None and self.quota < self.size


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a decision is made from.

    ``capacity``: bytes that may be allocated on all READY nodes together, that is, up to their low watermark. ``datasets`` by id,
    ``jobs`` by ``tenant/job``, access ``streams`` by name, ``scores`` by dataset and node, ``results`` of pipelines by use,
    and what their pools ``need``; ``pins``: bytes of pinned prefixes, by name, 0 for no space.
    """

    capacity: int
    datasets: Mapping[str, DatasetFacts]
    jobs: Mapping[str, JobFacts]
    streams: Mapping[str, ZoneStream] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, ScoreReport]] = field(default_factory=dict)
    results: Sequence[ResultsUse] = ()
    need: Mapping[str, ResultsNeed] = field(default_factory=dict)
    pins: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManagerParams:
    """Parameters of decisions; times in seconds."""

    probe: ProbeSettings = field(default_factory=ProbeSettings)
    force_after: float = 60.0
    """After the first job has finished a chunk, those still in it lose it."""
    hysteresis: float = 1.1
    """Factor by which another use of a dataset's space must be more valuable to replace the current one."""
    assumed_benefit: float = 2.0
    """t_miss / t_hit of a job that was not measured yet."""
    patience: float = 60.0
    """Time that the fleet may be smaller (a node restarts) before datasets lose their space."""
    results_share: float = 0.5
    """Share of the cache that the results of one tenant's pipelines may take."""


def decide(before: Plan, facts: Facts, now: float, settings: ManagerParams) -> Plan:
    """The plan after ``before``: its version is higher by one if nodes or jobs see any difference.

    Args:
        before: the last plan, as decided or as read from Redis; the fence is kept.
        facts: what is known now.
        now: seconds of a clock that all leaders share.
        settings: how to decide.
    """
    memory = before.memory.believing(facts.capacity, now, settings.patience)
    pinned = pinned_orders(facts.pins, memory.capacity)
    free = memory.capacity - sum(order.target for order in pinned.values())
    facts = replace(facts, streams=unpinned(facts.streams, facts.pins))
    last = replace(before, pools={name: one for name, one in before.pools.items() if not is_pinned(name, one)})
    jobs = probed(memory.jobs, facts.jobs, facts.datasets, now, settings.probe)
    held = [name for name, order in last.pools.items() if order.target]
    wanted = permitted_bids(results_bids(facts.results, held), facts.need, int(settings.results_share * free))
    bids = [*stream_bids(facts.streams, free, memory.streams, now), *wanted]
    spaces = _Spaces(last, facts, jobs, bids, _Terms(free, settings))
    spaced = spaces.orders()
    results = _of_results(results_orders(wanted, spaces.won, spaces.free), facts, spaces, settings)
    capacity = free - sum(order.target for order in results.values())
    orders = _by_importance(last, facts, spaced, capacity)
    datasets, rotations, events = _rotated(last, facts, orders, memory.rotations, jobs, now, settings)
    told = {name: order_of(fact, jobs[name]) for name, fact in sorted(facts.jobs.items())}
    left = max(0, capacity - sum(order.target for order in datasets.values()))
    streams, remembered = stream_orders(last.pools, facts.streams, left, memory.streams, now)
    pools = {**dataset_pools(datasets), **results, **streams, **pinned}
    seen = (pools, told) != (dict(before.pools), dict(before.jobs))
    return replace(
        before,
        version=before.version + seen,
        pools=pools,
        jobs=told,
        memory=replace(memory, jobs=jobs, rotations=rotations, streams=remembered),
        inputs={"capacity": memory.capacity, "datasets": spaces.inputs(), "events": events},
    )


def _of_results(
    bidders: Mapping[str, PoolOrder], facts: Facts, spaces: _Spaces, settings: ManagerParams
) -> dict[str, PoolOrder]:
    """The pools of results: what they have by their bids, and of the rest what they need."""
    granted = {name: order.target for name, order in bidders.items()}
    left = max(0, spaces.free - sum(target - spaces.won.get(name, 0) for name, target in granted.items()))
    tenant = int(settings.results_share * spaces.capacity)
    return {**bidders, **shared_orders(facts.need, ResultsRoom(left, granted, tenant))}


# --- space


@dataclass(frozen=True, slots=True)
class _Terms:
    """The available bytes, and the settings of decisions."""

    capacity: int
    settings: ManagerParams


class _Spaces:
    """The allocation, from what the jobs gain, and streams bid, to what the datasets get."""

    def __init__(
        self,
        before: Plan,
        facts: Facts,
        jobs: Mapping[str, RememberedJob],
        bids: Sequence[Bid],
        terms: _Terms,
    ) -> None:
        self._before = before
        self._facts = facts
        self._bids = bids
        self.capacity = terms.capacity
        self._settings = terms.settings
        self._gains = {
            dataset: self._gain_of(dataset, {name: jobs[name] for name in names})
            for dataset, names in by_dataset(facts.jobs).items()
            if dataset in facts.datasets
        }
        chosen = {name for name, fact in facts.datasets.items() if fact.override in ("pin", "never")}
        self._candidates = {name: self._candidate(name) for name in sorted(chosen | set(self._gains))}
        self.won: dict[str, int] = {}
        self.free = 0

    def orders(self) -> dict[str, PoolOrder]:
        """Decide on the datasets' pools, without chunks. Sets ``won`` to the bids' space, and ``free`` to the rest."""
        allocations = allocate(list(self._candidates.values()), self.capacity, self._bids)
        orders = {name: self._order(name, allocations[name]) for name in self._candidates}
        free = self.capacity - sum(one.granted for one in allocations.values())
        self.won = {bid.name: allocations[bid.name].granted for bid in self._bids}
        for name in sorted(set(self._facts.datasets) - set(orders)):
            idle, fact = unscored(self._before.of(name)), self._facts.datasets[name]
            if idle is None:
                if fact.bounded:
                    orders[name] = self._order(name, Allocation(CachingMode.NONE, 0, WhyCaching.OVERRIDE))
                continue
            beyond = fact.quota is not None and idle.target > fact.quota
            if beyond or (fact.bounded and idle.caching not in IN_USE):
                orders[name] = replace(idle, caching=CachingMode.NONE, why=WhyCaching.OVERRIDE, target=0, minimum=0)
            elif 0 < idle.target <= free:
                free -= idle.target
                orders[name] = replace(idle, why=WhyCaching.NO_JOBS)
            else:
                orders[name] = replace(idle, caching=CachingMode.NONE, why=WhyCaching.NO_JOBS, target=0, minimum=0)
        self.free = max(0, free)
        return dict(sorted(orders.items()))

    def inputs(self) -> dict[str, Any]:
        """The inputs of the allocation, for explanation."""
        return {
            name: {
                "size": one.size,
                "chunk": one.chunk,
                "gain": round(one.gain, 6),
                "chunked_gain": round(one.chunked_gain, 6),
                "override": one.override,
                "requested": one.requested,
                "quota": one.quota,
                "resident": round(self._facts.datasets[name].resident_share, 3),
            }
            for name, one in self._candidates.items()
        }

    def _units(self, dataset: str) -> int:
        order = self._before.of(dataset)
        if order is not None and dataset in self._gains and order.why is not WhyCaching.NO_JOBS:
            return order.units
        return units_of(self._facts.datasets[dataset].size, self.capacity)

    def _candidate(self, dataset: str) -> Candidate:
        fact = self._facts.datasets[dataset]
        full, chunked = self._gains.get(dataset, (0.0, 0.0))
        chunk = -(-fact.size // self._units(dataset))
        return Candidate(dataset, fact.size, chunk, full, chunked, fact.override, fact.requested, fact.quota)

    def _order(self, dataset: str, allocation: Allocation) -> PoolOrder:
        pinned = self._facts.datasets[dataset].override == "pin"
        return PoolOrder(
            allocation.caching,
            PARTITIONS,
            self._units(dataset),
            allocation.why,
            allocation.granted,
            minimum=allocation.granted if pinned else 0,
        )

    def _gain_of(self, dataset: str, jobs: Mapping[str, RememberedJob]) -> tuple[float, float]:
        """The benefit of a dataset, whole and in two chunks: the additional GPUs that its jobs would need without it."""
        order = self._before.of(dataset)
        weight = self._settings.hysteresis if order is not None and order.caching in IN_USE else 1.0
        full = 0.0
        for name, known in jobs.items():
            full += weight * gain_of(self._facts.jobs[name], known, self._settings.assumed_benefit)
        return full, CHUNKED_SHARE * full


def _by_importance(
    before: Plan, facts: Facts, orders: Mapping[str, PoolOrder], capacity: int
) -> Mapping[str, PoolOrder]:
    """The orders, with pools ranked by importance where jobs send scores. Access streams keep what they were given."""
    named = by_dataset(facts.jobs)
    scored = {
        dataset: ScoredDataset(
            reports,
            {name: _rate(facts.jobs[name].totals.values()) for name in named.get(dataset, ())},
            facts.datasets[dataset].size,
            facts.datasets[dataset].quota,
        )
        for dataset, reports in facts.scores.items()
        if dataset in facts.datasets
    }
    if not scored:
        return orders
    of_streams = sum(order.target for name, order in before.pools.items() if name.startswith(STREAM))
    free = capacity - of_streams - sum(order.target for order in orders.values())
    return important(orders, before.datasets, scored, free)


def _rate(totals: Iterable[PhaseTotals]) -> float:
    """Items that a job read per second since it began; 0 while that is not known."""
    known = list(totals)
    seconds = sum(total.seconds for total in known)
    return sum(total.items for total in known) / seconds if seconds > 0 else 0.0


# --- chunks


def _rotated(
    before: Plan,
    facts: Facts,
    orders: Mapping[str, PoolOrder],
    memory: Mapping[str, RotationMemory],
    jobs: Mapping[str, RememberedJob],
    now: float,
    settings: ManagerParams,
) -> tuple[dict[str, PoolOrder], dict[str, RotationMemory], list[dict[str, Any]]]:
    """The orders with the chunks of those datasets that are held in part; what must be remembered of them; what happened."""
    named = by_dataset(facts.jobs)
    rotations: dict[str, RotationMemory] = {}
    found: dict[str, PoolOrder] = {}
    events: list[dict[str, Any]] = []
    for dataset, order in orders.items():
        if order.caching is not CachingMode.CHUNKED:
            found[dataset] = replace(order, chunks=ChunkRotation())
            continue
        last = before.of(dataset)
        same = last is not None and (last.caching, last.units) == (order.caching, order.units)
        views = [
            JobView(name, facts.jobs[name].upcoming, facts.jobs[name].epoch_left)
            for name in named.get(dataset, ())
            if facts.jobs[name].wants != "off"
        ]
        chunks, rotations[dataset], happened = rotate(
            last.chunks if last is not None and same else ChunkRotation(),
            memory.get(dataset, RotationMemory()) if same else RotationMemory(),
            views,
            loaded=facts.datasets[dataset].loaded and same,
            units=order.units,
            now=now,
            force_after=settings.force_after,
        )
        found[dataset] = replace(order, chunks=chunks)
        events.extend(_described(dataset, event) for event in happened)
    return found, rotations, events


def _described(dataset: str, event: ChunkEvent) -> dict[str, Any]:
    return {"dataset": dataset, "reason": event.reason.value, "chunk": event.chunk, "jobs": list(event.jobs)}
