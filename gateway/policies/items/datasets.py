"""Caching mode and number of chunks of a dataset.

Only three choices make sense for a dataset that is read once per epoch in random order (Quiver, section 5.3): all of it, two
chunks that are rotated, or nothing. A fourth, keeping whatever came first, is what a plain "never evict" cache does: its epoch
hit ratio is exactly the cached fraction, which makes it the yardstick for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PARTITIONS = 10
UNITS = 10
LARGEST_CHUNK = 15 * 1000**3
"""Bytes: a chunk is a tenth of the dataset or this, whichever is smaller (Quiver, section 5.3)."""
USABLE = 0.9
"""Share of the cache that survives an eviction, which stops at this watermark (gateway/policies/watermarks.py)."""
MOST_UNITS = 1000
PLAN = 1
"""Version of the decision about caching and chunks; there is one decision per dataset and size of the cache so far."""


class CachingMode(StrEnum):
    """Caching mode of one dataset."""

    FULL = "full"
    """Every item is kept."""
    STATIC = "static"
    """The first items stay; nothing is evicted for others."""
    CHUNKED = "chunked"
    """Two chunks' space: the one in use, and the next one being loaded."""
    NONE = "none"
    """No item is stored, and none is served from the cache."""


class PlanReason(StrEnum):
    """Why a dataset is cached as it is."""

    REQUESTED = "requested"
    FITS = "fits"
    TOO_LARGE = "too-large"
    """The dataset does not fit, but two chunks do."""
    CHUNK_TOO_LARGE = "chunk-too-large"
    """Not even two of the smallest chunks fit."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """The decision: mode, and the cut into ``partitions`` of ``units`` stripe units each (see policies/space/chunk_cut.py)."""

    caching: CachingMode
    partitions: int
    units: int
    reason: PlanReason


def decide(requested: str, size: int, capacity: int) -> DatasetPlan:
    """Choose the caching mode of a dataset.

    Args:
        requested: a ``CachingMode``, or ``"auto"``.
        size: bytes of all items, as far as they are known.
        capacity: bytes of the cache.
    """
    room = int(USABLE * capacity)
    units = units_of(size, room)
    fits_twice = 2 * size <= room * units
    if requested != "auto":
        return DatasetPlan(CachingMode(requested), PARTITIONS, units, PlanReason.REQUESTED)
    if size <= room:
        return DatasetPlan(CachingMode.FULL, PARTITIONS, units, PlanReason.FITS)
    if fits_twice:
        return DatasetPlan(CachingMode.CHUNKED, PARTITIONS, units, PlanReason.TOO_LARGE)
    return DatasetPlan(CachingMode.STATIC, PARTITIONS, units, PlanReason.CHUNK_TOO_LARGE)


def units_of(size: int, room: int) -> int:
    """Number of chunks of a dataset of ``size`` bytes; two of them fit into ``room`` bytes where possible."""
    return min(max(UNITS, -(-size // LARGEST_CHUNK), -(-2 * size // max(1, room))), MOST_UNITS)


def may_evict_for(mode: CachingMode) -> bool:
    """Whether other blobs may be evicted to store an item of a dataset in this mode."""
    return mode in (CachingMode.FULL, CachingMode.CHUNKED)


def refreshes_recency(mode: CachingMode) -> bool:
    """Whether a read makes an item younger in the pool ``default``.

    Not in chunked mode: a job reads an item again only in its next epoch, but the items of the next chunk, which were loaded
    earlier, soon. So items leave in the order of loading.
    """
    return mode is not CachingMode.CHUNKED
