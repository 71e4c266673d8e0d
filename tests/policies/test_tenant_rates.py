"""Limits of tenants: token buckets, and the shares of workers."""

from __future__ import annotations

import pytest

from gateway.policies.fleet.tenant_rates import BURST, LEAST_SHARE, RateLimit, TenantBucket, share_of


def admitted(allowance: TenantBucket, seconds: float, every: float, size: int = 0) -> int:
    """Requests that are admitted of one every so many seconds, each answered with ``size`` bytes."""
    count, now = 0, 0.0
    while now < seconds:
        if allowance.wait(now) == 0:
            count += 1
            allowance.spend(size)
        now += every
    return count


def test_requests_beyond_the_limit_wait() -> None:
    """Rule: over time as many requests are admitted as the limit says, and a burst of two seconds."""
    assert admitted(TenantBucket(RateLimit(requests=10), 0.0), 100, 0.01) == pytest.approx(10 * (100 + BURST), abs=1)


def test_bytes_beyond_the_limit_make_the_next_requests_wait() -> None:
    """Rule: over time as many bytes are sent as the limit says; one answer may exceed it."""
    allowance = TenantBucket(RateLimit(bytes=1000), 0.0)
    assert admitted(allowance, 100, 0.01, 500) == pytest.approx(2 * (100 + BURST), abs=2)
    assert admitted(TenantBucket(RateLimit(bytes=1), 0.0), 100, 0.01, 10**9) == 1


def test_below_the_limit_nobody_waits() -> None:
    """Rule: a tenant that stays below both limits is never refused."""
    assert admitted(TenantBucket(RateLimit(10, 1000), 0.0), 100, 0.125, 100) == 800


def test_the_wait_is_as_long_as_it_takes() -> None:
    """Rule: a request is admitted after the announced wait, and not before."""
    allowance = TenantBucket(RateLimit(requests=0.25), 0.0)
    assert allowance.wait(0.0) == 0
    seconds = allowance.wait(0.0)
    assert seconds == pytest.approx(4)
    assert allowance.wait(seconds - 0.01) > 0
    assert allowance.wait(seconds + 0.001) == 0


def test_shares_follow_demand() -> None:
    """Rule: workers share a limit by their demand; a worker alone has all of it."""
    assert share_of(30, [10]) == 0.75
    assert share_of(10, [30]) == 0.25
    assert share_of(5, []) == share_of(0, []) == 1
    assert share_of(1, [10**6]) == LEAST_SHARE


def test_a_clock_that_is_set_back_takes_nothing() -> None:
    """Rule: a clock set back neither adds nor removes tokens."""
    allowance = TenantBucket(RateLimit(requests=1), 100.0)
    assert [allowance.wait(100.0), allowance.wait(50.0)] == [0, 0]
    assert allowance.wait(50.0) > 0
