"""Caching modes of datasets, and the number of chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.datasets import (
    LARGEST_CHUNK,
    MOST_UNITS,
    PARTITIONS,
    UNITS,
    USABLE,
    CachingMode,
    PlanReason,
    decide,
    may_evict_for,
)

CAPACITY = 1_000_000


@pytest.mark.parametrize(
    ("size", "caching", "reason"),
    [
        (0, CachingMode.FULL, PlanReason.FITS),
        (900_000, CachingMode.FULL, PlanReason.FITS),
        (900_001, CachingMode.CHUNKED, PlanReason.TOO_LARGE),
        (450_000 * MOST_UNITS, CachingMode.CHUNKED, PlanReason.TOO_LARGE),
        (450_000 * MOST_UNITS + 1, CachingMode.STATIC, PlanReason.CHUNK_TOO_LARGE),
        (10**18, CachingMode.STATIC, PlanReason.CHUNK_TOO_LARGE),
    ],
)
def test_auto_is_full_if_it_fits_then_chunked_while_two_chunks_fit(
    size: int, caching: CachingMode, reason: PlanReason
) -> None:
    """Rule: a dataset within 90 % of the cache is kept whole; else two chunks are; else its first items."""
    plan = decide("auto", size, CAPACITY)
    assert (plan.caching, plan.reason) == (caching, reason)


@pytest.mark.parametrize("mode", list(CachingMode))
@pytest.mark.parametrize("size", [0, 10**6, 10**15])
def test_what_was_asked_for_is_done(mode: CachingMode, size: int) -> None:
    """Rule: a requested mode applies to a dataset of any size."""
    plan = decide(mode.value, size, CAPACITY)
    assert (plan.caching, plan.reason) == (mode, PlanReason.REQUESTED)


@given(st.integers(1, 10**17), st.integers(1, 10**15))
def test_two_chunks_always_fit_where_chunks_are_rotated(size: int, capacity: int) -> None:
    """Rule: of a dataset that is chunked, two chunks fit into the share of the cache that survives an eviction."""
    plan = decide("auto", size, capacity)
    if plan.caching is CachingMode.CHUNKED:
        assert 2 * size <= int(USABLE * capacity) * plan.units
    if plan.caching is not CachingMode.STATIC:
        assert size <= LARGEST_CHUNK * plan.units or plan.units == MOST_UNITS
    assert UNITS <= plan.units <= MOST_UNITS
    assert plan.partitions == PARTITIONS


def test_a_cache_of_no_bytes_is_no_mistake() -> None:
    """Rule: the smallest capacity gives a plan, too."""
    assert decide("auto", 10, 1).caching is CachingMode.STATIC


def test_only_what_rotates_or_fits_evicts() -> None:
    """Rule: others store an item only where there is room."""
    assert [mode for mode in CachingMode if may_evict_for(mode)] == [CachingMode.FULL, CachingMode.CHUNKED]
