"""The least rate of a client that is waited for."""

from __future__ import annotations

import math

from gateway.policies.pace import ClientPace


def test_a_client_that_sends_too_little_is_too_slow() -> None:
    """Rule: within the window of waiting the quota must come; a byte now and then prolongs nothing."""
    pace = ClientPace(window=30.0, rate=1000.0)
    assert pace.wait(100.0) == 130.0
    assert [pace.got(1, now) for now in (108.0, 116.0, 124.0)] == [130.0] * 3


def test_a_quota_begins_the_next_window() -> None:
    """Rule: a client that keeps the rate is never too slow, and what it sent early is no credit for later."""
    pace = ClientPace(window=30.0, rate=1000.0)
    pace.wait(0.0)
    assert pace.got(29_999, 10.0) == 30.0
    assert pace.got(1, 12.0) == 42.0
    assert pace.got(10_000_000, 13.0) == 43.0


def test_only_waiting_counts() -> None:
    """Rule: the time in which the gateway is busy is not the client's."""
    pace = ClientPace(window=30.0, rate=1000.0)
    pace.wait(0.0)
    pace.stop(20.0)
    assert pace.got(100, 500.0) == math.inf
    assert pace.wait(1000.0) == 1010.0


def test_without_a_rate_a_byte_is_enough() -> None:
    """Rule: a rate of 0 limits silence only."""
    pace = ClientPace(window=30.0, rate=0.0)
    pace.wait(0.0)
    assert pace.got(1, 29.0) == 59.0
