"""Origin reads of a dataset that does not fit, counted at the origin: at the bound for one job, and hardly above it for several.

An epoch reads every item, and at its start the share c of them is cached. So (1 - c) N reads per epoch, for all jobs together,
are the least possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rig.batches import Stock
from rig.gateways import Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from tests.demand import BATCH, Schedule, TrainingJob, dataset_of, run
from tests.fleet.digests import fleet_of

ITEMS, SIZE = 240, 2048
EPOCHS = 3


def reads_per_epoch(origin: FakeOrigin, data: Stock, jobs: Sequence[Schedule]) -> float:
    """Reads per item and epoch of the first job, from its second epoch on; every job's epochs must be exact."""
    leader = jobs[0].job
    rounds = run(jobs, leader, 0)
    before = origin.count("GET", "/data/")
    for epoch in range(1, EPOCHS):
        rounds = run(jobs, leader, epoch, rounds)
    reads = origin.count("GET", "/data/") - before
    for schedule in jobs:
        for order in schedule.job.orders:
            assert len(set(order)) == len(order)
    assert sorted(leader.orders[-1]) == list(range(len(data.rows)))
    return reads / (EPOCHS - 1) / len(data.rows)


def correlation(orders: Sequence[Sequence[int]]) -> float:
    """The largest rank correlation of neighbouring epochs, whatever its sign."""
    whole = max(map(len, orders))
    places = [np.argsort(order) for order in orders if len(order) == whole]
    return max(abs(float(np.corrcoef(one, other)[0, 1])) for one, other in pairwise(places))


@pytest.mark.parametrize(("share", "workers"), [(0.2, 1), (0.95, 2)])
def test_a_job_alone_reads_what_is_not_cached(tmp_path: Path, share: float, workers: int) -> None:
    """Rule: at most 1.05 (1 - c) + 0.02 reads per item and epoch, in the job's own order. The few reads of an epoch that race
    with the turnover do not grow with the dataset, so it is larger here."""
    items = 2 * ITEMS
    with OriginThread() as origin:
        data = dataset_of(origin, tmp_path, items, SIZE)
        settings = Settings(origin.endpoint, tmp_path / "cache", str(int(share * items * SIZE)), workers=workers)
        with gateway(settings, tmp_path) as running:
            data.register(running, "part")
            job = TrainingJob("alone", [running], data, EPOCHS)
            reads = reads_per_epoch(origin, data, [Schedule(job)])
    assert reads <= 1.05 * (1 - share) + 0.02
    assert correlation(job.orders) < 0.2


@pytest.mark.parametrize(
    ("starts", "paces", "factor", "more"),
    [
        pytest.param((0, 0), (1, 1), 1.05, 0.05, id="two in step"),
        pytest.param((0, 0, 0, 0), (1, 1, 1, 1), 1.05, 0.05, id="four in step"),
        pytest.param((0, 8, 15, 23), (1, 1, 1, 1), 1.10, 0.08, id="four staggered by a quarter"),
        pytest.param((0, 0, 0), (1, 2, 4), 1.10, 0.08, id="speeds 1:2:4"),
    ],
)
def test_jobs_share_their_reads(
    tmp_path: Path, starts: tuple[int, ...], paces: tuple[int, ...], factor: float, more: float
) -> None:
    """Rule: jobs that read at the same time read hardly more together than one of them alone."""
    assert ITEMS // BATCH == 30
    with OriginThread() as origin:
        data = dataset_of(origin, tmp_path, ITEMS, SIZE)
        settings = Settings(origin.endpoint, tmp_path / "cache", str(ITEMS * SIZE // 2))
        with gateway(settings, tmp_path) as running:
            data.register(running, "part")
            jobs = [
                Schedule(TrainingJob(f"job-{number}", [running], data, 2 * EPOCHS), start, pace)
                for number, (start, pace) in enumerate(zip(starts, paces, strict=True))
            ]
            assert reads_per_epoch(origin, data, jobs) <= factor * 0.5 + more
            assert running.metric("larder_replaced_items_total") > 0


def test_objects_of_the_same_bytes_make_room_like_items(tmp_path: Path) -> None:
    """Rule: a dataset whose items are in the cache because S3 clients read the objects keeps the bound, and its room."""
    with OriginThread() as origin:
        data = dataset_of(origin, tmp_path, ITEMS, SIZE)
        settings = Settings(origin.endpoint, tmp_path / "cache", str(ITEMS * SIZE // 2))
        with gateway(settings, tmp_path) as running:
            client = running.client()
            for row in data.rows:
                client.get_object(Bucket=row.bucket, Key=row.key)["Body"].read()
            data.register(running, "part")
            jobs = [Schedule(TrainingJob(f"job-{number}", [running], data, 2 * EPOCHS)) for number in range(2)]
            assert reads_per_epoch(origin, data, jobs) <= 1.05 * 0.5 + 0.05
            assert len(data.missing(running)) < 0.6 * ITEMS


def test_homes_keep_the_bound_in_a_fleet(tmp_path: Path) -> None:
    """Rule: each home decides alone; two jobs in step that ask any of three gateways read hardly more than one."""
    capacity = str(ITEMS * SIZE // 2 // 3)
    with fleet_of(tmp_path, fleet={"expire": "60s"}, capacity=capacity) as world:
        data = dataset_of(world.origin, tmp_path, ITEMS, SIZE)
        data.register(world.nodes[0], "part")
        world.known(data)
        jobs = [Schedule(TrainingJob(f"job-{number}", world.nodes, data, EPOCHS)) for number in range(2)]
        assert reads_per_epoch(world.origin, data, jobs) <= 1.05 * 0.5 + 0.05
