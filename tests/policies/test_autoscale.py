"""Number of workers of a job: the knee of its throughput curve, found from noisy reports, also after the load changes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.space.autoscale import ScalePhase, ScaleSettings, Scaling, TrainerReport, scaled

SETTINGS = ScaleSettings()
CAPACITY = 8.0
"""Batches that the result queue holds."""


class SimulatedTrainer:
    """A job whose batch takes ``work`` seconds of one worker and ``model`` seconds of the trainer, with noise.

    Args:
        work: seconds of worker time per batch.
        model: seconds per batch that the model needs.
        noise: standard deviation of a report, as a share.
        seed: of the noise.
    """

    def __init__(self, work, model, noise=0.003, seed=0):
        self.work, self.model, self.noise = work, model, noise
        self.chance = random.Random(seed)

    def batch_time(self, workers):
        """Seconds per batch without noise: the slower of the workers and the model."""
        return max(self.model, self.work / workers)

    def report(self, workers):
        """The queue is full if workers are faster than the model, and empty if they are slower."""
        surplus = self.model * workers / self.work
        queue = CAPACITY * min(1.0, max(0.0, surplus - 1) * 4)
        jitter = 1 + self.chance.gauss(0, self.noise)
        return TrainerReport(self.batch_time(workers) * jitter, queue, workers)

    def run(self, reports, state=None):
        """The decisions after each report."""
        decisions = [state or Scaling()]
        for _ in range(reports):
            decisions.append(scaled(decisions[-1], self.report(decisions[-1].workers), SETTINGS))
        return decisions

    def knee(self, most=64):
        """The smallest number of workers at which one more gains at most the threshold."""
        return next(
            workers
            for workers in range(1, most)
            if self.batch_time(workers + 1) > self.batch_time(workers) * (1 - SETTINGS.threshold)
        )


@pytest.mark.parametrize("rate", [1.0, 2.0, 2.7, 4.0, 5.5, 8.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_knee_is_found(rate, seed):
    """Figure 6: for ingestion rates of one to eight workers, the number found is the knee, give or take one."""
    trainer = SimulatedTrainer(work=0.8, model=0.8 / rate, seed=seed)
    assert abs(trainer.run(40)[-1].workers - trainer.knee()) <= 1


@pytest.mark.parametrize("threshold", [0.01, 0.03, 0.05, 0.10])
def test_the_threshold_may_be_chosen_widely(threshold):
    """Figure 7: where each worker helps clearly, any threshold from 1 to 10 % finds the same number."""
    trainer = SimulatedTrainer(work=0.8, model=0.2, noise=0.001)
    state = Scaling()
    for _ in range(9):
        state = scaled(state, trainer.report(state.workers), ScaleSettings(threshold=threshold))
    assert (state.workers, state.phase) == (4, ScalePhase.SETTLED)


def test_workers_are_added_one_by_one_and_the_superfluous_one_is_taken_away():
    """Section 4.3 and Figure 9: up to five, where nothing improves, then four."""
    decisions = SimulatedTrainer(work=0.8, model=0.2, noise=0).run(6)
    assert [each.workers for each in decisions] == [1, 2, 3, 4, 5, 4, 4]
    assert decisions[-1].phase is ScalePhase.SETTLED


def test_a_job_that_needs_one_worker_gets_one():
    """A second one is tried, brings nothing, and goes."""
    assert [each.workers for each in SimulatedTrainer(work=0.1, model=0.2, noise=0).run(4)] == [1, 2, 1, 1, 1]


def test_a_settled_job_with_slower_batches_gets_more():
    """Every ten reports the time per batch is compared with that of the settled job."""
    settled = SimulatedTrainer(work=0.8, model=0.2, noise=0).run(8)[-1]
    heavier = SimulatedTrainer(work=1.2, model=0.2, noise=0).run(40, settled)[-1]
    assert (heavier.workers, heavier.phase) == (6, ScalePhase.SETTLED)


def test_a_settled_job_whose_queue_grows_gives_workers_back():
    """The queue shows that workers are faster than the model, and batches that they may go; the one too many comes back."""
    settled = SimulatedTrainer(work=0.8, model=0.2, noise=0).run(8)[-1]
    assert settled.queue == 0
    lighter = SimulatedTrainer(work=0.4, model=0.2, noise=0).run(60, settled)
    assert min(each.workers for each in lighter) == 1
    assert (lighter[-1].workers, lighter[-1].phase) == (2, ScalePhase.SETTLED)


def test_a_settled_job_stays_in_the_noise():
    """A job whose load does not change keeps its workers, give or take the trial of one, over a hundred looks."""
    trainer = SimulatedTrainer(work=0.8, model=0.2, noise=0.01, seed=3)
    later = trainer.run(1000, trainer.run(40)[-1])
    assert {each.workers for each in later} <= {3, 4, 5}
    assert sum(each.workers == 4 for each in later) > 900


def test_a_report_of_another_number_of_workers_does_not_count():
    """A report with another number of workers was measured before the change took effect, and is ignored."""
    state = Scaling(3, ScalePhase.GROWING, before=1.0)
    assert scaled(state, TrainerReport(0.1, 0, 2), SETTINGS) is state
    assert scaled(state, TrainerReport(0.0, 0, 3), SETTINGS) is state


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(0, 100)), max_size=200), st.integers(1, 8))
def test_whatever_is_reported_workers_stay_within_their_bounds(reports, most):
    """Between one and the most; one more or one less at a time."""
    settings, state = ScaleSettings(most=most), Scaling()
    for batch_time, queue in reports:
        following = scaled(state, TrainerReport(batch_time, queue, state.workers), settings)
        assert 1 <= following.workers <= most
        assert abs(following.workers - state.workers) <= 1
        state = following


def test_another_mode_of_caching_begins_with_one_worker():
    """A change of the caching mode, for example from putting to getting, starts over with one worker; reports of the previous
    mode are ignored (section 4.3)."""
    settled = Scaling(6, ScalePhase.SETTLED, level=0.1, mode="put")
    begun = scaled(settled, TrainerReport(0.1, 0.0, 6, "get"), SETTINGS)
    assert begun == Scaling(mode="get")
    assert scaled(begun, TrainerReport(0.8, 0.0, 1, "get"), SETTINGS) == Scaling(2, before=0.8, mode="get")
    assert scaled(settled, TrainerReport(0.1, 0.0, 6, "put"), SETTINGS).mode == "put"
