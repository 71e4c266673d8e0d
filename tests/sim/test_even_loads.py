"""Jobs that share a slow store and load one step ahead."""

from tests.sim.conftest import Simulated, dataset, job, run


def test_the_store_works_while_jobs_compute(simulated: Simulated) -> None:
    """Rule: with half of the dataset cached, four jobs whose computing allows 7.6 times the speed without a cache reach 6 times.
    They read as little as docs/evaluation/bound.md allows.
    """
    size = 30_800_000_000
    results = simulated(
        dataset("d", str(size), caching="part"),
        job("j", "d", count=4, batch="246.4MB", compute=2.584, miss=0.0, prefetch=1),
        run("none", "none"),
        run("larder", "larder", warm=True),
        bandwidth="50MB",
        capacity=size // 2,
        duration=1700,
        measure_from=500,
    )
    larder = results["larder"]
    assert larder.rate > 6 * results["none"].rate
    assert larder.measured_bytes / size / max(reader.epochs for reader in larder.jobs) <= 0.575
