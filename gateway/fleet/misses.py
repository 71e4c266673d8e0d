"""The tallies of misses of a zone's workers, in Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.documents import Document
from gateway.fleet.plans import NodeReports
from gateway.policies.misses import MissReport

_MISSES = Document[MissReport](MissReport)


class MissReports(NodeReports[MissReport]):
    """The last report of each worker. ``silence``: seconds after which one is ignored."""

    def __init__(self, redis: Redis, prefix: str, silence: float) -> None:
        super().__init__(redis, f"{prefix}misses", silence, _MISSES)
