"""Chunk: the order of a dataset of which two chunks are held and rotated (Quiver, section 5.1).

``policies/space/chunks.py`` decides which chunks are held, and the items of one that has left are evicted at once. If room is
needed before that, the order of loading is the order of leaving: the older chunk is the one that jobs finish first. A read makes
no item younger: what was just read is needed last, as it comes again only in the next epoch, whereas the next chunk, loaded
before, is yet to be read.
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder


class ChunkOrder(EvictionOrder):
    """The rank is the time of loading; accesses change nothing."""

    name = "chunk"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """Seconds since the epoch at which the blob was loaded."""
        return access.time if facts.rank is None else facts.rank
