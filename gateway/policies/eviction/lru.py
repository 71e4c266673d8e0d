"""Least recently used: the rank is the time of the last access."""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder


class LeastRecentlyUsed(EvictionOrder):
    """The default order. Workers write their reads in batches, so reads may arrive out of order: the latest time counts."""

    name = "lru"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The time of the access, seconds since the epoch."""
        return access.time if facts.rank is None else max(facts.rank, access.time)
