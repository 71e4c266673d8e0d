"""Estimates what jobs will read from the store in an epoch, before there is a cache to measure.

An epoch reads each item once. Items cached when it begins come from the cache, and jobs take early the items that others have
just loaded. So all jobs on a dataset together read the rest about once (docs/evaluation/bound.md compares real gateways). Items
are assumed to be equally large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

USABLE = 0.989
"""Share of ``cache.capacity`` that gateways plan for datasets."""


@dataclass(frozen=True, slots=True)
class ExpectedReads:
    """Reads of the store while the fastest job goes through the dataset once, from the second epoch on; the first reads
    everything.

    Args:
        held: share of the dataset that the cache holds.
        reads: items read, for all jobs together.
        uncached: items read without a cache.
        by_path: items that one job reads by path through an LRU cache of this size.
    """

    held: float
    reads: float
    uncached: float
    by_path: float


def expected_reads(items: int, size: int, capacity: float, jobs: int = 1) -> ExpectedReads:
    """The expected reads of ``jobs`` of equal speed on ``items`` items of ``size`` bytes in total, with this ``cache.capacity``
    of all nodes together.

    Raises:
        ValueError: the dataset is empty, or there is no job.
    """
    if items < 1 or size < 1 or jobs < 1 or capacity < 0:
        raise ValueError(f"need items, bytes and jobs, not {items} items of {size} bytes and {jobs} jobs")
    held = min(1.0, USABLE * capacity / size)
    rest = 1 - held
    return ExpectedReads(held, items * rest, items * jobs, items * rest * (1 - math.log(rest)) if rest else 0.0)
