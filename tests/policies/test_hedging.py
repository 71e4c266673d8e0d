"""When a read of a store is late, and how many second requests it may get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.reads.hedging import EARNED, HedgeBudget, WaitingTimes


def times_of(*seconds: float) -> WaitingTimes:
    """Waiting times with these seconds."""
    times = WaitingTimes()
    for each in seconds:
        times.add(each)
    return times


def test_nothing_is_late_while_few_times_are_known() -> None:
    """A quantile of fewer than 64 times is unknown."""
    assert times_of(*[1.0] * 63).quantile(0.95) is None
    assert times_of(*[1.0] * 64).quantile(0.95) == 1.0


@pytest.mark.parametrize(("share", "seconds"), [(0.90, 90.0), (0.95, 95.0), (0.99, 99.0)])
def test_a_quantile_is_the_time_within_which_its_share_was_answered(share: float, seconds: float) -> None:
    """Of the times 1 to 100 in any order, the quantile 0.95 is 95."""
    assert times_of(*(1.0 + 37 * place % 100 for place in range(100))).quantile(share) == seconds


def test_a_quantile_follows_the_last_512_reads() -> None:
    """A store that has become slower is measured anew: its older times do not count."""
    times = times_of(*[1.0] * 512)
    assert times.quantile(0.95) == 1.0
    for _ in range(512):
        times.add(3.0)
    assert times.quantile(0.95) == 3.0


@given(late=st.lists(st.booleans(), max_size=2000))
def test_second_requests_are_at_most_a_twentieth(late: list[bool]) -> None:
    """Whichever reads are late, second requests are at most 5 % of the reads, and one."""
    budget, sent = HedgeBudget(), 0
    for is_late in late:
        budget.earn()
        sent += is_late and budget.spend()
        assert sent <= 1 + EARNED * len(late)


def test_a_store_that_was_quick_for_long_earns_ten_second_requests() -> None:
    """Unused second requests do not pile up for an outage."""
    budget = HedgeBudget()
    for _ in range(10_000):
        budget.earn()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
