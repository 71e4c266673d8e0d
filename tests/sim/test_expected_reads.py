"""The client's arithmetic of reads per epoch, beside the simulator with the shipped rules."""

import pytest

from gateway.policies.watermarks import GRANTABLE
from gateway.sim.jobs.run import RunResult
from larder.planner.expected import USABLE, expected_reads
from tests.sim.conftest import Simulated, dataset, job, run

ITEMS, ITEM = 400, 10_000_000


def reads_per_epoch(result: RunResult) -> float:
    """Items read from the store while the fastest job reads the dataset once."""
    return result.measured_bytes / ITEM / max(job.epochs for job in result.jobs)


def test_the_usable_share_is_the_gateways():
    """Rule: both reckon with the same part of cache.capacity."""
    assert pytest.approx(GRANTABLE, abs=0.001) == USABLE


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("jobs", [1, 4])
def test_the_simulator_reads_what_is_expected(simulated: Simulated, share: float, jobs: int):
    """Rule: within a twentieth of the dataset, for one job and for four together, at any share."""
    capacity = round(share * ITEMS * ITEM / USABLE)
    result = simulated(
        dataset("d", str(ITEMS * ITEM), caching="part"),
        job("j", "d", count=jobs, batch="80MB", compute=0.08, miss=0.0, prefetch=1),
        run("larder", "larder"),
        capacity=capacity,
        duration=32,
        measure_from=12,
    )["larder"]
    expected = expected_reads(ITEMS, ITEMS * ITEM, capacity, jobs)
    assert reads_per_epoch(result) / ITEMS == pytest.approx(expected.reads / ITEMS, abs=0.05)
    assert expected.uncached == ITEMS * jobs
