"""How a dataset is cached, and into which chunks it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.datasets import (
    LARGEST_CHUNK,
    MOST_UNITS,
    PARTITIONS,
    UNITS,
    USABLE,
    CachingMode,
    PlanReason,
    decide,
    fullest_chunk,
    may_evict_for,
    refreshes_recency,
    unit_starts,
)
from larder.planner.layout import Layout

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
    """Rule: everything within 90 % of the cache is kept; else two chunks are; else what comes first."""
    plan = decide("auto", size, CAPACITY)
    assert (plan.caching, plan.reason) == (caching, reason)


@pytest.mark.parametrize("mode", list(CachingMode))
@pytest.mark.parametrize("size", [0, 10**6, 10**15])
def test_what_was_asked_for_is_done(mode: CachingMode, size: int) -> None:
    """Rule: a mode that was asked for holds, whatever the dataset's size."""
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
    """Rule: the smallest capacity gives a plan, too: nothing fits twice into it."""
    assert decide("auto", 10, 1).caching is CachingMode.STATIC


@given(st.integers(0, 5000), st.integers(1, 30), st.integers(1, 60))
def test_gateway_and_client_cut_alike(items: int, partitions: int, units: int) -> None:
    """Rule: the chunk that the gateway tells of is the one that the client reads, also of fewer items than units."""
    layout = Layout(items, partitions, units)
    cells = [layout.cell(partition, unit)[0] for partition in range(partitions) for unit in range(units)]
    assert unit_starts(items, partitions, units).tolist() == cells


@given(st.integers(1, 2**32 - 1))
def test_the_cut_of_a_huge_dataset_does_not_overflow(items: int) -> None:
    """Rule: 2**32 items in 10,000 units are within 64 bits."""
    starts = unit_starts(items, PARTITIONS, MOST_UNITS)
    assert starts[0] == 0
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] <= items


@given(st.binary(min_size=1, max_size=50), st.integers(1, 5), st.integers(1, 12))
def test_the_fullest_chunk_has_as_many_resident_items_as_any(bits: bytes, partitions: int, units: int) -> None:
    """Rule: counted over the client's own chunks, none has more; -1 when nothing is resident."""
    resident = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(bool)
    items = len(resident)
    layout = Layout(items, partitions, units)
    counts = [int(resident[layout.stripe(unit)].sum()) for unit in range(units)]
    chunk = fullest_chunk(resident, partitions, units)
    if not any(counts):
        assert chunk == -1
    else:
        assert counts[chunk] == max(counts)


def test_nothing_resident_is_no_chunk() -> None:
    """Rule: a dataset without items, or without resident ones, has no fullest chunk."""
    assert fullest_chunk(np.zeros(0, bool), 10, 10) == -1
    assert fullest_chunk(np.zeros(100, bool), 10, 10) == -1


def test_only_what_rotates_or_fits_evicts_and_only_rotation_keeps_the_order_of_loading() -> None:
    """Rule: the two switches by mode."""
    assert [mode for mode in CachingMode if may_evict_for(mode)] == [CachingMode.FULL, CachingMode.CHUNKED]
    assert [mode for mode in CachingMode if not refreshes_recency(mode)] == [CachingMode.CHUNKED]
