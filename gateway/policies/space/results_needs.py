"""Space for results in use, whether or not their savings are known.

Pools of results bid with their savings by profiles (``results_space.py``). A user may also ask for results without a job, and
nothing is known of a pipeline's gain at first. So pools share a part of the space that datasets and bids leave: each as much as
it needs if that fits, else all in proportion. The rest is for streams and plain reads. A tenant's pools together stay within a
share of the cache, and operators pin, forbid and bound them in the words used for datasets. A pool unused for the configured time
stops being a pool; its blobs are evicted like plain reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.policies.eviction.uniform import Uniform
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.allocation import Bid
from gateway.policies.space.orders import PoolOrder, WhyCaching

SHARE = 0.5
"""Part of the space left by datasets and bids that pools of results may have without a bid."""
LEAST = 1 << 20
"""Bytes of the smallest step of a target."""
STEPS = 4
"""Significant bits of a target: it changes by at least an eighth."""


@dataclass(frozen=True, slots=True)
class ResultsNeed:
    """A pool of results that were used recently, or that a pipeline will fill.

    Args:
        tenant: the owner.
        size: known bytes of all results, of all versions; 0 before the first.
        override: ``pin``, ``never`` or empty: an operator's decision.
        quota: the most bytes that an operator lets it have; ``None`` for no limit.
    """

    tenant: str
    size: int
    override: str = ""
    quota: int | None = None


@dataclass(frozen=True, slots=True)
class ResultsRoom:
    """Bytes for results: unclaimed ones, those that pools won by their bids, and the most that one tenant may have."""

    left: int
    granted: Mapping[str, int]
    tenant: int


def shared_orders(needs: Mapping[str, ResultsNeed], room: ResultsRoom) -> dict[str, PoolOrder]:
    """The pools of results by name.

    Args:
        needs: of the pools, by name.
        room: for all pools.
    """
    granted = {name: min(_permitted(need, room.tenant), room.granted.get(name, 0)) for name, need in needs.items()}
    most = {name: _most(need, room.tenant) if need.size else granted[name] for name, need in needs.items()}
    granted = {name: min(most[name], size) for name, size in granted.items()}
    pinned = {name: most[name] for name, need in needs.items() if need.override == "pin"}
    left = int(SHARE * room.left)
    for wanted in (pinned, most):
        open_ = {name: size - granted[name] for name, size in wanted.items()}
        scale = min(1.0, left / max(1, sum(open_.values())))
        for name, size in open_.items():
            granted[name] += int(scale * size)
        left = max(0, left - int(scale * sum(open_.values())))
    _bound_tenants(needs, granted, room.tenant)
    return {name: _order(need, granted[name]) for name, need in sorted(needs.items())}


def permitted_bids(bids: Iterable[Bid], needs: Mapping[str, ResultsNeed], tenant: int) -> list[Bid]:
    """The bids, limited to the most that a pool may have: space it cannot get must not displace others.

    Args:
        bids: of pools of results.
        needs: of the pools, by name.
        tenant: bytes that the pools of one tenant may have.
    """
    given = list(bids)
    sizes = dict.fromkeys(needs, 0) | {bid.name: bid.size for bid in given}
    for name, need in needs.items():
        sizes[name] = min(sizes[name], _permitted(need, tenant))
    _bound_tenants(needs, sizes, tenant)
    return [replace(bid, size=sizes[bid.name], gain=bid.gain * sizes[bid.name] / max(1, bid.size)) for bid in given]


def _permitted(need: ResultsNeed, tenant: int) -> int:
    """Bytes that an operator, and the tenant's share, let a pool have."""
    if need.override == "never":
        return 0
    return tenant if need.quota is None else min(tenant, need.quota)


def _most(need: ResultsNeed, tenant: int) -> int:
    """Bytes that a pool may have, in coarse steps: an epoch's size is estimated from a mean that changes with each result."""
    step = max(LEAST, 1 << max(0, need.size.bit_length() - STEPS))
    return min(-(-need.size // step) * step, _permitted(need, tenant))


def _bound_tenants(needs: Mapping[str, ResultsNeed], granted: dict[str, int], most: int) -> None:
    """Keep the pools of each tenant together within its share."""
    totals: dict[str, int] = {}
    for name, need in needs.items():
        totals[need.tenant] = totals.get(need.tenant, 0) + granted[name]
    for name, need in needs.items():
        if totals[need.tenant] > most:
            granted[name] = granted[name] * most // totals[need.tenant]


def _order(need: ResultsNeed, target: int) -> PoolOrder:
    if target:
        why = WhyCaching.OVERRIDE if need.override == "pin" else WhyCaching.BENEFIT
        minimum = target if need.override == "pin" else 0
        return PoolOrder(CachingMode.FULL, why, target, minimum=minimum, order=Uniform.name)
    why = WhyCaching.OVERRIDE if need.override else WhyCaching.NO_ROOM
    return PoolOrder(CachingMode.NONE, why, order=Uniform.name)
