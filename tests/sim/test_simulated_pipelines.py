"""Pipelines under the virtual clock: the shipped decisions find the cheapest mode, the knee, and one after the other."""

from dataclasses import replace

import pytest

from gateway.policies.space.autocache import COMPUTE, CacheReason
from gateway.policies.space.read_model import ReadModel
from gateway.sim.pipelines import FULL, SOURCE, PipelineControl, PipelineModel, knee, simulate_pipeline, with_knee

WORK = (0.0, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3)


def last(model, control, epochs=3, seed=0):
    """The last epoch of a run."""
    return simulate_pipeline(model, control, epochs, seed).epochs[-1]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize(
    ("origin", "size", "share"), [(3e-4, 100_000, 1.0), (1e-3, 100_000, 0.1), (1e-3, 1_000_000, 0.5)]
)
def test_the_automatic_mode_is_within_a_twentieth_of_the_cheapest(work, origin, size, share):
    """Figure 8: from a profile of one worker and a fitted read model, as cheap as the best of three fixed modes."""
    model = PipelineModel(work, origin, size, elements=2000)
    model = replace(model, room=share * model.elements * model.bytes_at(FULL))
    fixed = [last(model, PipelineControl(mode, workers=1)).batch_time for mode in (COMPUTE, SOURCE, FULL)]
    assert last(model, PipelineControl(workers=1), epochs=4).batch_time <= 1.05 * min(fixed)


@pytest.mark.parametrize("workers", [2, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_workers_found_are_the_knee(workers, seed):
    """Figure 6: for three ingestion rates, within one epoch."""
    model = with_knee(PipelineModel(0.004, room=0.0, elements=50_000), workers)
    found = last(model, PipelineControl(COMPUTE), epochs=1, seed=seed).workers
    assert abs(found - knee(model, 0.03)) <= 1


def test_modes_follow_each_other():
    """Figure 9: one worker profiles; then an epoch writes, the others read, and each mode begins with one worker."""
    model = with_knee(PipelineModel(0.004, elements=60_000), 12)
    run = simulate_pipeline(model, PipelineControl(), 4)
    assert [(epoch.cache, epoch.writes) for epoch in run.epochs] == [
        (COMPUTE, False),
        (FULL, True),
        (FULL, False),
        (FULL, False),
    ]
    assert [decision.reason for _, decision in run.decisions] == [CacheReason.FASTEST]
    ones = [at for at, workers in run.workers if workers == 1]
    assert len([at for at in ones if run.epochs[1].began < at < run.epochs[1].ended]) == 1
    assert len([at for at in ones if run.epochs[2].began < at < run.epochs[2].ended]) == 1
    assert run.epochs[3].workers < run.epochs[0].workers


def test_a_second_job_reads_what_the_first_has_stored_with_its_own_workers():
    """Figure 11: with twice the ingestion rate it reads from its first epoch on, and gets more workers than the first."""
    slow = with_knee(PipelineModel(0.002, elements=60_000), 2, FULL)
    fast = replace(slow, step=slow.step / 2)
    first = simulate_pipeline(slow, PipelineControl(), 4)
    second = simulate_pipeline(fast, PipelineControl(stored=first.stored), 4)
    assert [(epoch.cache, epoch.writes) for epoch in second.epochs] == [(FULL, False)] * 4
    assert [decision.reason for _, decision in second.decisions] == [CacheReason.SHARED]
    for run, model in ((first, slow), (second, fast)):
        assert abs(run.epochs[-1].workers - knee(model, 0.03, cache=FULL)) <= 1
    assert second.epochs[-1].workers > first.epochs[-1].workers
    assert second.epochs[0].ended < first.epochs[0].ended / 2


def test_batches_leave_in_their_order_with_any_number_of_workers():
    """Every batch comes once: an epoch ends, and takes as long as the workers need."""
    model = PipelineModel(0.004, elements=2000, noise=0.3)
    for workers in (1, 3, 8):
        epoch = last(model, PipelineControl(COMPUTE, workers), epochs=2)
        assert epoch.batch_time == pytest.approx(0.1 / workers, rel=0.2)


@pytest.mark.parametrize(
    "reads", [ReadModel(0.0005, 2e-8), ReadModel(0.0002, 1.2e-8, 0.4), ReadModel(0.0002, 5e-10, 0.2)]
)
@pytest.mark.parametrize("known", [0, 200])
@pytest.mark.parametrize("work", [0.0, 0.001, 0.004, 0.016])
def test_results_that_are_dear_to_decode_are_stored_where_that_pays(work, reads, known):
    """Rule: whether reads are typical or dear, known or not: after some epochs as cheap as the best of three fixed modes."""
    model = PipelineModel(work, 0.002, 64 * 1024, growth=32, reads=reads, elements=2000)
    fixed = [last(model, PipelineControl(mode, workers=1)).batch_time for mode in (COMPUTE, SOURCE, FULL)]
    assert last(model, PipelineControl(workers=1, known_reads=known), epochs=8).batch_time <= 1.05 * min(fixed)


def test_a_mark_that_does_not_pay_is_left():
    """Rule: nothing was read before, so a mark looks cheap; its reads show that it is dear, and the next job knows it."""
    model = PipelineModel(0.004, 0.002, 64 * 1024, growth=32, reads=ReadModel(0.0002, 1.2e-8, 0.4), elements=2000)
    cold = simulate_pipeline(model, PipelineControl(workers=1, known_reads=0), 8)
    assert [decision.stage for _, decision in cold.decisions] == [FULL, SOURCE]
    assert [decision.stage for _, decision in simulate_pipeline(model, PipelineControl(workers=1), 8).decisions] == [
        SOURCE
    ]
