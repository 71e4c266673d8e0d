"""The manager's decision: which dataset gets how many bytes, which jobs are probed, all in one plan.

Quiver, sections 4.5 and 5, put together: ``probing`` measures each job's gain, ``allocation`` distributes the space by it. Which
items of a dataset are in its space is decided by the nodes (``policies/items/demand.py``). ``decide`` is a function of the last
plan, the present facts, and the time. What it must remember (``remembered``) is in the plan, so the next leader continues from
the plan in Redis. Where the paper leaves a choice:

- *Before anything is measured* a job counts as one that gains as much as ``assumed_benefit`` says: a new dataset deserves a try.
- *Moving space costs refills.* Bytes that a dataset has count ``hysteresis`` times, so others take them only if they bring that
  much more; a dataset grows by at least ``GRAIN``; and a smaller fleet counts only after ``patience``, because most nodes that
  leave come back.
- *A job that left the cache* adds no gain. When it is probed again, it counts just enough for its dataset to get unclaimed space.
- *Pinned prefixes* come first (``pinned.py``); everything else shares the rest.
- *Access streams* bid for space in the same ledger, with their worth in the last round. They share the space they win.
- *Results of pipelines* bid too (``results_space.py``). Nothing is evicted for them once their pool is full, so its target also
  includes unclaimed space.
- *A dataset that is larger than* ``WHOLE`` *of the caches* is held in part unless its registration or an operator asks for all.
- *A dataset without jobs* keeps its space while there is room. A dataset with a quota below its size is held in part, within its
  quota and the room, whether or not an earlier plan had it. Any other dataset enters the plan with its first job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.policies.items.datasets import WHOLE, CachingMode, wanted_mode
from gateway.policies.pools import STREAM
from gateway.policies.space.allocation import WINDOW, Allocation, Bid, Candidate, allocate
from gateway.policies.space.benefit import JobFacts, by_dataset, gain_of, order_of, probed
from gateway.policies.space.importance import ScoredDataset, ScoreReport, important, unscored
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.pinned import is_pinned, pinned_orders, unpinned
from gateway.policies.space.plan import Plan, dataset_pools
from gateway.policies.space.prices import HOUR, SECONDS, UnitPrices
from gateway.policies.space.probing import PhaseTotals, ProbeSettings
from gateway.policies.space.remembered import RememberedJob
from gateway.policies.space.results_needs import ResultsNeed, ResultsRoom, permitted_bids, shared_orders
from gateway.policies.space.results_space import ResultsUse, results_bids, results_orders
from gateway.policies.space.stream_space import stream_bids, stream_orders
from gateway.policies.streams.zone import ZoneStream
from gateway.policies.watermarks import GRANTABLE, turned, turning

WINDOW_ITEMS = 32
"""The fewest items per job in the window in which the jobs of a dataset share loads: some batches."""
GRAIN = 0.005
"""The smallest growth of a dataset, as a share of the space, so that not every new figure makes a new plan."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts of a dataset.

    ``size`` in bytes; ``requested`` a ``CachingMode`` or ``"auto"``; ``override`` is ``"pin"``, ``"never"`` or empty;
    ``resident_share`` of its items, 0 to 1; ``quota``: the most bytes that it may take, ``None`` for no limit.
    """

    size: int
    items: int
    requested: str = "auto"
    override: str = ""
    resident_share: float = 0.0
    quota: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether it may take less than all of it."""
        return self.quota is not None and self.quota < self.size


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a decision.

    ``capacity``: bytes that datasets may be granted on all READY nodes together (``watermarks.GRANTABLE``). ``datasets`` by id,
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
    hysteresis: float = 1.1
    """Factor by which another use of a dataset's bytes must be more valuable to replace the current one."""
    assumed_benefit: float = 2.0
    """t_miss / t_hit of a job that was not measured yet."""
    patience: float = 60.0
    """Time that the fleet may be smaller (a node restarts) before datasets lose their space."""
    prices: UnitPrices = SECONDS
    """Prices of reads and waiting. With prices the ledger saves money, else GPU seconds."""
    results_share: float = 0.5
    """Share of the cache that the results of one tenant's pipelines may take."""


def decide(before: Plan, facts: Facts, now: float, settings: ManagerParams) -> Plan:
    """The plan after ``before``: its version is higher by one if nodes or jobs see any difference.

    Args:
        before: the last plan, as decided or as read from Redis; the fence is kept.
        facts: the present facts.
        now: seconds of a clock that all leaders share.
        settings: how to decide.
    """
    memory = before.memory.believing(facts.capacity, now, settings.patience)
    pinned = pinned_orders(facts.pins, memory.capacity)
    free = memory.capacity - _room_of(pinned.values())
    facts = replace(facts, streams=unpinned(facts.streams, facts.pins))
    last = replace(before, pools={name: order for name, order in before.pools.items() if not is_pinned(name, order)})
    jobs = probed(memory.jobs, facts.jobs, facts.datasets, now, settings.probe)
    held = [name for name, order in last.pools.items() if order.target]
    wanted = results_bids(facts.results, held, settings.prices)
    wanted = permitted_bids(wanted, facts.need, int(settings.results_share * turned(free)))
    bids = [*stream_bids(facts.streams, turned(free), memory.streams, now), *wanted]
    spaces = _Spaces(last, facts, jobs, bids, _Terms(free, settings))
    spaced = spaces.orders()
    results = _of_results(results_orders(wanted, spaces.won, turned(spaces.free)), facts, spaces, settings)
    capacity = free - _room_of(results.values())
    datasets = _by_importance(last, facts, spaced, capacity)
    job_orders = {name: order_of(fact, jobs[name]) for name, fact in sorted(facts.jobs.items())}
    left = max(0, capacity - sum(order.target for order in datasets.values()))
    streams, remembered = stream_orders(last.pools, facts.streams, turned(left), memory.streams, now, settings.prices)
    pools = {**dataset_pools(datasets), **results, **streams, **pinned}
    seen = (pools, job_orders) != (dict(before.pools), dict(before.jobs))
    return replace(
        before,
        version=before.version + seen,
        pools=pools,
        jobs=job_orders,
        memory=replace(memory, jobs=jobs, streams=remembered),
        inputs={"capacity": memory.capacity, "datasets": spaces.inputs(datasets), **_currency(settings.prices)},
    )


def _of_results(
    bidders: Mapping[str, PoolOrder], facts: Facts, spaces: _Spaces, settings: ManagerParams
) -> dict[str, PoolOrder]:
    """The pools of results: the space won by their bids, and from the rest the space they need."""
    granted = {name: order.target for name, order in bidders.items()}
    left = max(0, turned(spaces.free) - sum(target - spaces.won.get(name, 0) for name, target in granted.items()))
    tenant = int(settings.results_share * turned(spaces.capacity))
    return {**bidders, **shared_orders(facts.need, ResultsRoom(left, granted, tenant))}


def _currency(prices: UnitPrices) -> dict[str, str]:
    return {"currency": prices.currency} if prices.known else {}


def _room_of(orders: Iterable[PoolOrder]) -> int:
    """The datasets' room taken by pools whose bytes turn over."""
    return turning(sum(order.target for order in orders))


# --- space


@dataclass(frozen=True, slots=True)
class _Terms:
    """The available bytes, and the settings of decisions."""

    capacity: int
    settings: ManagerParams


class _Spaces:
    """The allocation: from the jobs' gains and the streams' bids to the space of datasets."""

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
            dataset: self._gain_of(facts.datasets[dataset], {name: jobs[name] for name in names})
            for dataset, names in by_dataset(facts.jobs).items()
            if dataset in facts.datasets
        }
        chosen = {name for name, fact in facts.datasets.items() if fact.override in ("pin", "never")}
        self._candidates = {name: self._candidate(name) for name in sorted(chosen | set(self._gains))}
        self.won: dict[str, int] = {}
        self.free = 0

    def orders(self) -> dict[str, PoolOrder]:
        """Decide on the datasets' pools. Sets ``won`` to the bids' space, and ``free`` to the rest."""
        candidates = list(self._candidates.values())
        allocations = allocate(candidates, self.capacity, self._bids, self._settings.hysteresis)
        orders = {name: self._order(name, allocations[name]) for name in self._candidates}
        self.won = {bid.name: allocations[bid.name].granted for bid in self._bids}
        self.free = self.capacity - turning(sum(self.won.values())) - sum(order.target for order in orders.values())
        idle_ones = set(self._facts.datasets) - set(orders)
        # Datasets without a quota hold their bytes; bytes that a quota takes away may not be free yet.
        for name in sorted(idle_ones, key=lambda name: (self._facts.datasets[name].bounded, name)):
            idle = self._idle(name)
            if idle is not None:
                orders[name] = idle
                self.free -= idle.target
        self.free = max(0, self.free)
        return dict(sorted(orders.items()))

    def _idle(self, name: str) -> PoolOrder | None:
        """The order of a dataset without jobs; ``None`` if it is not in the plan."""
        idle, fact = unscored(self._before.of(name)), self._facts.datasets[name]
        room = max(0, self.free)
        free = room if fact.quota is None else min(room, fact.quota)
        if fact.bounded:
            return PoolOrder(CachingMode.PART if free else CachingMode.NONE, WhyCaching.OVERRIDE, free)
        if idle is None or (idle.why is WhyCaching.OVERRIDE and not idle.minimum):
            return None  # never planned, or its quota was removed
        target = min(idle.target, free)
        kept = CachingMode.PART if target < idle.target else idle.caching
        return replace(
            idle, caching=kept if target else CachingMode.NONE, why=WhyCaching.NO_JOBS, target=target, minimum=0
        )

    def inputs(self, orders: Mapping[str, PoolOrder]) -> dict[str, Any]:
        """The inputs of the allocation, for explanation; with prices, also the money that a dataset's space saves per hour.

        Space is shared out by the gain of all jobs, with an assumed one for jobs that are not measured yet. Savings count only
        the measured ones.
        """
        gains = {name: self._gains.get(name, _Gain()) for name in self._candidates}
        return {
            name: {
                "size": candidate.size,
                "gain": _short(candidate.gain),
                "jobs": candidate.jobs,
                "measured": gains[name].measured_jobs,
                "measured_gain": _short(gains[name].measured_gain),
                "override": candidate.override,
                "requested": candidate.requested,
                "quota": candidate.quota,
                "resident": round(self._facts.datasets[name].resident_share, 3),
                **(
                    {"saves": _short(HOUR * gains[name].measured_gain * candidate.saved(orders[name].target))}
                    if self._settings.prices.known
                    else {}
                ),
            }
            for name, candidate in self._candidates.items()
        }

    def _candidate(self, dataset: str) -> Candidate:
        fact, known = self._facts.datasets[dataset], self._gains.get(dataset, _Gain())
        before = self._before.of(dataset)
        window = max(math.ceil(WINDOW * fact.size), known.jobs * WINDOW_ITEMS * fact.size // max(1, fact.items))
        return Candidate(
            dataset,
            fact.size,
            known.gain,
            known.jobs,
            0 if before is None else before.target,
            window,
            fact.override,
            wanted_mode(fact.requested),
            fact.quota,
            known.measured,
        )

    def _order(self, dataset: str, allocation: Allocation) -> PoolOrder:
        target, before, fact = allocation.granted, self._before.of(dataset), self._facts.datasets[dataset]
        pinned = fact.override == "pin"
        if before is not None and allocation.caching is before.caching is CachingMode.PART and not pinned:
            grown = target - before.target
            target = before.target if 0 <= grown < GRAIN * self.capacity else target
        caching, asked = allocation.caching, pinned or wanted_mode(fact.requested) == CachingMode.FULL
        if caching is CachingMode.FULL and not asked and target > WHOLE / GRANTABLE * self.capacity:
            caching = CachingMode.PART
        return PoolOrder(caching, allocation.why, target, minimum=target if pinned else 0)

    def _gain_of(self, fact: DatasetFacts, jobs: Mapping[str, RememberedJob]) -> _Gain:
        """The gain of all of a dataset's jobs if every read were a hit."""
        facts, assumed, prices = self._facts.jobs, self._settings.assumed_benefit, self._settings.prices
        item = fact.size / max(1, fact.items)
        gains = {name: gain_of(facts[name], known, assumed, prices, item) for name, known in jobs.items()}
        cached = [name for name in jobs if facts[name].wants != "off"]
        measured = [name for name, known in jobs.items() if known.probe.benefit > 0]
        return _Gain(
            sum(gains.values()),
            len(cached),
            bool(measured),
            len({*cached} & {*measured}),
            sum(gains[name] for name in measured),
        )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True)
class _Gain:
    """The gain of a dataset's jobs, their number, and whether the gain was measured; number and gain of the measured ones."""

    gain: float = 0.0
    jobs: int = 0
    measured: bool = True
    measured_jobs: int = 0
    measured_gain: float = 0.0


def _by_importance(
    before: Plan, facts: Facts, orders: Mapping[str, PoolOrder], capacity: int
) -> Mapping[str, PoolOrder]:
    """The orders, with pools ranked by importance where jobs send scores. Access streams keep their space."""
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
    of_streams = _room_of(order for name, order in before.pools.items() if name.startswith(STREAM))
    free = capacity - of_streams - sum(order.target for order in orders.values())
    return important(orders, before.datasets, scored, free)


def _rate(totals: Iterable[PhaseTotals]) -> float:
    """Items that a job has read per second since it began; 0 while unknown."""
    known = list(totals)
    seconds = sum(total.seconds for total in known)
    return sum(total.items for total in known) / seconds if seconds > 0 else 0.0
