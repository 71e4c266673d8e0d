"""Which results of pipelines are in use, in Redis.

Every worker reports the results that clients request from it, at most once per heartbeat and pool; the manager makes pools of
those used within the configured time (policies/space/results_space.py). The size of all results is estimated from the elements
seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from gateway.fleet.nodes.reports import RESULTS, NodeReports, ResultsUsed
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.model.results import Collection, pool_of

MOST = 1000
"""The most pools of results that a tenant may use at a time; the use of further ones is not reported, so they get no space of
their own."""


@dataclass(slots=True)
class _Seen:
    collection: Collection
    items: int
    elements: int = 0
    bytes: int = 0


class ResultUses:
    """The results of a zone that are in use; one worker reports its part.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        idle: seconds after their last use for which results keep their pool.
    """

    def __init__(self, redis: Redis, prefix: str, idle: float) -> None:
        self._reports = NodeReports(redis, prefix, RESULTS, idle)
        self._pools = TenantIndex(redis, f"{prefix}results:of:", MOST, round(1000 * idle))
        self._seen: dict[str, _Seen] = {}
        self._sizes: dict[str, tuple[int, int]] = {}

    def note(self, collection: Collection, items: int, elements: int = 0, size: int = 0) -> None:
        """Count a use of ``items`` results, and ``elements`` of ``size`` bytes in total."""
        name = pool_of(collection.tenant, collection.dataset, collection.fingerprint)
        seen = self._seen.setdefault(name, _Seen(collection, items))
        seen.elements += elements
        seen.bytes += size

    async def run_once(self) -> None:
        """Report the results used since the last call. Raises one of ``DOWN`` if Redis is down, slow or refuses."""
        seen, self._seen = self._seen, {}
        reported = (
            await self.all() if any(not use.elements and name not in self._sizes for name, use in seen.items()) else {}
        )
        for name, use in seen.items():
            elements, size = self._sizes.get(name, (0, 0))
            if elements + use.elements:
                elements, size = self._sizes[name] = (elements + use.elements, size + use.bytes)
            known = use.items * size // elements if elements else 0
            if not known and name in reported:
                known = reported[name].size
            of = use.collection
            if not await self._pools.admit(of.tenant, name):
                continue
            await self._reports.send(name, ResultsUsed(of.tenant, of.dataset, of.fingerprint, use.items, known))

    async def all(self) -> dict[str, ResultsUsed]:
        """The results in use, by the hash that names their pool. Raises what ``run_once`` raises."""
        return await self._reports.all()
