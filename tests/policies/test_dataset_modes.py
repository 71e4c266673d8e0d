"""Caching modes of datasets that no plan decides about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.datasets import OLDER, WHOLE, CachingMode, PlanReason, decide, wanted_mode

CAPACITY = 1_000_000


@given(st.integers(0, 10**18), st.integers(1, 10**15))
def test_auto_is_full_if_it_fits_and_part_otherwise(size: int, capacity: int) -> None:
    """Rule: a dataset within the share of the cache that survives an eviction is kept whole, any other one in part."""
    plan = decide("auto", size, capacity)
    if size <= int(WHOLE * capacity):
        assert (plan.caching, plan.reason) == (CachingMode.FULL, PlanReason.FITS)
    else:
        assert (plan.caching, plan.reason) == (CachingMode.PART, PlanReason.TOO_LARGE)


@pytest.mark.parametrize("mode", list(CachingMode))
@pytest.mark.parametrize("size", [0, 10**6, 10**15])
def test_what_was_asked_for_is_done(mode: CachingMode, size: int) -> None:
    """Rule: a requested mode applies to a dataset of any size."""
    plan = decide(mode.value, size, CAPACITY)
    assert (plan.caching, plan.reason) == (mode, PlanReason.REQUESTED)


@pytest.mark.parametrize("name", OLDER)
def test_modes_of_earlier_versions_are_a_part(name: str) -> None:
    """Rule: the names of earlier versions, which stored registrations and plans have, mean a part."""
    assert wanted_mode(name) == CachingMode(name) == CachingMode.PART
    assert decide(name, 10, CAPACITY).caching is CachingMode.PART


def test_an_unknown_mode_is_refused() -> None:
    """Rule: a name that no version had is an error."""
    with pytest.raises(ValueError, match="rotated"):
        CachingMode("rotated")
