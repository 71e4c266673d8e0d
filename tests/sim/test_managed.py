"""Larder in the simulator: effects of the manager's policies on jobs, compared with the paper's main results."""

import pytest

from gateway.sim.jobs.run import simulate, speedup
from gateway.sim.jobs.scenario import Scenario, parse_as
from tests.sim.conftest import dataset, job, run, scenario

PART = dataset("d", "2GB", item="10MB", caching="part")
"""Of 200 items."""
BATCH = {"batch": "40MB"}


def kinds(result, field: str) -> dict[str, float]:
    """The mean of a field over the jobs of each kind."""
    names = {each.kind for each in result.jobs}
    chosen = {name: [getattr(each, field) for each in result.jobs if each.kind == name] for name in names}
    return {name: sum(values) / len(values) for name, values in chosen.items()}


def reads(result) -> float:
    """What the origin sent for all jobs, per item and epoch of the fastest."""
    return result.measured_bytes / 2e9 / max(job.epochs for job in result.jobs)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
@pytest.mark.parametrize(
    ("starts", "paces", "factor", "more"),
    [
        pytest.param((0,), (1,), 1.01, 0.005, id="one"),
        pytest.param((0,) * 4, (1,) * 4, 1.05, 0.02, id="four in step"),
        pytest.param((0, 15, 30, 45), (1,) * 4, 1.1, 0.02, id="four staggered by a quarter"),
        pytest.param((0,) * 3, (1, 2, 4), 1.1, 0.02, id="speeds 1:2:4"),
    ],
)
def test_a_dataset_held_in_part_is_read_as_seldom_as_can_be(simulated, share, starts, paces, factor, more):
    """Rule: (1 - c) reads per item and epoch, for all jobs together; nothing else is read, and the cache stays full."""
    jobs = [
        job(f"j{number}", "d", compute=pace * 1.2, miss=0, prefetch=1, start=start, **BATCH)
        for number, (start, pace) in enumerate(zip(starts, paces, strict=True))
    ]
    found = simulated(
        PART, *jobs, run("larder", "larder", capacity=f"{share * 2:g}GB"), duration=300, measure_from=120
    )["larder"]
    assert reads(found) <= factor * (1 - share) + more
    assert found.shares["d"] == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(("paces", "share"), [((1, 1, 1, 1), 0.5), ((1, 2), 0.2)], ids=["four", "1:2"])
def test_jobs_that_follow_their_orders_hit_what_min_does(simulated, paces, share):
    """Rule: with orders that homes know, hits are within 2 % of those of Belady's MIN, and more than by need."""
    jobs = [
        job(f"j{number}", "d", compute=pace * 0.6, miss=0, prefetch=1, substitute=1, batch="20MB")
        for number, pace in enumerate(paces)
    ]
    runs = [run("larder", "larder"), run("belady", "belady"), run("need", "larder", orders=False)]
    found = simulated(PART, *jobs, *runs, capacity=f"{share * 2:g}GB", duration=150, measure_from=60)
    hits = {name: sum(1 / pace for pace in paces) - reads(result) for name, result in found.items()}
    assert hits["larder"] >= 0.98 * hits["belady"]
    assert hits["larder"] > 1.05 * hits["need"]


def test_jobs_that_share_their_reads_are_faster_the_more_they_are(simulated):
    """Rule: Table 3 and Figure 7: seven jobs read a seventh each, four a quarter; with all of it cached a job is faster still."""
    results = simulated(
        PART,
        job("four", "d", count=4, **BATCH),
        job("seven", "d", count=7, **BATCH),
        run("miss", "none"),
        run("hit", "larder", caching="full", warm=True, capacity="2.5GB"),
        run("4", "larder", capacity="400MB", jobs=["four"]),
        run("7", "larder", capacity="400MB", jobs=["seven"]),
        duration=200,
        measure_from=100,
    )
    base, four, seven = (
        results["miss"].kind_rate("four"),
        results["4"].kind_rate("four"),
        results["7"].kind_rate("seven"),
    )
    assert results["hit"].kind_rate("four") == pytest.approx(4 * base, rel=0.01)
    assert 1.5 * base < four < seven / 1.1
    assert seven < 4 * base


def test_a_job_that_joins_late_takes_what_is_cached(simulated):
    """Rule: Figure 7: it needs all that is there, and the others' reads serve it as they serve them."""
    story = simulated(
        PART,
        job("early", "d", count=4, **BATCH),
        job("late", "d", count=3, start=95, **BATCH),
        run("larder", "larder", capacity="400MB"),
        duration=140,
        measure_from=90,
    )["larder"]
    hits = kinds(story, "hits")
    assert hits["late"] > 0.6
    assert hits["late"] >= 0.95 * hits["early"]


def test_a_slow_job_does_not_hold_up_the_others(simulated):
    """Rule: what it alone needs gives way to what the others need; they go on nearly as if it were not there."""
    tables = (
        PART,
        job("fast", "d", count=3, **BATCH),
        job("slow", "d", compute=6, miss=7.8, **BATCH),
        run("together", "larder", capacity="400MB"),
        run("alone", "larder", capacity="400MB", jobs=["fast"]),
    )
    results = simulated(*tables, duration=250, measure_from=100)
    assert results["together"].kind_rate("fast") > 0.9 * results["alone"].kind_rate("fast")
    assert reads(results["together"]) <= 1.1 * 0.8 + 0.02


def test_a_dataset_of_more_than_a_million_items_is_simulated_in_groups(simulated):
    """Rule: an item may stand for 500 images; then 1.3 million of them at a fifth read as the bound says."""
    found = simulated(
        dataset("d", "154GB", item="61.6MB", caching="part"),
        job("j", "d", count=2, batch="61.6MB", compute=0.646, miss=0, prefetch=1, grouped=16),
        run("larder", "larder", capacity="30.8GB"),
        duration=3500,
        measure_from=2000,
        bandwidth="200MB",
    )["larder"]
    assert found.measured_bytes / 154e9 / max(each.epochs for each in found.jobs) == pytest.approx(0.8, abs=0.03)


def test_space_goes_to_the_job_that_gains(simulated):
    """Rule: the dataset of a job that gains nothing has only the space that is left; the job takes what is cached there."""
    found = simulated(
        dataset("read", "500MB"),
        dataset("computed", "500MB"),
        job("io-bound", "read", prefetch=2, compute=0.3, miss=1.2),
        job("compute-bound", "computed", prefetch=2, compute=2.0, miss=0),
        run("larder", "larder", capacity="550MB"),
        duration=750,
        measure_from=350,
        probe_batches=40,
    )["larder"]
    assert all(each.cached for each in found.jobs)
    assert kinds(found, "benefit")["io-bound"] == pytest.approx(4, rel=0.15)
    assert found.caching == {"read": "full", "computed": "part"}
    assert kinds(found, "hits")["io-bound"] > 0.9


def test_a_warm_job_with_short_epochs_is_not_refused_hits(simulated):
    """Rule: the manager of a simulation knows how long an epoch is, as a real one does; this one has 25 mini-batches."""
    tables = (dataset("d", "1GB"), job("j", "d"), run("larder", "larder", capacity="2GB", warm=True))
    found = simulated(*tables, duration=300, probe_batches=40)["larder"]
    assert kinds(found, "hits")["j"] == 1


def test_a_run_may_load_ahead(simulated):
    """Rule: what a run says of loading ahead is in force rather than what its jobs say; without a cache nothing is faster so."""
    tables = (dataset("d", "1GB"), job("j", "d", prefetch=0))
    ahead = {"prefetch": 1}
    runs = (run("none", "none"), run("none ahead", "none", **ahead))
    held = (run("half", "static", capacity="500MB"), run("half ahead", "static", capacity="500MB", **ahead))
    rates = {name: of.rate for name, of in simulated(*tables, *runs, *held, duration=600, measure_from=100).items()}
    assert rates["none ahead"] == pytest.approx(rates["none"], rel=0.02)
    assert rates["half ahead"] > 1.2 * rates["half"]


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
    "duration": 1000, "measure_from": 800, "bandwidth": "760MB", "probe_batches": 20, "interval": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def uncached():
    """The cluster without a cache; no run of a scenario depends on the others."""
    (none,) = simulate(parse_as(Scenario, scenario(*CLUSTER, run("none", "none"), **DETAILS)))
    return none


@pytest.mark.parametrize("size", ["10GiB", "20GiB", "70GiB"])
def test_quivers_cluster_gains_more_than_with_lru(simulated, uncached, size):
    """Rule: section 7.6, a tenth in size: twelve jobs run 1.4 times as fast as without a cache or more, ahead of LRU."""
    runs = (run("larder", "larder", capacity=size, warm=True), run("lru", "lru", capacity=size, warm=True))
    results = simulated(*CLUSTER, *runs, **DETAILS)
    speedups = {name: speedup(result, uncached) for name, result in results.items()}
    assert speedups["larder"] > 1.4
    assert speedups["larder"] > speedups["lru"]


def test_prices_give_the_space_to_the_job_that_reads_most(simulated):
    """Rule: without prices the job with more GPUs gets the space; where bytes cost money, the one that reads most."""
    tables = (
        dataset("few", "2GB"),
        dataset("many", "2GB"),
        job("gpus", "few", gpus=4, batch="40MB", compute=0.6, miss=0),
        job("bytes", "many", gpus=1, batch="400MB", compute=0.6, miss=0),
        run("larder", "larder", capacity="2GB"),
    )
    seconds = simulated(*tables, duration=60)["larder"].shares
    money = simulated("[cost]\ngb_read = 0.02\n", *tables, duration=60)["larder"].shares
    assert seconds["few"] > 0.9 > 0.1 > seconds["many"]
    assert money["many"] > 0.9 > 0.1 > money["few"]


def test_older_names_of_a_mode_are_read(simulated):
    """Rule: scenarios of earlier versions keep their meaning: static and chunked are held in part."""
    assert [
        parse_as(Scenario, scenario(dataset("d", "2GB", caching=name), job("j", "d"), run("r", "larder")))
        .datasets[0]
        .caching
        for name in ("static", "chunked")
    ] == ["part", "part"]
