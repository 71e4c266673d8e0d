"""The quota of registrations: the rest that one more may use, and the limit that it exceeds."""

from __future__ import annotations

import pytest

from gateway.policies.items.dataset_quota import FLOOR, Limit, Quota, Usage, allowance, exceeded, quota_of, refusal

QUOTA = Quota(registrations=2, items=100, bytes=1000, all_bytes=1500)


def test_a_tenth_of_the_cache() -> None:
    """Rule: without a setting a tenant's registrations may take a tenth of the cache's capacity, and all half; a small cache has
    room for some too."""
    assert quota_of(5, 6, 0, 10**10) == Quota(5, 6, 10**9, 5 * 10**9)
    assert quota_of(5, 6, 7, 10**10).bytes == 7
    assert quota_of(5, 6, 0, 1000).bytes == quota_of(5, 6, 0, 1000).all_bytes == FLOOR


def test_what_is_left() -> None:
    """Rule: a registration may have the rest of its tenant's quota and of the zone's."""
    left = allowance(QUOTA, Usage(1, 30, 400, 400))
    assert (left.items, left.bytes, left.bound_by) == (70, 600, Limit.BYTES)
    left = allowance(QUOTA, Usage(1, 30, 400, 1400))
    assert (left.bytes, left.bound_by) == (100, Limit.CAPACITY)
    assert allowance(QUOTA, Usage(1, 130, 4000, 4000)).bytes == 0


@pytest.mark.parametrize(
    ("used", "items", "size", "limit"),
    [
        (Usage(1, 30, 400, 400), 70, 600, None),
        (Usage(2, 0, 0, 0), 0, 0, Limit.REGISTRATIONS),
        (Usage(1, 30, 400, 400), 71, 0, Limit.ITEMS),
        (Usage(1, 30, 400, 400), 0, 601, Limit.BYTES),
        (Usage(1, 30, 400, 1400), 0, 101, Limit.CAPACITY),
    ],
)
def test_what_is_exceeded(used: Usage, items: int, size: int, limit: Limit | None) -> None:
    """Rule: each limit is checked separately."""
    assert exceeded(QUOTA, used, items, size) is limit


@pytest.mark.parametrize("limit", Limit)
def test_the_refusal_says_what_to_do(limit: Limit) -> None:
    """Rule: the text names the setting and the remedy."""
    text = refusal(limit, QUOTA, Usage(1, 30, 400, 400))
    assert limit in text
    assert "Remove registrations that are no longer used" in text
