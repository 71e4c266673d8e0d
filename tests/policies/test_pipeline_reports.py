"""Conclusions from a rank's reports: the profile of its whole job, and its workers by the decision on its mark."""

import pytest

from gateway.policies.space.autocache import COMPUTE, CacheReason, StageProfile
from gateway.policies.space.autoscale import ScalePhase, ScaleSettings, Scaling
from gateway.policies.space.cache_mode import CacheDecision, PipelineProfile
from gateway.policies.space.pipelines import RankBatches, RankProfile, workers_after

SETTINGS = ScaleSettings(most=16)
PROFILING = CacheDecision()
DECIDED = CacheDecision(2, CacheReason.FASTEST, epoch=0)


def test_a_rank_speaks_for_its_job():
    """Rule: a rank that has read a fifth of the items has counted a fifth of the elements; its pools get their whole names."""
    end, mark = StageProfile(3, 0.5, 100.0, 20), StageProfile(2, 0.25, 50.0, 40, versions=4)
    said = RankProfile(10, PipelineProfile(COMPUTE, 1, 20, end, (mark,), {2: "f"}))
    whole = said.of_job(50, lambda fingerprint: f"results:{fingerprint}")
    assert (whole.end, whole.marks) == (StageProfile(3, 0.5, 100.0, 100), (StageProfile(2, 0.25, 50.0, 200, 4),))
    assert (whole.pools, whole.measured, whole.epoch) == ({2: "results:f"}, 20, 1)


def test_one_worker_profiles():
    """Rule: until the mark is decided, a new rank has one worker, and one whose functions have changed goes back to one."""
    first = workers_after(None, RankBatches(0.8, 0.0, 1), PROFILING, SETTINGS)
    assert first == Scaling()
    assert workers_after(first, RankBatches(0.4, 0.0, 1), PROFILING, SETTINGS) == first
    grown = Scaling(5, ScalePhase.SETTLED, mode="compute")
    assert workers_after(grown, RankBatches(0.4, 0.0, 5), PROFILING, SETTINGS) == Scaling()


@pytest.mark.parametrize("now", [None, Scaling(0), Scaling(17)])
@pytest.mark.parametrize("decision", [None, PROFILING, DECIDED])
def test_an_unknown_rank_keeps_its_workers(now: Scaling | None, decision: CacheDecision | None):
    """Rule: a rank of which nothing is known keeps the workers that it reports, whatever its mark, report after report."""
    said = RankBatches(0.4, 0.0, 8, cache=2, epoch=3)
    after = workers_after(now, said, decision, SETTINGS)
    assert (after.workers, after.phase) == (8, ScalePhase.SETTLED)
    again = workers_after(after, said, decision, SETTINGS)
    assert again.workers == workers_after(again, said, DECIDED, SETTINGS).workers == 8


def test_another_mode_starts_with_one_worker():
    """Rule: storing and reading are modes of their own, each with a search that starts with one worker."""
    modes = {0: "put", 1: "put", 2: "get"}
    for epoch, mode in modes.items():
        computing = Scaling(5, ScalePhase.SETTLED, mode="compute")
        after = workers_after(computing, RankBatches(0.4, 0.0, 5, cache=2, epoch=epoch), DECIDED, SETTINGS)
        assert after == Scaling(mode=mode)
    grown = workers_after(Scaling(mode="compute"), RankBatches(0.8, 0.0, 1), DECIDED, SETTINGS)
    assert (grown.workers, grown.mode) == (2, "compute")
