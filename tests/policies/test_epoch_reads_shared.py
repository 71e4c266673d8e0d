"""What jobs read in whole epochs: of a job's ranks, and of all jobs on a dataset."""

from __future__ import annotations

import pytest

from gateway.policies.space.epochs import EpochReads, SharedEpochs, of_ranks, shared


def test_a_job_is_the_sum_of_its_ranks() -> None:
    """Rule: the counts of its ranks are added; while one is an epoch behind, the earlier one counts, of those that report it."""
    assert of_ranks([]) is None
    assert of_ranks([EpochReads(3, 10, 4, 0.4), EpochReads(3, 30, 6, 0.2)]) == EpochReads(
        3, 40, 10, pytest.approx(0.3), 2
    )
    assert of_ranks([EpochReads(4, 10, 0), EpochReads(3, 30, 6, None)]) == EpochReads(3, 30, 6, None, 1)


def test_jobs_on_a_dataset_share_its_reads() -> None:
    """Rule: reads per item of all jobs are added, and the least is that of one epoch, which they can share."""
    assert shared([]) is None
    both = shared([EpochReads(3, 100, 30, 0.5), EpochReads(7, 100, 25, 0.5)])
    assert both == SharedEpochs(2, pytest.approx(0.55), 0.5)
