"""ARC, the adaptive replacement cache (Megiddo and Modha, FAST 2003, figure 4), in bytes.

The pool is two lists in the order of use: T1, blobs read once (fresh: ranks below 0), and T2, blobs read again. B1 and B2
remember the blobs evicted from either. ``Ledger.adapted`` is the paper's p, the bytes that T1 aims at: an entry that B1 remembers
was evicted from T1 too early, so p grows; one that B2 remembers makes it shrink. With blobs of one size this is the paper's
algorithm; with several, every step of 1 is a step of the blob's size.

The paper evicts one page for each new page. Here a blob's list is known only with its digest, so room is made for it before
``adapted`` moves; and the watermarks decide how much is freed at a time. Both delay the adaptation by a few blobs.
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import FRESH, KEPT, BlobFacts, EvictionOrder, Ledger

_LATEST = 1e10
"""Seconds since the epoch, in the year 2286: subtracting it makes every time negative."""


class Arc(EvictionOrder):
    """Balances recency and frequency without a parameter."""

    name = "arc"
    remembers = True

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The time of the access; minus 1e10 for a blob that is new, or was only announced."""
        if facts.rank is None:
            again = facts.ghost is not None
        else:
            again = facts.rank >= 0 or facts.reads > 0
        return access.time if again else access.time - _LATEST

    def adapted(self, facts: BlobFacts) -> float:
        """The bytes that T1 aims at, after a blob entered."""
        pool, ghost = facts.pool, facts.ghost
        if ghost is None:
            return pool.adapted
        fresh, kept = pool.fresh_ghosts, pool.ghosts - pool.fresh_ghosts
        if ghost < 0:
            return min(float(pool.target), pool.adapted + max(1.0, kept / max(1, fresh)) * facts.size)
        return max(0.0, pool.adapted - max(1.0, fresh / max(1, kept)) * facts.size)

    def victims(self, pool: Ledger, entering: BlobFacts | None = None) -> tuple[float, float]:
        """T1 if it exceeds ``adapted``, else T2 (REPLACE of the paper)."""
        tie = entering is not None and entering.ghost is not None and entering.ghost >= 0 and pool.fresh == pool.adapted
        return FRESH if pool.fresh and (pool.fresh > pool.adapted or tie) else KEPT
