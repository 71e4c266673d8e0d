"""Probing: what a mini-batch takes without the cache and with all data cached, derived from a job's reports."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.probing import (
    MOST_BENEFIT,
    PhaseTotals,
    ProbeSettings,
    ProbeState,
    Stage,
    StepSample,
    Turn,
    due,
    step,
    step_times,
    times,
)

_STATE = TypeAdapter(ProbeState)
SETTINGS = ProbeSettings()
ITEMS = 100
LONG = 10_000
"""Mini-batches of an epoch, so long that hits may be refused."""


@dataclass
class Trainer:
    """A job that follows its directives: a mini-batch takes ``miss`` seconds without hits and ``full`` with hits only."""

    miss: float = 0.4
    full: float = 0.1
    compute: float = 0.1
    share: float = 0.0
    """Of the items that are hits when hits are allowed."""
    epoch: int = LONG
    state: ProbeState = field(default_factory=ProbeState)
    totals: dict[Phase, PhaseTotals] = field(default_factory=dict)
    now: float = 0.0

    def run(self, steps: int = 10, *, mine: bool = True) -> Stage:
        """Take some steps under the current order, report them, and apply the next order."""
        order = self.state.order
        share = self.share if order.cache else 0.0
        each = self.miss - share * (self.miss - self.full)
        before = self.totals.get(order.phase, PhaseTotals())
        self.totals[order.phase] = PhaseTotals(
            before.steps + steps,
            before.seconds + steps * each,
            before.waited + steps * max(0.0, each - self.compute),
            before.items + steps * ITEMS,
            before.hits + round(steps * share * ITEMS),
        )
        self.now += steps * each
        self.state = step(self.state, self.totals, Turn(self.now, self.epoch, mine), SETTINGS)
        return self.state.stage

    def until(self, stage: Stage, most: int = 3000, **how: Any) -> Trainer:
        """Go on until a stage is reached."""
        for _ in range(most):
            if self.run(**how) is stage:
                return self
        raise AssertionError(f"{stage} was not reached, but {self.state}")

    @property
    def refused(self) -> int:
        """Mini-batches, about, that were refused hits, of a job that was never cold."""
        return self.totals.get(Phase.PROBE_MISS, PhaseTotals()).steps


def warm(**more: Any) -> Trainer:
    """A job in its second epoch that was warm from the start."""
    job = Trainer(**({"share": 1.0} | more))
    job.run(10)
    while sum(total.steps for total in job.totals.values()) < job.epoch:
        job.run(100, mine=False)
    return job


def test_a_cold_job_is_measured_without_refusing_it_anything():
    """Rule: its first mini-batches have no hits, so they are its time without the cache; then its hits come."""
    job = Trainer().until(Stage.MEASURING)
    assert job.state.low == StepSample(0.0, pytest.approx(0.4), pytest.approx(0.3))
    job.share = 0.5
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)
    assert all(job.run() is not Stage.REFUSING for _ in range(600))


@pytest.mark.parametrize("share", [0.15, 0.2, 0.5, 0.8, 1.0])
def test_the_benefit_is_that_of_all_hits_whatever_the_share(share):
    """Rule: times fall in proportion to the share of hits, so the time with all hits follows from any share."""
    job = Trainer().until(Stage.MEASURING)
    job.share = share
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)
    measured = job.state.times
    assert measured is not None
    assert measured.at(share) == pytest.approx(0.4 - share * 0.3)
    assert times(job.state, job.totals) == (pytest.approx(0.4), pytest.approx(0.4 - share * 0.3))


def test_the_order_of_a_cold_job_lets_it_use_the_cache():
    """Rule: a cold job is told to count its mini-batches as ones without hits, and reads as usual."""
    job = Trainer()
    assert job.run() is Stage.COLD
    assert job.state.order == JobOrder(True, Phase.PROBE_MISS)
    assert not job.state.order.refused


def test_ordinary_reports_renew_both_times():
    """Rule: when the store becomes slower, windows without hits tell it; when all data is cached, the share does not matter."""
    job = Trainer().until(Stage.MEASURING)
    job.share = 0.5
    job.until(Stage.RESTING)
    job.miss, job.share = 0.8, 0.0
    for _ in range(30):
        job.run()
    job.share = 1.0
    for _ in range(30):
        job.run()
    assert job.state.benefit == pytest.approx(8.0)


def test_a_warm_job_is_refused_hits_in_its_second_epoch():
    """Rule: a job that never was without hits is refused them for a window, and its benefit is known."""
    job = warm()
    assert (job.state.stage, job.state.benefit) == (Stage.RESTING, 0.0)
    job.until(Stage.REFUSING)
    assert job.state.order == JobOrder(False, Phase.PROBE_MISS)
    assert job.state.order.refused
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)


def test_a_job_is_not_refused_hits_in_its_first_epoch():
    """Rule: while jobs in step load a dataset, each has hits of the others; nobody is refused them."""
    job = Trainer(share=0.75, epoch=1000)
    job.run(10)
    for _ in range(98):
        assert job.run() is not Stage.REFUSING
    job.until(Stage.REFUSING, most=3)


@pytest.mark.parametrize("epoch", [200, 400, 1000, 100_000])
def test_a_refusal_takes_a_tenth_of_an_epoch_at_most(epoch):
    """Rule: what a probe costs is a tenth of the job's own hits in one epoch, or 120 mini-batches."""
    job = warm(epoch=epoch, miss=4.0, full=1.0, compute=1.0)
    before = job.refused
    job.until(Stage.REFUSING, steps=1)
    job.until(Stage.RESTING, steps=1)
    assert job.refused - before <= min(epoch // 10, 120) + 1
    assert job.state.benefit == pytest.approx(4.0)


@pytest.mark.parametrize(("epoch", "full"), [(37, 1.0), (199, 1.0), (250, 0.1)])
def test_a_job_with_short_epochs_is_never_refused_hits(epoch, full):
    """Rule: with fewer than 200 mini-batches or 30 seconds, a probe would last for a large part of an epoch."""
    job = warm(epoch=epoch, full=full, miss=2 * full, compute=full)
    for _ in range(500):
        assert job.run() is not Stage.REFUSING


def test_a_short_cold_epoch_is_measured_as_well():
    """Rule: hits that come after half an epoch do not spoil what was measured before."""
    job = Trainer(epoch=38)
    job.run(18)
    job.run(18)
    job.share = 0.2
    for _ in range(12):
        job.run(19)
    assert job.state.benefit == pytest.approx(4.0)


def test_the_waiting_tells_what_can_be_gained_at_most():
    """Rule: by one measurement, all waiting is due to misses; it is no verdict."""
    found = step_times(None, StepSample(0.5, 0.25, 0.15))
    assert found is not None
    assert (found.miss, found.full, found.known) == (pytest.approx(0.4), pytest.approx(0.1), False)
    job = Trainer().until(Stage.MEASURING)
    assert job.state.benefit == 0.0


def test_no_cache_saves_more_than_the_waiting():
    """Rule: a job that computes all the time at half of its hits gains nothing by more of them."""
    found = step_times(StepSample(0.0, 0.4, 0.3), StepSample(0.5, 0.1, 0.0))
    assert found is not None
    assert found.full == pytest.approx(0.1)
    assert found.benefit == pytest.approx(4.0)


def test_a_job_that_computes_gains_nothing_and_reads_through_the_cache():
    """Rule: its benefit is 1, and it takes what is cached all the same: that saves reads of the store."""
    job = Trainer(miss=0.1, full=0.1).until(Stage.MEASURING)
    job.share = 0.5
    job.until(Stage.RESTING)
    assert job.state.order == JobOrder(True, Phase.STEADY, pytest.approx(1.0))


def test_the_first_mini_batches_of_a_phase_do_not_count():
    """Rule: batches that the pipeline read before the phase began change no time."""
    job = Trainer(miss=99.0)
    job.run(20)
    job.miss = 0.4
    job.until(Stage.MEASURING)
    assert job.state.low == StepSample(0.0, pytest.approx(0.4), pytest.approx(0.3))


def test_a_restart_of_the_job_is_no_measurement():
    """Rule: totals that fell began anew; the window goes on with the next report."""
    job = Trainer()
    job.run(50)
    job.totals[Phase.PROBE_MISS] = PhaseTotals(3, 500.0, 0.0, 300, 0)
    state = step(job.state, job.totals, Turn(job.now, LONG), SETTINGS)
    assert state.window.steps == job.state.window.steps
    assert state.window.skip == 20


@pytest.mark.parametrize(
    ("passed", "drifted", "expected"), [(59, True, False), (60, True, True), (1799, False, False), (1800, False, True)]
)
def test_when_hits_are_refused_again(passed, drifted, expected):
    """Rule: after half an hour, or after a minute if the time has drifted."""
    job = warm().until(Stage.REFUSING).until(Stage.RESTING)
    assert job.state.low_at is not None
    state = replace(job.state, drifted=drifted)
    assert due(state, job.totals, Turn(job.state.low_at + passed, LONG), SETTINGS) is expected


def test_a_time_that_changed_at_the_same_share_is_a_drift():
    """Rule: a quarter more at the same share asks for a new measurement; more hits do not."""
    job = Trainer().until(Stage.MEASURING)
    job.share = 0.5
    job.until(Stage.RESTING)
    job.share = 0.9
    for _ in range(20):
        job.run(mine=False)
    assert not job.state.drifted
    job.full, job.compute = 0.2, 0.2
    for _ in range(20):
        job.run(mine=False)
    assert job.state.drifted


def test_a_restless_job_is_refused_hits_less_and_less_often():
    """Rule: the wait doubles each time that a drift is followed."""
    job = warm().until(Stage.REFUSING).until(Stage.RESTING)
    waits = []
    for turn in range(4):
        job.full = job.compute = 0.1 * 2 ** ((turn + 1) % 2)
        began = job.state.low_at or 0.0
        job.until(Stage.REFUSING)
        waits.append(job.now - began)
        job.until(Stage.RESTING)
    assert all(later > 1.6 * earlier for earlier, later in itertools.pairwise(waits))


def test_a_job_that_takes_no_step_gives_its_turn_away():
    """Rule: after 300 s it is not refused hits any more, and not asked again at once."""
    job = warm().until(Stage.REFUSING)
    state = step(job.state, job.totals, Turn(job.now + 301, LONG), SETTINGS)
    assert state.stage is Stage.RESTING
    assert not due(state, job.totals, Turn(job.now + 302, LONG), SETTINGS)


def test_a_job_with_a_history_is_known_at_once():
    """Rule: a manager that lost its memory takes a job's totals for its measurements, and refuses nobody hits again."""
    totals = {
        Phase.PROBE_MISS: PhaseTotals(120, 48.0, 36.0, 12_000, 0),
        Phase.STEADY: PhaseTotals(5000, 1250.0, 750.0, 500_000, 250_000),
    }
    state = step(ProbeState(), totals, Turn(1e6, LONG, mine=True), SETTINGS)
    assert (state.stage, state.benefit) == (Stage.RESTING, pytest.approx(4.0))
    assert not due(state, totals, Turn(1e6 + 1, LONG), SETTINGS)


def test_a_history_without_refused_hits_keeps_the_job_in_the_cache():
    """Rule: what is known is the time at its share; the other one is measured when its turn comes."""
    totals = {Phase.STEADY: PhaseTotals(20_000, 1250.0, 750.0, 500_000, 250_000)}
    state = step(ProbeState(), totals, Turn(1e6, LONG), SETTINGS)
    assert state.order == JobOrder(True, Phase.STEADY)
    assert due(state, totals, Turn(1e6, LONG), SETTINGS)


def test_probing_can_be_switched_off():
    """Rule: with 0 batches nobody is measured or refused hits."""
    off = ProbeSettings(batches=0)
    state = step(ProbeState(), {Phase.STEADY: PhaseTotals(500, 50.0, 0, 10, 5)}, Turn(0.0, LONG, mine=True), off)
    assert state.order == JobOrder(True, Phase.STEADY)
    assert not due(state, {}, Turn(1e9, LONG), off)


def test_a_clock_that_was_set_back_delays_nothing():
    """Rule: times that are yet to come count as now."""
    job = warm().until(Stage.REFUSING).until(Stage.RESTING)
    state = step(job.state, job.totals, Turn(5.0, LONG), SETTINGS)
    assert state.low_at == 5.0
    assert due(state, job.totals, Turn(1805.0, LONG), SETTINGS)


_totals = st.builds(
    PhaseTotals, st.integers(0, 500), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**6), st.integers(0, 10**6)
)
_reports = st.lists(st.dictionaries(st.sampled_from(Phase), _totals), min_size=1, max_size=30)


@given(_reports, st.floats(0, 1e9), st.sampled_from([0, 37, 250, LONG]), st.booleans())
def test_whatever_is_reported_the_state_is_sound(reports, now, epoch, mine):
    """Rule: benefits are 0 or from 1 to 1000, no window grows beyond its parts, and the state survives JSON."""
    state = ProbeState()
    for turn, totals in enumerate(reports):
        state = step(state, totals, Turn(now + 100 * turn, epoch, mine), SETTINGS)
        assert state.benefit == 0 or 1 <= state.benefit <= MOST_BENEFIT
        if (found := state.times) is not None:
            assert found.full >= 0
            assert found.benefit >= 1
        assert _STATE.validate_python(json.loads(json.dumps(_STATE.dump_python(state, mode="json")))) == state
