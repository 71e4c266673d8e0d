"""Least frequently used: the rank is the number of reads; the time of the last read breaks ties."""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder

_LATEST = 1e10
"""Seconds since the epoch, in the year 2286: a time divided by it stays below 1."""


class LeastFrequentlyUsed(EvictionOrder):
    """Counts reads while a blob is in the pool; a blob that returns starts at zero. For comparison: it never forgets old
    favourites."""

    name = "lfu"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """Reads so far, plus a fraction that grows with the time of the last."""
        before = 0.0 if facts.rank is None else facts.rank // 1
        return before + facts.reads + min(max(access.time, 0.0) / _LATEST, 0.999)
