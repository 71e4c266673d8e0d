"""Holds the tenants of one worker to their limits (gateway/policies/fleet/tenant_rates.py).

Without limits a request costs one look at an empty mapping. A worker whose tenants with limits ask nothing tells Redis nothing.
With Redis lost every worker keeps its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gateway.base import metrics
from gateway.model.errors import RateLimited
from gateway.policies.fleet.tenant_rates import RateLimit, TenantBucket, share_of

EVERY = 1.0
"""Seconds between two looks at what other workers are asked."""


class Demand(Protocol):
    """Reports of how many requests the workers of a zone were asked."""

    async def tell(self, node: str, report: dict[str, int]) -> None:
        """Report the requests of one worker, by tenant."""

    async def all(self) -> Mapping[str, Mapping[str, int]]:
        """The reports of all workers."""


class TenantRates:
    """One worker's part of the limits.

    Attributes:
        limits: by tenant; empty without limits.

    Args:
        demand: of all workers.
        worker: the name of this one.
        clock: monotonic seconds.
    """

    def __init__(self, demand: Demand, worker: str, clock: Callable[[], float]) -> None:
        self.limits: dict[str, TenantBucket] = {}
        self._demand = demand
        self._worker = worker
        self._clock = clock
        self._told: dict[str, int] = {}

    def replace(self, limits: Iterable[tuple[str, RateLimit]]) -> None:
        """Adopt the limits, by tenant. Those that stay keep what was used of them."""
        now, known = self._clock(), self.limits
        self.limits = {
            tenant: known[tenant] if tenant in known and known[tenant].limit == limit else TenantBucket(limit, now)
            for tenant, limit in limits
            if limit != RateLimit()
        }

    def admit(self, tenant: str) -> None:
        """Count a request of a tenant.

        Raises:
            RateLimited: the tenant must wait.
        """
        allowance = self.limits.get(tenant)
        if allowance is not None and (seconds := allowance.wait(self._clock())):
            metrics.RATE_LIMITED.labels(tenant).inc()
            raise RateLimited(seconds)

    def count(self, tenant: str) -> None:
        """Count a request that is never refused, and uses nothing of the limit."""
        allowance = self.limits.get(tenant)
        if allowance is not None:
            allowance.asked += 1

    def spend(self, tenant: str, size: int) -> None:
        """Count the bytes of an answer."""
        allowance = self.limits.get(tenant)
        if allowance is not None:
            allowance.spend(size)

    async def turn(self) -> None:
        """Tell what was asked since the last turn, and take the share of it. Raises one of ``DOWN`` if Redis is down."""
        mine = {tenant: one.asked for tenant, one in self.limits.items() if one.asked}
        for one in self.limits.values():
            one.asked = 0
        if not mine and not self._told:
            return
        self._told = mine
        await self._demand.tell(self._worker, mine)
        others = [report for worker, report in (await self._demand.all()).items() if worker != self._worker]
        for tenant, one in self.limits.items():
            one.share = share_of(mine[tenant], (each.get(tenant, 0) for each in others)) if tenant in mine else 1.0
