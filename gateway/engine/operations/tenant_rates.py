"""Holds the tenants of one worker to their limits (gateway/policies/fleet/tenant_rates.py).

Without limits a request costs one look-up in an empty mapping. A worker reports to Redis only if limited tenants send requests.
While Redis is down, every worker keeps its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gateway.base import metrics
from gateway.model.errors import RateLimited
from gateway.policies.fleet.tenant_rates import RateLimit, TenantBucket, share_of

EVERY = 1.0
"""Seconds between two exchanges of request counts with other workers."""


class Demand(Protocol):
    """Reports of how many requests each worker of a zone received."""

    async def send(self, node: str, report: dict[str, int]) -> None:
        """Report the requests of one worker, by tenant."""

    async def all(self) -> Mapping[str, Mapping[str, int]]:
        """The reports of all workers."""


class TenantRates:
    """The limits of tenants in one worker, as its share of the zone's.

    Attributes:
        limits: by tenant; empty without limits.

    Args:
        demand: of all workers.
        worker: this worker's name.
        clock: monotonic seconds.
    """

    def __init__(self, demand: Demand, worker: str, clock: Callable[[], float]) -> None:
        self.limits: dict[str, TenantBucket] = {}
        self._demand = demand
        self._worker = worker
        self._clock = clock
        self._sent: dict[str, int] = {}

    def replace(self, limits: Iterable[tuple[str, RateLimit]]) -> None:
        """Adopt the limits, by tenant. The used amounts of unchanged limits stay."""
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
        """Count a request that is never refused and does not use the limit."""
        allowance = self.limits.get(tenant)
        if allowance is not None:
            allowance.asked += 1

    def spend(self, tenant: str, size: int) -> None:
        """Count the bytes of an answer."""
        allowance = self.limits.get(tenant)
        if allowance is not None:
            allowance.spend(size)

    async def run_once(self) -> None:
        """Report this worker's requests and update its share of each limit. Raises one of ``DOWN`` if Redis is down."""
        mine = {tenant: limit.asked for tenant, limit in self.limits.items() if limit.asked}
        for limit in self.limits.values():
            limit.asked = 0
        if not mine and not self._sent:
            return
        self._sent = mine
        await self._demand.send(self._worker, mine)
        others = [report for worker, report in (await self._demand.all()).items() if worker != self._worker]
        for tenant, limit in self.limits.items():
            limit.share = (
                share_of(mine[tenant], (report.get(tenant, 0) for report in others)) if tenant in mine else 1.0
            )
