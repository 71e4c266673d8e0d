"""Caching mode of a dataset: all of it, as many bytes as it was given, or nothing.

Each byte of a dataset in the cache saves a read of the store per epoch. So any number of bytes is of use
(``policies/space/allocation.py``). Which items these are is decided by the demand for them (``policies/items/demand.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.policies.watermarks import MARKS

WHOLE = MARKS.low
"""Share of the fleet's caches within which a dataset is ``full`` if no mode is requested.

Nodes hold parts of different sizes. So a larger dataset is held in part, even if all of its bytes have room: on a node where its
part does not fit, its jobs share their reads.
"""
PLAN = 1
"""Version of the decision about caching; there is one decision per dataset and size of the cache so far."""
OLDER = ("static", "chunked")
"""Names of ``part`` in earlier versions, which had two ways to hold a part. They are in stored registrations and plans."""


class CachingMode(StrEnum):
    """Caching mode of one dataset."""

    FULL = "full"
    """Every item is kept."""
    PART = "part"
    """Items are kept in the space that the dataset was given, by the demand for them."""
    NONE = "none"
    """No item is stored, and none is served from the cache."""

    @classmethod
    def _missing_(cls, value: object) -> CachingMode | None:
        return cls.PART if value in OLDER else None


def wanted_mode(requested: str) -> str:
    """The present name of a mode that a registration asks for, or ``auto``."""
    return requested if requested == "auto" else CachingMode(requested).value


class PlanReason(StrEnum):
    """The reason for a dataset's caching mode."""

    REQUESTED = "requested"
    FITS = "fits"
    TOO_LARGE = "too-large"
    """A part of it fits."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """The decision about one dataset."""

    caching: CachingMode
    reason: PlanReason


def decide(requested: str, size: int, capacity: int) -> DatasetPlan:
    """Choose the caching mode of a dataset.

    Args:
        requested: a ``CachingMode``, or ``"auto"``.
        size: known bytes of its items.
        capacity: bytes of the cache.
    """
    if requested != "auto":
        return DatasetPlan(CachingMode(requested), PlanReason.REQUESTED)
    if size <= int(WHOLE * capacity):
        return DatasetPlan(CachingMode.FULL, PlanReason.FITS)
    return DatasetPlan(CachingMode.PART, PlanReason.TOO_LARGE)
