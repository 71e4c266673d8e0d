"""Consumed: a blob leaves once it was read.

For data that is read once and in order: read blobs are not needed again, blobs loaded ahead are needed next (IGTCache, section
4.2).
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder

_LATEST = 1e10
"""Seconds since the epoch, in the year 2286: subtracting it makes every time negative."""


class Consumed(EvictionOrder):
    """Read blobs have ranks below 0, the earliest read leaving first; unread ones leave after them, in the order of loading."""

    name = "consumed"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The time of loading while unread; afterwards the time of the last read minus 1e10."""
        if facts.reads:
            return access.time - _LATEST
        return access.time if facts.rank is None else facts.rank
