"""The design that loads ahead what all jobs need, which the evaluation compares with."""

from tests.sim.conftest import dataset, job, run


def test_it_lets_jobs_wait_less_and_reads_nothing_twice(simulated):
    """Rule: with a quarter cached, four jobs are half as fast again as by demand, and no item is read twice in an epoch."""
    tables = (dataset("d", "1GB", item="10MB"), job("j", "d", count=4, batch="40MB"))
    modes = {"larder": "larder", "own": "lab.evaluation.loading_ahead:make"}
    runs = [run(name, mode, capacity="250MB") for name, mode in modes.items()]
    results = simulated(*tables, *runs, duration=250, measure_from=75)
    own = results["own"]
    assert own.measured_bytes / 1e9 / max(each.epochs for each in own.jobs) <= 1
    assert own.rate > 1.5 * results["larder"].rate
