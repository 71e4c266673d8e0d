"""The design that loads ahead what all jobs need, which the evaluation compares with."""

import pytest

from tests.sim.conftest import dataset, job, run


def test_it_reads_as_often_and_lets_jobs_wait_less(simulated):
    """Rule: with a quarter cached, four jobs read no more of the store than by demand, and wait less for it."""
    tables = (dataset("d", "4GB", item="10MB"), job("j", "d", count=4, batch="40MB"))
    runs = [
        run(name, mode, capacity="1GB")
        for name, mode in (("larder", "larder"), ("own", "evaluation.loading_ahead:make"))
    ]
    results = simulated(*tables, *runs, duration=900, measure_from=300)
    reads = {name: of.measured_bytes / 4e9 / max(each.epochs for each in of.jobs) for name, of in results.items()}
    assert reads["own"] == pytest.approx(0.75, abs=0.08)
    assert results["own"].rate > 1.1 * results["larder"].rate
