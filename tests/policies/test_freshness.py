"""Freshness: serving cached bytes without a check, and serving stale bytes while the origin is unreachable."""

from __future__ import annotations

import math

import pytest

from gateway.policies.reads.freshness import AHEAD, EntryState, Verdict, decide, latest, may_serve_stale
from gateway.policies.reads.rules import ALWAYS, IMMUTABLE, Caching

RULE = Caching(freshness=600, grant=600, stale_if_error=3600)


def test_a_fresh_granted_object_is_served() -> None:
    """Within both times the origin is not asked."""
    assert decide(EntryState(1000, 1000), RULE, 1599) is Verdict.SERVE


@pytest.mark.parametrize(
    ("standing", "now"),
    [
        (EntryState(1000, None), 1001),
        (EntryState(1000, 1000), 1600),
        (EntryState(1000, 1550), 1600),
        (EntryState(1550, 1000), 1600),
    ],
)
def test_either_time_running_out_asks_the_origin(standing: EntryState, now: float) -> None:
    """Freshness and grant are separate facts; without either the origin is asked."""
    assert decide(standing, RULE, now) is Verdict.CHECK


def test_a_client_can_force_the_check() -> None:
    """Cache-Control: no-cache wins over every time."""
    assert decide(EntryState(1000, 1000), Caching(freshness=IMMUTABLE), 1001, forced=True) is Verdict.CHECK


def test_always_asks_every_time() -> None:
    """freshness = always leaves no time in which the origin is not asked."""
    assert decide(EntryState(1000, 1000), Caching(freshness=ALWAYS), 1000) is Verdict.CHECK


def test_immutable_objects_need_the_grant_only() -> None:
    """freshness = immutable never asks about the object, still about the reader."""
    rule = Caching(freshness=IMMUTABLE, grant=600)
    assert decide(EntryState(0, 10_000), rule, 10_599) is Verdict.SERVE
    assert decide(EntryState(0, 10_000), rule, 10_600) is Verdict.CHECK


def test_what_was_confirmed_before_the_channel_was_whole_is_checked() -> None:
    """A write without an announcement may lie between the confirmation and the time since when all writes are announced."""
    assert decide(EntryState(1000, 1000, trusted_since=1001), RULE, 1002) is Verdict.CHECK
    assert decide(EntryState(1000, 1000, trusted_since=math.inf), RULE, 1002) is Verdict.CHECK
    assert decide(EntryState(1001, 1001, trusted_since=1001), RULE, 1002) is Verdict.SERVE


def test_stale_bytes_need_a_grant_that_was_once_given() -> None:
    """An unreachable origin opens nothing to a reader whom it never accepted."""
    assert not may_serve_stale(EntryState(1000, None), RULE, 1700)
    assert may_serve_stale(EntryState(1000, 1000), RULE, 1700)


def test_stale_bytes_end_with_the_time_of_the_rule() -> None:
    """stale_if_error counts from the end of freshness."""
    assert may_serve_stale(EntryState(1000, 1000), RULE, 1000 + 600 + 3599)
    assert not may_serve_stale(EntryState(1000, 1000), RULE, 1000 + 600 + 3600)
    assert not may_serve_stale(EntryState(1000, 1000), Caching(stale_if_error=0), 1601)


def test_a_forced_check_never_gets_stale_bytes() -> None:
    """A forced check that fails is an error, never stale bytes."""
    assert not may_serve_stale(EntryState(1000, 1000), RULE, 1700, forced=True)


@pytest.mark.parametrize("future", [EntryState(5000, 1000), EntryState(1000, 5000), EntryState(5000, 5000)])
def test_what_was_learned_in_the_future_proves_nothing(future):
    """A clock that was ahead stretches neither freshness nor grant, nor what may be served while the origin is away."""
    assert decide(future, Caching(), 1100) is Verdict.CHECK
    assert not may_serve_stale(future, Caching(), 1100)


def test_a_clock_that_is_corrected_a_little_costs_no_checks():
    """A confirmation at most ``AHEAD`` seconds in the future still counts; one further ahead is checked again."""
    assert decide(EntryState(1000, 1000), RULE, 1000 - AHEAD) is Verdict.SERVE
    assert decide(EntryState(1000, 1000), RULE, 999 - AHEAD) is Verdict.CHECK


def test_the_grant_of_an_immutable_object_may_not_be_of_the_future():
    """Immutable objects need no confirmation, so one of the future does no harm; a grant they need."""
    rule = Caching(freshness=IMMUTABLE)
    assert decide(EntryState(5000, 1000), rule, 1100) is Verdict.SERVE
    assert decide(EntryState(1000, 5000), rule, 1100) is Verdict.CHECK


def test_the_latest_confirmation_is_not_one_of_the_future():
    """Else a time noted by a clock that was ahead would outlive every confirmation until it comes."""
    assert latest(1000, 1001, 1001) == latest(1001, 1000, 1001) == 1001
    assert latest(5000, 1001, 1001) == 1001
