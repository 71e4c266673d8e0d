"""Misuse of a job, and its messages when the fleet refuses it."""

import time

import pytest
from fake_jobs import job_at, loader_of

import larder
from larder.testing import MemorySource
from larder.training.loader import Shard


def test_a_job_for_another_dataset(jobs):
    """Rule: a job and a loader of different datasets are refused with both names."""
    jobs.ids = {"train": "e" * 64}
    with job_at(jobs) as job, pytest.raises(ValueError, match=r"'train' \(id eeeeeeeeeeee.*reads 'memory'"):
        loader_of(job).epoch(0)


def test_a_job_for_the_same_dataset_by_another_name(jobs):
    """Rule: a job is accepted for the same dataset under another name, because ids are compared."""
    source = MemorySource(103, caching="part")
    jobs.ids = {"train": source.describe().id}
    with job_at(jobs) as job:
        assert sum(len(batch) for batch in loader_of(job, source=source).epoch(0)) == 103


@pytest.mark.parametrize("shard", [{}, {"shard": Shard(1, 3, 0, 1)}])
def test_a_job_of_another_number_of_ranks(jobs, shard):
    """Rule: a job of two ranks is not read alone, nor by three: items would come twice."""
    with job_at(jobs, ranks=2, rank=1) as job, pytest.raises(ValueError, match=r"'run' has 2 ranks.*shard="):
        loader_of(job).epoch(0, **shard)


def test_a_dataset_that_is_not_there(jobs, caplog):
    """Rule: a refusal stops no loop; the log has it once, in the gateway's words, and the statistics the last."""
    jobs.ids = {"other": "e" * 64}
    with job_at(jobs) as job:
        job.step()
        while not caplog.records:
            time.sleep(0.01)
        assert "there is no dataset 'train'" in job.stats()["last_error"]
        heart = job._heartbeat
        heart._failed(larder.UnknownDataset(404, "UnknownDataset", "there is no dataset 'train'"))
    (record,) = (record for record in caplog.records if record.name == "larder")
    assert record.levelname == "WARNING"
    assert "'run'" in record.getMessage()
    assert "there is no dataset 'train'" in record.getMessage()
