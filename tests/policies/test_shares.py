"""Dividing a limited amount among tenants and requests without a key."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model.holders import Holder
from gateway.policies.shares import Shares
from tests.effort import examples

HOLDERS: list[Holder] = [None, "", "vision", "speech", "maps"]


def filled(shares: Shares, *holders: Holder) -> list[float]:
    """What each holder has once all have taken in turn what they may."""
    while any(shares.allows(holder) for holder in holders):
        for holder in holders:
            if shares.allows(holder):
                shares.take(holder)
    return [shares.held(holder) for holder in holders]


@pytest.mark.parametrize(
    ("holders", "most"),
    [(["vision"], [192]), ([None], [64]), (["vision", "speech"], [110, 109]), ([None, "vision"], [50, 154])],
    ids=["a tenant alone", "without a key", "two tenants", "a tenant beside requests without a key"],
)
def test_nobody_gets_all(holders: Sequence[Holder], most: Sequence[float]) -> None:
    """Rule: a tenant alone gets three quarters, requests without a key a quarter; several share less than all."""
    assert filled(Shares(256), *holders) == pytest.approx(most, abs=2)


def test_a_newcomer_finds_something() -> None:
    """Rule: whatever one tenant and requests without a key have taken, another tenant may still take."""
    shares = Shares(256)
    filled(shares, None, "vision")
    assert shares.allows("speech")


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_smallest_limit_serves_everybody(holder: Holder) -> None:
    """Rule: of a limit of one, whoever comes first gets it, and nobody beside them."""
    shares = Shares(1)
    assert shares.allows(holder)
    shares.take(holder)
    assert not any(map(shares.allows, HOLDERS))


@given(
    steps=st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(0, 40)), max_size=60),
    limit=st.integers(1, 300),
)
@settings(max_examples=examples(100), deadline=None)
def test_no_more_is_taken_than_there_is(steps: Sequence[tuple[Holder, int]], limit: int) -> None:
    """Rule: what is allowed never exceeds the limit, and everything given back leaves nothing behind."""
    shares, taken = Shares(limit), []
    for holder, amount in steps:
        if shares.allows(holder, amount):
            shares.take(holder, amount)
            taken.append((holder, amount))
        assert shares.used <= limit
    for holder, amount in taken:
        shares.give_back(holder, amount)
    assert (shares.used, [shares.held(holder) for holder in HOLDERS]) == (0, [0] * len(HOLDERS))


@given(
    steps=st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(1, 40)), max_size=60),
    limit=st.integers(1, 300),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_claim_is_what_is_allowed_and_taken(steps: Sequence[tuple[Holder, int]], limit: int) -> None:
    """Rule: a claim succeeds exactly where its amount is allowed, and is then taken; a refused one changes nothing."""
    claimed, taken = Shares(limit), Shares(limit)
    for holder, amount in steps:
        allowed = taken.allows(holder, amount)
        if allowed:
            taken.take(holder, amount)
        assert claimed.claim(holder, amount) is allowed
        assert (claimed.used, claimed.held(holder)) == (taken.used, taken.held(holder))
