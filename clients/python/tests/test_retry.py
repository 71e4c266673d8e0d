"""Retries of failed requests."""

import pytest

import larder
from larder.base.retry import Patience


def test_one_pause_less_than_attempts():
    """Rule: after the last attempt there is no pause."""
    patience = Patience(larder.Retry(attempts=4))
    assert [patience.pause("cut") is None for _ in range(5)] == [False, False, False, True, True]
    assert Patience(larder.Retry(attempts=1)).pause("cut") is None


def test_pauses_stay_under_bounds_that_double_up_to_the_longest():
    """Rule: pause n is drawn between 0 and min(longest, base x 2^n), and uses that range."""
    drawn = []
    for _ in range(500):
        patience = Patience(larder.Retry(attempts=5, base=1, longest=5))
        drawn.append([patience.pause("cut") for _ in range(4)])
    largest = [max(column) for column in zip(*drawn, strict=True)]
    smallest = [min(column) for column in zip(*drawn, strict=True)]
    for bound, high, low in zip([1, 2, 4, 5], largest, smallest, strict=True):
        assert 0.9 * bound < high <= bound
        assert 0 <= low < 0.1 * bound


def test_attempts_are_counted_by_cause():
    """Rule: each cause has its own attempts; the error lists the failures of all."""
    patience = Patience(larder.Retry(attempts=2))
    assert [patience.pause(cause) is None for cause in ("connection", "cut", "busy", "cut")] == [
        False,
        False,
        False,
        True,
    ]
    assert patience.failures == 4


def test_patience_holds_for_every_cause():
    """Rule: within the allowed outage every cause is retried; after it none is."""
    now = 0.0
    patience = Patience(larder.Retry(attempts=1, outage=120), lambda: now)
    for cause in ("connection", "cut", "origin") * 3:
        now += 13.0
        assert patience.pause(cause) is not None
    now = 121.0
    assert patience.pause("cut") is None


def test_progress_renews_everything():
    """Rule: the outage counts from the last progress, and so do the attempts."""
    now = 0.0
    patience = Patience(larder.Retry(attempts=2, outage=10), lambda: now)
    patience.pause("cut")
    now = 9.0
    patience.renew()
    assert patience.failures == 0
    now = 18.0
    assert [patience.pause("cut") is None for _ in range(3)] == [False, False, False]
    now = 20.0
    assert patience.pause("cut") is None


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base": -1}, {"longest": -0.1}, {"outage": -1}])
def test_impossible_values_are_refused(wrong):
    """Rule: no attempt at all and negative times are mistakes of the caller."""
    with pytest.raises(ValueError, match="at least"):
        larder.Retry(**wrong)
