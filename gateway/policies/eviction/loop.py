"""Loop: the blob read last is evicted first.

For data that is read in order again and again: the blob just read is needed last. A part of the size of the pool stays from one
round to the next; LRU evicts each item before it is needed again. Blobs loaded ahead stay until they are read.
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder


class Loop(EvictionOrder):
    """Read blobs have ranks below 0, the latest read leaving first; unread ones leave after them, in the order of loading."""

    name = "loop"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The time of loading while the blob is unread; afterwards the negated time of its last read."""
        if facts.reads:
            return -access.time if facts.rank is None or facts.rank >= 0 else min(facts.rank, -access.time)
        return access.time if facts.rank is None else facts.rank
