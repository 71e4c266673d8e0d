"""The space of pipelines' results in the one ledger of the cache's space.

A pipeline whose results are stored bids like a dataset (``allocation.py``). It bids the additional waiting of its jobs without
the results, per second of running, times their GPUs. Workers compute while the trainer does, so a batch takes

    t(c) = max(time of the trainer's own work, c / workers)

per element, with ``c`` worker seconds per element in the mode of caching; both are in the projections that the mode was chosen
from (``autocache.py``). The gain is t(compute) / t(cached) - 1, the same as t_miss / t_hit - 1 of a dataset (Quiver, section
5.3). A job whose present workers already keep it from waiting gains nothing: its space goes to others, workers are added
(``autoscale.py``), or its mode is decided again (``cache_mode.py``).

Several jobs may read one pipeline's results; their gains add up, as those of a dataset's jobs do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gateway.policies.eviction.uniform import Uniform
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.allocation import Bid
from gateway.policies.space.autocache import COMPUTE
from gateway.policies.space.cache_mode import CacheDecision
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, left_of
from gateway.policies.space.prices import SECONDS, UnitPrices
from gateway.policies.watermarks import GRANTABLE, turned

Room = Callable[[Collection[str]], float]
"""Bytes that the results in these pools may take."""
GAIN_MARGIN = 1.1
"""Factor on the gain of a pool that has space, because losing it costs an epoch of computing."""


SLACK = 1.1
"""Factor on estimated sizes: they are means of some elements, and nothing is evicted for a result that does not fit."""


@dataclass(frozen=True, slots=True)
class ResultsUse:
    """A job that stores or reads results.

    Args:
        pool: of the results.
        decision: where its pipeline caches.
        own: seconds of the trainer's own work per element, waiting excluded; 0 if it is not known.
        workers: input workers of all ranks now.
        gpus: of the job.
        tenant: of the job that owns the pool.
    """

    pool: str
    decision: CacheDecision
    own: float
    workers: int
    gpus: int
    tenant: str


def results_room(plan: Plan, capacity: int) -> Room:
    """Bytes that the results in some pools may take: the targets of these pools, and the space that all targets leave.

    Args:
        plan: in force.
        capacity: bytes of all caches.
    """
    targets = {name: order.target for name, order in plan.pools.items()}
    left = turned(left_of(targets, int(GRANTABLE * capacity)))
    return lambda pools: float(left + sum(targets.get(pool, 0) for pool in {*pools}))


def results_bids(uses: Collection[ResultsUse], held: Collection[str] = (), prices: UnitPrices = SECONDS) -> list[Bid]:
    """Bids of the pools of results, by their names.

    Args:
        uses: the jobs.
        held: pools that have space now.
        prices: of waiting.
    """
    sizes: dict[str, float] = {}
    gains: dict[str, float] = {}
    for use in uses:
        size, gain = _size(use.decision), prices.worth(results_gain(use))
        if not size:
            continue
        sizes[use.pool] = max(size, sizes.get(use.pool, 0.0))
        gains[use.pool] = gains.get(use.pool, 0.0) + gain
    weights = {pool: GAIN_MARGIN if pool in held else 1.0 for pool in sizes}
    return [Bid(pool, round(SLACK * sizes[pool]), weights[pool] * gains[pool]) for pool in sorted(sizes)]


def results_orders(bids: Collection[Bid], won: Mapping[str, int], free: int) -> dict[str, PoolOrder]:
    """The pools of results by name, with the space that they won and all unclaimed space that they can use.

    Args:
        bids: of the pools.
        won: bytes by name.
        free: unclaimed bytes.
    """
    orders = {}
    for bid in sorted(bids, key=lambda offer: (-offer.gain / max(1, offer.size), offer.name)):
        more = min(free, bid.size - won.get(bid.name, 0))
        free -= more
        target = won.get(bid.name, 0) + more
        caching, why = CachingMode.NONE, WhyCaching.NO_ROOM if bid.gain else WhyCaching.NO_BENEFIT
        if target:
            caching, why = CachingMode.FULL, WhyCaching.BENEFIT
        orders[bid.name] = PoolOrder(caching, why, target, order=Uniform.name)
    return dict(sorted(orders.items()))


def results_gain(use: ResultsUse) -> float:
    """Seconds that a job would wait more per second without its results, times its GPUs."""
    seconds = {projection.stage: projection.seconds for projection in use.decision.projections}
    elements = use.decision.costs[0].elements if use.decision.costs else 0
    if use.decision.stage not in seconds or not elements:
        return 0.0
    divisor = max(1, use.workers) * elements
    cached = max(use.own, seconds[use.decision.stage] / divisor)
    computed = max(use.own, seconds[COMPUTE] / divisor)
    return use.gpus * max(0.0, computed / cached - 1) if cached > 0 else 0.0


def _size(decision: CacheDecision) -> float:
    return next((cost.size for cost in decision.costs[1:] if cost.stage == decision.stage), 0.0)
