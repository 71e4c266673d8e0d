"""Probing: measuring a job's gain from the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.fleet.jobs.plans import read_memory
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.probing import MOST_BENEFIT, PhaseTotals, ProbeSettings, ProbeState, Stage, due, step
from gateway.policies.space.remembered import RememberedJob

_STATE = TypeAdapter(ProbeState)

SETTINGS = ProbeSettings(batches=100)
ITEMS = 32


@dataclass
class Job:
    """A job that follows its directives: ``step_time`` with hits and without, some of it waiting for data."""

    miss: float = 0.4
    hit: float = 0.1
    compute: float = 0.1
    share: float = 1.0
    """Of the items that are hits when hits are allowed."""
    state: ProbeState = field(default_factory=ProbeState)
    totals: dict[Phase, PhaseTotals] = field(default_factory=dict)
    now: float = 0.0

    def run(
        self,
        steps: int = 10,
        *,
        held: CachingMode = CachingMode.FULL,
        turn: bool = True,
        limits: ProbeSettings = SETTINGS,
    ) -> Stage:
        """Take some steps under the current order, report them, and apply the next order."""
        order = self.state.order
        hits = int(self.share * ITEMS) if order.cache else 0
        each = self.hit if hits * 2 >= ITEMS else self.miss
        before = self.totals.get(order.phase, PhaseTotals())
        self.totals[order.phase] = PhaseTotals(
            before.steps + steps,
            before.seconds + steps * each,
            before.waited + steps * (each - self.compute),
            before.items + steps * ITEMS,
            before.hits + steps * hits,
        )
        self.now += steps * each
        self.state = step(self.state, self.totals, held=held, turn=turn, now=self.now, settings=limits)
        return self.state.stage

    def until(self, stage: Stage, most: int = 1000, **how: Any) -> Job:
        """Go on until a stage is reached."""
        for _ in range(most):
            if self.run(**how) is stage:
                return self
        raise AssertionError(f"{stage} was not reached, but {self.state}")

    def again(self) -> Job:
        """Go on past the next probe."""
        stages = [self.run() for _ in range(int(SETTINGS.every / 10 / self.hit) + 1000) if not self.measured_again()]
        assert Stage.MEASURING in stages
        return self

    def measured_again(self) -> bool:
        """True if the job was judged more than once."""
        return self.state.measurements > 1


def test_a_new_job_waits_for_its_turn_and_uses_the_cache_meanwhile():
    """Rule: while another job of the dataset is measured without hits, a new job reads as usual."""
    job = Job()
    assert job.run(turn=False) is Stage.WAITING
    assert job.state.order == JobOrder(True, Phase.MEASURE)
    assert job.run(turn=True) is Stage.REFUSING
    assert job.state.order == JobOrder(False, Phase.PROBE_MISS)


def test_the_benefit_is_the_ratio_of_both_times():
    """Rule: 0.4 s without the cache and 0.1 s with it make 4, and the job stays."""
    job = Job().until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)
    assert job.state.order == JobOrder(True, Phase.STEADY, job.state.benefit)


def test_each_side_is_measured_for_so_many_mini_batches():
    """Rule: after a fifth that is skipped, a hundred mini-batches are refused hits, and a hundred are measured with them."""
    job = Job().until(Stage.RESTING)
    assert job.totals[Phase.PROBE_MISS].steps == 120
    assert job.totals[Phase.MEASURE].steps == 10 + 120  # ten before its turn came


def test_a_job_that_computes_gains_nothing_and_leaves():
    """Rule: a benefit below 1.05 turns the cache off for the job."""
    job = Job(miss=0.104, hit=0.1, compute=0.1).until(Stage.RESTING)
    assert job.state.order == JobOrder(False, Phase.STEADY, pytest.approx(1.04))


def test_the_first_mini_batches_of_a_phase_do_not_count():
    """Rule: batches that the pipeline read under the other rule change neither time."""
    job = Job()
    job.run()
    job.hit, job.miss = 0.1, 99.0  # ends of the pipeline are slow
    job.run(15)
    job.miss = 0.4
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)


def test_mini_batches_while_little_is_cached_do_not_count():
    """Rule: only reports with half hits tell the time with the cache, however long they take to come."""
    job = Job(share=0.4).until(Stage.MEASURING)
    for _ in range(100):
        assert job.run() is Stage.MEASURING
    job.share = 0.5
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)


def test_a_measurement_without_hits_ends_and_is_made_up_for_later():
    """Rule: after twenty times as many the job rests, unjudged; it is judged when hits come, and not refused any again."""
    job = Job(share=0.0).until(Stage.MEASURING)
    while job.run(100) is Stage.MEASURING:
        assert job.totals[Phase.MEASURE].steps <= 21 * SETTINGS.batches
    assert job.state.order == JobOrder(True, Phase.STEADY, 0.0)
    refused = job.totals[Phase.PROBE_MISS].steps
    job.share = 1.0
    for _ in range(13):
        job.run()
    assert job.state.benefit == pytest.approx(4.0)
    assert job.totals[Phase.PROBE_MISS].steps == refused


def test_some_hits_are_enough_when_patience_ends():
    """Rule: when patience ends, the measurements so far decide."""
    job = Job(share=0.0).until(Stage.MEASURING)
    job.run(30)
    job.share = 1.0
    job.run(30)
    job.share = 0.0
    while job.run(100) is Stage.MEASURING:
        pass
    assert job.state.benefit == pytest.approx(4.0)


def test_without_hits_a_job_that_hardly_waited_is_known_to_gain_nothing():
    """Rule: 0.004 of 0.104 s spent waiting bound the benefit by 1.04, so that no hit is needed to know."""
    job = Job(miss=0.104, hit=0.1, compute=0.1, share=0.0).until(Stage.MEASURING)
    while job.run(100) is Stage.MEASURING:
        pass
    assert job.state.order == JobOrder(False, Phase.STEADY, pytest.approx(1.04))


def test_a_dataset_without_space_is_not_waited_for():
    """Rule: where no hits can come, the job rests at once and stays in the cache, unjudged."""
    job = Job(share=0.0).until(Stage.MEASURING)
    assert job.run(held=CachingMode.NONE) is Stage.RESTING
    assert job.state.order == JobOrder(True, Phase.STEADY, 0.0)


def test_no_time_is_measured_across_a_change_of_mode():
    """Rule: its dataset is held whole from half-way through the measurement; earlier times no longer count."""
    job = Job(hit=0.2).until(Stage.MEASURING)
    job.run(50, held=CachingMode.CHUNKED)
    job.run(50, held=CachingMode.CHUNKED)
    job.hit = 0.1
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)


def test_probing_is_repeated_after_its_time():
    """Rule: half an hour later the origin may be slower: both sides are measured again."""
    job = Job().until(Stage.RESTING)
    job.miss = 0.8
    began = job.now
    job.until(Stage.REFUSING, most=2000)
    assert job.now - began == pytest.approx(SETTINGS.every, abs=1.0)
    assert job.until(Stage.RESTING).state.benefit == pytest.approx(8.0)


def test_a_job_without_the_cache_is_probed_the_other_way_round():
    """Rule: a job without the cache is measured so, then gets hits for a while; it is never refused any."""
    job = Job(miss=0.1, hit=0.1).until(Stage.RESTING)
    refused = job.totals[Phase.PROBE_MISS].steps
    job.miss = 0.12
    job.until(Stage.MEASURING, most=2000)
    assert job.state.order.cache
    job.until(Stage.RESTING)
    assert job.state.order == JobOrder(True, Phase.STEADY, pytest.approx(1.2))
    assert job.totals[Phase.PROBE_MISS].steps == refused


def test_a_second_look_without_hits_changes_no_verdict():
    """Rule: a job that was denied the cache stays without it if its dataset has no space at the next measurement."""
    job = Job(miss=0.1, hit=0.1).until(Stage.RESTING)
    job.until(Stage.MEASURING, most=2000)
    assert job.run(held=CachingMode.NONE) is Stage.RESTING
    assert not job.state.order.cache


def test_a_job_that_has_become_slower_is_probed_sooner():
    """Rule: a drift of more than a quarter is followed after a minute; a smaller one is not."""
    slightly, much = Job().until(Stage.RESTING), Job().until(Stage.RESTING)
    slightly.hit, much.hit = 0.12, 0.15
    while much.run() is Stage.RESTING:
        slightly.run()
    assert SETTINGS.soonest <= much.now - much.state.measured_at < SETTINGS.every / 10
    assert slightly.state.stage is Stage.RESTING


def test_a_restless_job_is_probed_less_and_less_often():
    """Rule: each drift is followed after twice the time, up to the usual time."""
    job, gaps = Job().until(Stage.RESTING), []
    for _ in range(9):
        job.hit = 0.2 if job.hit == 0.1 else 0.1
        rested = job.state.measured_at
        job.until(Stage.REFUSING, most=3000)
        gaps.append(job.now - rested)
        job.until(Stage.RESTING)
    assert gaps == pytest.approx([60, 120, 240, 480, 960, 1800, 1800, 1800, 1800], abs=5.0)


def test_a_stalled_job_gives_its_turn_away():
    """Rule: refused hits and without a step for five minutes, it rests; it is probed again soon after."""
    job = Job().until(Stage.REFUSING)
    job.now += SETTINGS.stall
    assert job.run(0) is Stage.RESTING
    assert job.state.order == JobOrder(True, Phase.STEADY, 0.0)
    assert not due(job.state, job.now, SETTINGS)
    assert due(job.state, job.now + SETTINGS.soonest, SETTINGS)


def test_a_clock_that_was_set_back_holds_nothing_up():
    """Rule: after Redis's clock was set back by hours, a stalled job gives its turn away, and a job is probed again, in time."""
    stalled = Job(now=10_000.0).until(Stage.REFUSING)
    stalled.now -= 9000
    stalled.run(0)
    stalled.now += SETTINGS.stall
    assert stalled.run(0) is Stage.RESTING
    job = Job(now=10_000.0).until(Stage.RESTING)
    job.now -= 9000
    began = job.now
    job.until(Stage.REFUSING, most=2000)
    assert job.now - began == pytest.approx(SETTINGS.every, abs=2.0)


def test_a_job_that_starts_again_goes_on_where_it_was():
    """Rule: totals that shrink are those of a new process; earlier ones are kept, and its first steps are skipped."""
    job = Job().until(Stage.REFUSING)
    job.run(70)
    job.totals.clear()
    assert job.run(10) is Stage.REFUSING
    job.until(Stage.RESTING)
    assert job.state.benefit == pytest.approx(4.0)


def test_without_probing_every_job_uses_the_cache():
    """Rule: ``batches=0`` switches probing off; benefits are unknown, and every job may use the cache."""
    job = Job(miss=0.1)
    assert job.run(limits=ProbeSettings(batches=0)) is Stage.RESTING
    assert job.state.order == JobOrder(True, Phase.STEADY, 0.0)


def test_a_clock_too_coarse_for_hits_makes_no_infinity():
    """Rule: the benefit is bounded, so JSON can represent it; a time of 0 does not count as a measurement."""
    assert Job(hit=1e-9, compute=0.0).until(Stage.RESTING).state.benefit == MOST_BENEFIT
    assert Job(hit=0.0, miss=0.0, compute=0.0).until(Stage.RESTING).state.order == JobOrder(True, Phase.STEADY, 0.0)


@pytest.mark.parametrize("broken", [{"stage": "dancing"}, {"window": None}, {"miss": "much"}, {"window": {"last": 7}}])
def test_a_broken_state_is_forgotten(broken):
    """Rule: a job whose state cannot be read is forgotten, not half read; the other jobs stay."""
    found = read_memory({"jobs": {"t/a": {"dataset": "d", "probe": broken}, "t/b": {"dataset": "d"}}})
    assert found.jobs == {"t/b": RememberedJob("d")}


numbers = st.integers(0, 3000)
reports = st.builds(
    PhaseTotals, steps=numbers, seconds=st.floats(0, 1e4), waited=st.floats(0, 1e4), items=numbers, hits=numbers
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(Phase), reports),
            st.sampled_from(CachingMode),
            st.booleans(),
            st.floats(-100, 2000),
        ),
        max_size=40,
    )
)
def test_any_reports_make_a_state_that_survives_as_json(script):
    """Rule: after any reports the state is readable JSON, and continues in the same way once it was read."""
    state = read = ProbeState()
    now = 0.0
    for totals, held, turn, seconds in script:
        now += seconds
        state = step(state, totals, held=held, turn=turn, now=now, settings=SETTINGS)
        read = step(read, totals, held=held, turn=turn, now=now, settings=SETTINGS)
        assert read == state
        read = _STATE.validate_python(json.loads(json.dumps(_STATE.dump_python(state, mode="json"), allow_nan=False)))
        assert 0 <= state.benefit <= MOST_BENEFIT
