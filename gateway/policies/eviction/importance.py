"""Importance: the least important item leaves first (SHADE, section 4.2.2, Algorithm 1).

The rank of a scored item is its score, which is not negative. An item without a score has a rank below 0, so it leaves before all
scored items; unscored items leave in the order of ``uniform``, as for a job that sends no scores. Reads change nothing: they
predict the next reads less well than the job's scores do.

The queue of Algorithm 1 is the index of ranks; its ghost cache is the table of all scores that jobs have sent
(``policies/items/importance.py``), from which a blob that enters gets its rank, whether or not it was here before. That module
also decides what may enter a full pool, before anything is read.
"""

from __future__ import annotations

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder


class Importance(EvictionOrder):
    """The rank is the score, or the negated time of entering if the item was never scored."""

    name = "importance"

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The score with which a blob enters, and then its present rank; at most -1e-9 for a new blob without a score.

        A blob that two workers store enters twice, and the node may have ranked it by a newer score before the second entry.
        """
        if facts.rank is not None and facts.rank >= 0:
            return facts.rank
        if facts.score is not None:
            return facts.score
        return -max(access.time, 1e-9) if facts.rank is None else facts.rank
