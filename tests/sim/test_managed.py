"""Larder in the simulator: effects of the manager's policies on jobs, compared with the paper's main results."""

import pytest

from gateway.sim.jobs.run import simulate, speedup
from gateway.sim.jobs.scenario import Scenario, parse_as
from tests.sim.conftest import dataset, job, run, scenario

SMALL = dataset("d", "4GB", item="500kB", caching="chunked")
BATCH = {"batch": "5MB"}
"""Such that a chunk is 80 mini-batches."""


def kinds(result, field: str) -> dict[str, float]:
    """The mean of a field over the jobs of each kind."""
    names = {each.kind for each in result.jobs}
    chosen = {name: [getattr(each, field) for each in result.jobs if each.kind == name] for name in names}
    return {name: sum(values) / len(values) for name, values in chosen.items()}


def test_a_co_operative_miss_is_between_miss_and_hit(simulated):
    """Rule: Table 3: jobs that share their reads are slower than with all of it cached, and faster than without."""
    results = simulated(
        SMALL,
        job("j", "d", count=7, **BATCH),
        run("miss", "none"),
        run("hit", "larder", caching="full", warm=True, capacity="5GB"),
        run("co-op", "larder", capacity="1GB"),
        duration=600,
        force_eviction=100,
    )
    rates = {name: result.rate / results["miss"].rate for name, result in results.items()}
    assert rates["hit"] == pytest.approx(4, rel=0.01)
    assert 1.5 < rates["co-op"] < rates["hit"]
    assert results["co-op"].most_chunks == {"d": 2}


def test_at_most_two_chunks_are_held_and_late_jobs_begin_on_the_active_one(simulated):
    """Rule: Figure 7: with jobs joining, two chunks at a time are in the cache, and all go through them together."""
    story = simulated(
        SMALL,
        job("early", "d", count=4, **BATCH),
        job("late", "d", count=3, start=200, **BATCH),
        run("larder", "larder", capacity="1GB"),
        duration=600,
        force_eviction=100,
    )["larder"]
    assert story.most_chunks == {"d": 2}
    first, late = story.starts["early-0"], story.starts["late-0"]
    assert late != first
    assert any(begin <= 201 <= end for begin, end in story.spans["d"][late])
    assert kinds(story, "hits")["late"] > 0.6


def test_more_jobs_that_share_a_chunk_make_each_of_them_faster(simulated):
    """Rule: Figure 7: with seven jobs each reads a seventh of the misses, with four a quarter."""
    results = simulated(
        SMALL,
        job("four", "d", count=4, **BATCH),
        job("seven", "d", count=7, **BATCH),
        run("4", "larder", capacity="1GB", jobs=["four"]),
        run("7", "larder", capacity="1GB", jobs=["seven"]),
        duration=600,
        force_eviction=100,
    )
    assert results["7"].kind_rate("seven") > 1.1 * results["4"].kind_rate("four")


def test_a_slow_job_is_overtaken(simulated):
    """Rule: a job that is far behind loses its chunk, so that the others go on as if it were not there."""
    tables = (
        SMALL,
        job("fast", "d", count=3, **BATCH),
        job("slow", "d", compute=6, miss=7.8, **BATCH),
        run("together", "larder", capacity="1GB"),
        run("alone", "larder", capacity="1GB", jobs=["fast"]),
    )
    results = simulated(*tables, duration=900, force_eviction=30, preload="0")
    assert results["together"].kind_rate("fast") > 0.8 * results["alone"].kind_rate("fast")
    assert kinds(results["together"], "hits")["slow"] < kinds(results["together"], "hits")["fast"] - 0.3


def test_a_compute_bound_job_leaves_the_cache(simulated):
    """Rule: a job that gains nothing from the cache loses it, and the space goes to one that gains."""
    found = simulated(
        dataset("read", "1GB"),
        dataset("computed", "1GB"),
        job("io-bound", "read", prefetch=2, compute=0.3, miss=1.2),
        job("compute-bound", "computed", prefetch=2, compute=2.0, miss=0),
        run("larder", "larder", capacity="1100MB"),
        duration=1500,
        measure_from=700,
        probe_batches=40,
    )["larder"]
    assert {each.kind: each.cached for each in found.jobs} == {"io-bound": True, "compute-bound": False}
    assert kinds(found, "benefit")["io-bound"] == pytest.approx(4, rel=0.15)
    assert found.caching["read"] == "full"
    assert kinds(found, "hits")["io-bound"] > 0.9


def test_jobs_that_begin_together_read_every_item_once(simulated):
    """Rule: with a cold cache that holds all, the origin sends each item once, however many jobs there are."""
    tables = (
        dataset("d", "2GB"),
        job("j", "d", count=7, prefetch=2, miss=0, compute=0.05, epochs=1),
        run("larder", "larder", capacity="4GB"),
        run("none", "none"),
    )
    results = simulated(*tables, duration=300, bandwidth="100MB")
    assert results["larder"].origin_bytes == pytest.approx(2e9)
    assert results["none"].origin_bytes == pytest.approx(7 * 2e9)
    assert results["larder"].rate > 5 * results["none"].rate


CLUSTER = (
    dataset("ImageNet", "15.4GB", item="20MB"),
    dataset("OpenImages", "53.1GB", item="20MB"),
    dataset("LibriSpeech", "9GB", item="20MB"),
    job("ResNet50", "ImageNet", count=4, batch="61.6MB", compute=0.646, miss=2.505, grouped=4, substitute=2),
    job("Inception", "OpenImages", count=4, batch="78.1MB", compute=1.274, miss=2.874, grouped=4, substitute=2),
    job("DeepSpeech", "LibriSpeech", count=4, batch="41MB", compute=1.234, miss=1.614, grouped=4, substitute=2),
)
DETAILS = {
    "duration": 2000, "measure_from": 1200, "bandwidth": "760MB", "preload": "0", "probe_batches": 20, "interval": 4,
    "force_eviction": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def uncached():
    """The cluster without a cache; no run of a scenario depends on the others."""
    (none,) = simulate(parse_as(Scenario, scenario(*CLUSTER, run("none", "none"), **DETAILS)))
    return none


@pytest.mark.parametrize(("size", "chunked"), [("10GiB", "ImageNet"), ("20GiB", "OpenImages"), ("70GiB", "")])
def test_quivers_cluster_gains_more_than_with_lru(simulated, uncached, size, chunked):
    """Rule: section 7.6, a tenth in size: twelve jobs run 1.6 times as fast as without a cache or more, ahead of LRU."""
    runs = (run("larder", "larder", capacity=size, warm=True), run("lru", "lru", capacity=size, warm=True))
    results = simulated(*CLUSTER, *runs, **DETAILS)
    speedups = {name: speedup(result, uncached) for name, result in results.items()}
    assert speedups["larder"] > 1.6
    assert speedups["larder"] > speedups["lru"]
    if chunked:
        assert results["larder"].caching[chunked] == "chunked"
    else:
        assert results["larder"].caching["ImageNet"] == "full"
