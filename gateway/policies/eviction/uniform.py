"""Uniform: nothing leaves for another item of the same pool; new items enter while there is room.

For data that is read once per epoch in random order: every item is as likely to be read next as any other, so resident items are
as good as new ones, and replacing one costs a read (IGTCache, section 4.2; DESIGN of Quiver's static share). When the pool has to
shrink, the latest arrival is evicted first, as if blobs had been admitted only while there was room. Where jobs read a dataset by
demand, its least needed items leave before that (``store/index/victims.py``).
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder


class Uniform(EvictionOrder):
    """The rank is the time of entering, negated; accesses change nothing."""

    name = "uniform"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """Seconds since the epoch at which the blob entered, negated."""
        return -access.time if facts.rank is None else facts.rank
