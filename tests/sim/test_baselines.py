"""The caches that Larder is compared with, checked against arithmetic."""

from math import log

import numpy as np
import pytest

from gateway.model.errors import ConfigError
from gateway.sim.jobs.job import shuffled
from tests.sim.conftest import dataset, job, run

ONE = (dataset("d", "4GB"), job("j", "d", substitute=1))


def test_without_a_cache_every_step_takes_as_long_as_the_scenario_says(simulated):
    """Rule: compute and unhidden loading add up to ``miss``."""
    none = simulated(*ONE, run("none", "none"))["none"]
    assert 1 / none.rate == pytest.approx(2.4, rel=0.01)
    assert none.jobs[0].reads == 1


def test_loading_ahead_hides_what_is_shorter(simulated):
    """Rule: with a queue of batches a step takes as long as the longer of loading and computing."""
    tables = (dataset("d", "4GB"), job("j", "d", prefetch=2, miss=0, compute=0.6), run("none", "none"))
    fast = simulated(*tables, bandwidth="1GB")["none"]
    slow = simulated(*tables, bandwidth="20MB")["none"]
    assert 1 / fast.rate == pytest.approx(0.6, rel=0.01)
    assert 1 / slow.rate == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("sharing", "seconds"), [("fair", 1.6), ("arrival", 1.0)])
def test_a_store_that_serves_in_order_never_idles(simulated, sharing, seconds):
    """Rule: jobs in step wait together and compute together; served in turn, one reads while others compute."""
    tables = (dataset("d", "4GB"), job("j", "d", count=4, miss=0, compute=0.6), run("none", "none"))
    none = simulated(*tables, bandwidth="160MB", sharing=sharing, duration=300, measure_from=100)["none"]
    assert 1 / (none.rate / 4) == pytest.approx(seconds, rel=0.01)


def test_a_store_without_a_limit_for_a_while(simulated):
    """Rule: while the limit is lifted a step takes its computing time; before and after, the store's time."""
    tables = (dataset("d", "4GB"), job("j", "d", miss=0, compute=0.6), run("none", "none"))
    times = {"duration": 300, "measure_from": 100}
    free = simulated(*tables, bandwidth="20MB", origin="unlimited = [50, 400]", **times)["none"]
    limited = simulated(*tables, bandwidth="20MB", origin="unlimited = [0, 50]", **times)["none"]
    assert [1 / free.rate, 1 / limited.rate] == pytest.approx([0.6, 2.6], rel=0.02)


def test_a_cache_that_never_evicts_hits_what_it_holds(simulated):
    """Rule: its epoch hit ratio is the fraction that is resident."""
    static = simulated(*ONE, run("static", "static", warm=True), duration=2000)["static"]
    assert static.jobs[0].hits == pytest.approx(0.5, abs=0.03)


def test_lru_hits_what_the_closed_form_says(simulated):
    """Rule: c + (1 - c) ln(1 - c), for one job that reads everything once per epoch in random order."""
    lru = simulated(*ONE, run("lru", "lru", warm=True), duration=4000, measure_from=1000)["lru"]
    assert lru.jobs[0].hits == pytest.approx(0.5 + 0.5 * log(0.5), abs=0.04)


def test_belady_is_no_worse_than_the_others(simulated):
    """Rule: MIN knows the future; no other cache with the same order of reads hits more often."""
    runs = [run(mode, mode, warm=True) for mode in ("static", "lru", "belady")]
    tables = (dataset("d", "1GB"), job("j", "d", count=3), *runs)
    results = simulated(*tables, capacity="500MB", duration=250, measure_from=75)
    hits = {name: sum(each.hits for each in result.jobs) for name, result in results.items()}
    assert hits["belady"] > max(hits["static"], hits["lru"])


def test_belady_with_one_job_hits_what_min_does(simulated):
    """Rule: with one job it is MIN itself, but for evicting a hundredth of the cache at a time."""
    tables = (dataset("d", "1GB"), job("j", "d", batch="10MB", epochs=8), run("belady", "belady"))
    belady = simulated(*tables, capacity="500MB", duration=100_000)["belady"]
    trace = np.concatenate([shuffled(100, 0, epoch).items(0, 100) for epoch in range(8)])
    assert belady.jobs[0].hits == pytest.approx(_min_hits(trace.tolist(), 50), abs=0.02)


def _min_hits(trace: list[int], room: int) -> float:
    """Belady's MIN over a trace of single items; what will be used last may be the one that has just come."""
    held: set[int] = set()
    hits = 0
    for at, item in enumerate(trace):
        hits += item in held
        held.add(item)
        if len(held) > room:
            rest = trace[at + 1 :]
            held.remove(max(held, key=lambda each: rest.index(each) if each in rest else len(trace)))
    return hits / len(trace)


def test_the_same_seed_gives_the_same_run(simulated):
    """Rule: a simulation is determined by its scenario and seed."""
    tables = (dataset("d", "4GB"), job("j", "d", count=3), run("lru", "lru"))
    assert simulated(*tables, duration=250)["lru"] == simulated(*tables, duration=250)["lru"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module with a way of caching that a scenario may name: a cache that never evicts."""
    (tmp_path / "an_own_way.py").write_text(
        "from gateway.sim.jobs.baselines import NeverEvict\n\ndef keep_all(space, clock, jobs):\n    return NeverEvict(space)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_way_of_ones_own_is_run_beside_the_others(simulated, own_module):
    """Rule: a mode ``module:function`` is served by the function's result."""
    runs = [run("static", "static", warm=True), run("own", "an_own_way:keep_all", warm=True)]
    results = simulated(*ONE, *runs)
    assert results["own"].jobs == results["static"].jobs
    assert results["own"].jobs[0].hits > 0


@pytest.mark.parametrize("mode", ["no_such_module:anything", "gateway.sim.jobs.baselines:nothing"])
def test_a_way_that_is_not_there_is_refused_by_its_name(simulated, mode):
    """Rule: the message for an unknown mode names it, and where to look: PYTHONPATH."""
    with pytest.raises(ConfigError, match=f'mode = "{mode}".*PYTHONPATH'):
        simulated(*ONE, run("own", mode))
