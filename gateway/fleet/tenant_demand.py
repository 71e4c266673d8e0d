"""The number of requests of tenants with limits that each worker of a zone was asked, in Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.documents import Document
from gateway.fleet.plans import NodeReports

SILENCE = 3.0
"""Seconds after which the report of a worker is ignored: three of its reports."""

_DEMAND = Document[dict[str, int]](dict[str, int])


class TenantDemand(NodeReports[dict[str, int]]):
    """The requests that each worker was asked in its last second, by tenant."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        super().__init__(redis, f"{prefix}demand", SILENCE, _DEMAND)
