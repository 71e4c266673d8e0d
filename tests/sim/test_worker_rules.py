"""Workers by CPU, as Kubernetes finds them, beside the gateway's rule (Cachew, ATC 2022, section 6.5)."""

import pytest

from gateway.policies.space.autocache import COMPUTE
from gateway.policies.space.autoscale import ScaleSettings
from gateway.sim.cpu_rule import CpuRule, CpuTarget
from gateway.sim.pipelines import PipelineControl, PipelineModel, PipelineRun, simulate_pipeline, with_knee

MOST = 16


@pytest.mark.parametrize(
    ("utilization", "workers", "wanted"),
    [(1.0, 4, 5), (0.87, 4, 4), (0.73, 4, 4), (0.9, 4, 5), (0.1, 4, 1), (4.0, 1, 5), (4.0, 6, 12), (1.0, 16, 16)],
)
def test_the_rule_is_kubernetes(utilization, workers, wanted):
    """Rule: workers times utilization over 80 %, rounded up, at most twice as many or four more; within 10 % nothing changes."""
    assert CpuRule(CpuTarget(most=MOST)).after(0.0, utilization, workers) == wanted


def test_workers_are_taken_away_when_five_minutes_agree():
    """Rule: the highest recommendation of the last five minutes counts."""
    rule = CpuRule(CpuTarget())
    assert rule.after(0.0, 1.0, 4) == 5
    assert [rule.after(at, 0.2, 5) for at in (15.0, 285.0)] == [5, 5]
    assert rule.after(300.0, 0.2, 5) == 2


def last(model, control):
    """The last of two epochs, and the paid seconds of workers in it."""
    result = simulate_pipeline(model, control, 2)
    epoch = result.epochs[-1]
    return epoch, result.worker_seconds(epoch.began, epoch.ended)


def test_workers_that_wait_for_their_store_are_too_few_by_cpu():
    """Rule: the time per batch shows that workers are missing, their CPU does not: a worker that waits is idle."""
    model = with_knee(PipelineModel(0.004, source=0.008, elements=30_000), 4)
    (by_cpu, paid), (found, ours) = (
        last(model, PipelineControl(COMPUTE, cpu=CpuTarget())),
        last(model, PipelineControl(COMPUTE)),
    )
    assert (by_cpu.workers, found.workers) == (1, 4)
    assert by_cpu.batch_time == pytest.approx(4 * found.batch_time, rel=0.02)
    assert paid == pytest.approx(ours, rel=0.02)


def test_workers_that_slow_each_other_down_are_too_many_by_cpu():
    """Rule: busy workers look useful, so the CPU rule takes all that it may; the time per batch shows when one adds little."""
    model = PipelineModel(0.008, source=0.001, elements=30_000, contention=0.3)
    by_cpu, paid = last(model, PipelineControl(COMPUTE, cpu=CpuTarget(most=MOST)))
    found, ours = last(model, PipelineControl(COMPUTE, scale=ScaleSettings(most=MOST)))
    assert by_cpu.workers == MOST
    assert found.workers <= MOST / 2
    assert paid > 1.5 * ours


def test_worker_seconds_are_those_between_two_times():
    """Rule: a worker is paid from the decision that adds it to the one that takes it away."""
    run = PipelineRun(workers=[(0.0, 1), (10.0, 3), (20.0, 2)])
    assert run.worker_seconds(0.0, 30.0) == 10 + 30 + 20
    assert run.worker_seconds(5.0, 15.0) == 5 + 15
    assert run.worker_seconds(25.0, 30.0) == 10
