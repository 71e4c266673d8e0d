"""The disk breaker: failures that bring the disk down, and probes that bring it back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.health.breaker import (
    INCURABLE,
    Breaker,
    BreakerParams,
    BreakerState,
    Failed,
    FailureKind,
    Ok,
    Probed,
    Step,
    Wrote,
)

PARAMS = BreakerParams(failures=3, window=10, calm=5, slow_write=2, first_probe=1, longest_probe=8)


def breaker_that_is_down(now: float = 0.0) -> Breaker:
    """A breaker that went down at ``now``."""
    breaker = Breaker(PARAMS)
    breaker.handle(Failed(FailureKind.GONE), now)
    return breaker


def test_a_new_breaker_lets_everything_through():
    """Without failures the disk is used."""
    breaker = Breaker(PARAMS)
    assert (breaker.state, breaker.decide(0), breaker.cause) == (BreakerState.NORMAL, Step.USE, None)


def test_one_failure_makes_unstable_and_is_still_used():
    """A single failure is remembered, nothing more."""
    breaker = Breaker(PARAMS)
    assert breaker.handle(Failed(FailureKind.IO), 0) is BreakerState.UNSTABLE
    assert (breaker.decide(0), breaker.cause) == (Step.USE, FailureKind.IO)


def test_repeated_failures_within_the_window_bring_it_down():
    """The third failure within ten seconds is one too many."""
    breaker = Breaker(PARAMS)
    states = [breaker.handle(Failed(FailureKind.IO), now) for now in (0, 5, 10)]
    assert states == [BreakerState.UNSTABLE, BreakerState.UNSTABLE, BreakerState.DOWN]


def test_failures_further_apart_than_the_window_do_not():
    """Three failures over more than ten seconds are bad luck, not a broken disk."""
    breaker = Breaker(PARAMS)
    assert [breaker.handle(Failed(FailureKind.IO), now) for now in (0, 5, 10.1)] == [BreakerState.UNSTABLE] * 3


@pytest.mark.parametrize("kind", sorted(INCURABLE))
def test_failures_that_repetition_cannot_cure_bring_it_down_at_once(kind):
    """Read-only, gone and corrupt need no second try."""
    assert Breaker(PARAMS).handle(Failed(kind), 0) is BreakerState.DOWN


def test_a_total_failure_brings_it_down_at_once():
    """A disk that failed at the start is not used, for any kind of failure."""
    assert Breaker(PARAMS).handle(Failed(FailureKind.NO_SPACE, total=True), 0) is BreakerState.DOWN


def test_slow_writes_count_as_failures():
    """A write above the threshold counts; one at the threshold does not."""
    breaker = Breaker(PARAMS)
    assert breaker.handle(Wrote(2.0), 0) is BreakerState.NORMAL
    assert breaker.handle(Wrote(2.1), 0) is BreakerState.UNSTABLE
    assert breaker.cause is FailureKind.SLOW


def test_calm_leads_back_to_normal():
    """Success five seconds after the last failure ends UNSTABLE, an earlier one does not."""
    breaker = Breaker(PARAMS)
    breaker.handle(Failed(FailureKind.IO), 0)
    assert breaker.handle(Ok(), 4.9) is BreakerState.UNSTABLE
    assert breaker.handle(Wrote(0.1), 5) is BreakerState.NORMAL
    assert breaker.cause is None


def test_while_down_the_disk_is_bypassed_until_the_probe_is_due():
    """The first probe comes after one second, and only one runs at a time."""
    breaker = breaker_that_is_down()
    assert [breaker.decide(now) for now in (0, 0.9, 1.0, 1.0, 100)] == [
        *(Step.BYPASS, Step.BYPASS, Step.PROBE, Step.BYPASS, Step.BYPASS)
    ]


def test_probes_come_at_doubling_intervals_up_to_the_longest():
    """After failed probes the waits are 2, 4, 8, 8 seconds."""
    breaker, now, waits = breaker_that_is_down(), 1.0, []
    assert breaker.decide(now) is Step.PROBE
    for wait in (2, 4, 8, 8):
        breaker.handle(Probed(succeeded=False), now)
        assert breaker.decide(now + wait - 0.01) is Step.BYPASS
        now += wait
        waits.append(breaker.decide(now))
    assert waits == [Step.PROBE] * 4


def test_a_successful_probe_puts_the_disk_on_probation():
    """After a probe the disk is used again, as UNSTABLE."""
    breaker = breaker_that_is_down()
    breaker.decide(1)
    assert breaker.handle(Probed(succeeded=True), 1) is BreakerState.UNSTABLE
    assert breaker.decide(1) is Step.USE


def test_a_disk_that_fails_on_probation_waits_longer_each_time():
    """Accepting the probe's small file does not reset the interval; reaching NORMAL does."""
    breaker = breaker_that_is_down()
    breaker.decide(1)
    breaker.handle(Probed(succeeded=True), 1)
    breaker.handle(Failed(FailureKind.GONE), 2)
    assert [breaker.decide(3.9), breaker.decide(4)] == [Step.BYPASS, Step.PROBE]
    breaker.handle(Probed(succeeded=True), 4)
    assert breaker.handle(Ok(), 9) is BreakerState.NORMAL
    breaker.handle(Failed(FailureKind.GONE), 10)
    assert breaker.decide(11) is Step.PROBE


def test_late_outcomes_do_not_touch_a_disk_that_is_down():
    """Operations that were in progress when the disk went down neither revive it nor postpone the probe."""
    breaker = breaker_that_is_down()
    breaker.handle(Ok(), 0.5)
    breaker.handle(Failed(FailureKind.IO), 0.5)
    breaker.handle(Probed(succeeded=True), 0.5)
    assert breaker.state is BreakerState.DOWN
    assert breaker.cause is FailureKind.GONE
    assert breaker.decide(1) is Step.PROBE


events = st.one_of(
    st.just(Ok()),
    st.builds(Failed, st.sampled_from(FailureKind), st.booleans()),
    st.builds(Wrote, st.floats(0, 10)),
    st.builds(Probed, st.booleans()),
)


@given(st.lists(st.tuples(st.floats(0, 20), events, st.booleans())))
def test_a_probe_always_comes_and_can_always_bring_the_disk_back(history):
    """From any history, waiting for the longest interval and one successful probe make the disk usable."""
    breaker, now = Breaker(PARAMS), 0.0
    for gap, event, ask in history:
        now += gap
        breaker.handle(event, now)
        if ask:
            breaker.decide(now)
    breaker.handle(Probed(succeeded=False), now)
    if breaker.state is BreakerState.DOWN:
        assert breaker.decide(now + PARAMS.longest_probe) is Step.PROBE
        breaker.handle(Probed(succeeded=True), now + PARAMS.longest_probe)
    assert breaker.decide(now + PARAMS.longest_probe) is Step.USE
