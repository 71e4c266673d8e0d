"""An eviction order ranks the blobs of one pool; the lowest rank leaves first.

An order gets every access, and every blob that enters its pool, and answers with a rank. It keeps nothing itself: the rank is a
column of the node's index, and so are the sums that an order may ask for (``Ledger``). So an order costs no memory per blob,
holds for all workers of a node, and survives a restart.

A rank is any finite number. Ranks below 0 are *fresh*: an order may divide its pool by the sign, and the index knows the bytes on
either side. For an order that ``remembers``, the index keeps a list of evicted blobs per side, up to the bytes of the pool's
target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from gateway.model.access import Access

EVERYTHING = (-float("inf"), float("inf"))
FRESH = (-float("inf"), 0.0)
KEPT = (0.0, float("inf"))
"""Ranges of ranks, from and up to but not including."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The index's counters of one pool; all but ``adapted`` in bytes.

    ``fresh`` of ``size`` have a rank below 0. ``ghosts`` counts the remembered evicted blobs, ``fresh_ghosts`` those of them with
    a rank below 0. ``adapted`` is a number of the order's own.
    """

    target: int
    size: int = 0
    fresh: int = 0
    ghosts: int = 0
    fresh_ghosts: int = 0
    adapted: float = 0.0


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """The facts from which a blob is ranked.

    Attributes:
        pool: as counted before.
        size: bytes of the blob.
        rank: its present rank; ``None`` when it enters the pool.
        reads: number of reads that this access represents; 0 when the blob was announced, or loaded ahead, and not read yet.
        ghost: the rank with which it left, if that is remembered.
        score: the item's importance to jobs, not negative; ``None`` when none did.
    """

    pool: Ledger
    size: int
    rank: float | None = None
    reads: int = 1
    ghost: float | None = None
    score: float | None = None


class EvictionOrder(Protocol):
    """One way to rank. Subclasses are values without state."""

    name: ClassVar[str]
    remembers: ClassVar[bool] = False

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """The rank of a blob after an access.

        Args:
            access: the read, or the access that brought the blob into the pool.
            facts: of the blob.
            now: seconds since the epoch; not earlier than the access unless a clock was set back.
        """

    def adapted(self, facts: BlobFacts) -> float:
        """The new ``Ledger.adapted`` after a blob with a ghost has entered."""
        return facts.pool.adapted

    def victims(self, pool: Ledger, entering: BlobFacts | None = None) -> tuple[float, float]:
        """The range of ranks whose lowest leaves next; ``entering`` is the blob that needs the room, if it is known."""
        return EVERYTHING
