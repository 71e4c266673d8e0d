"""A dataset that a fleet keeps in part, while Redis is emptied or lost and the leader dies: jobs go on sharing what they load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rig.batches import Stock
from rig.gateways import Running
from rig.v1 import ask
from rig.world import eventually
from tests.demand import BATCH, Schedule, TrainingJob, dataset_of, run
from tests.fleet.digests import World, fleet_of

ITEMS, SIZE = 120, 2048
HALF = ITEMS * SIZE // 2
BEAT = json.dumps({"rank": 0, "epoch": 0, "phases": {}}).encode()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three gateways whose caches hold half of the dataset together."""
    # A node that only waits for the processor must not count as gone: its items would be read again.
    with fleet_of(tmp_path, capacity=str(HALF // 3), fleet={"expire": "10s"}) as world:
        yield world


@pytest.fixture
def data(world: World, tmp_path: Path) -> Stock:
    """A dataset that is kept in part, and known to all gateways."""
    made = dataset_of(world.origin, tmp_path, ITEMS, SIZE)
    made.register(world.nodes[0], "part")
    world.known(made)
    return made


def jobs_on(world: World, data: Stock, epochs: int) -> list[Schedule]:
    """Two registered jobs in step."""
    jobs = [Schedule(TrainingJob(f"job-{number}", world.nodes, data, epochs)) for number in range(2)]
    for schedule in jobs:
        return_to(world.nodes[-1], data, schedule.job.name)
    await_space(world.nodes[-1], data)
    return jobs


def return_to(running: Running, data: Stock, name: str) -> None:
    """Register a job, as its client does when a heartbeat says that it is unknown."""
    wanted = {"job": name, "dataset": data.name, "gpus": 1, "batch_size": BATCH, "ranks": 1}
    body = json.dumps(wanted).encode()
    eventually(lambda: ask(running, "POST", "/v1/jobs", body).status, lambda status: status in (200, 201), "the job")


def await_space(running: Running, data: Stock) -> None:
    """Wait until the plan gives the dataset space for a part."""
    eventually(
        lambda: ask(running, "GET", "/v1/plan").json.get("datasets", {}).get(data.id, {}).get("caching"),
        lambda caching: caching == "part",
        "space in the plan",
    )


def reads_of(world: World, jobs: Sequence[Schedule], epoch: int) -> float:
    """Origin reads per item until the first job has ended an epoch."""
    before = world.origin.count("GET", "/data/")
    run(jobs, jobs[0].job, epoch)
    return (world.origin.count("GET", "/data/") - before) / ITEMS


def halfway(jobs: Sequence[Schedule]) -> None:
    """Half of an epoch of every job."""
    for _ in range(ITEMS // BATCH // 2):
        for schedule in jobs:
            schedule.job.step()


def assert_exact(jobs: Sequence[Schedule], epochs: int) -> None:
    """Every item came once in each of the first epochs."""
    for schedule in jobs:
        assert [sorted(order) for order in schedule.job.orders[:epochs]] == [list(range(ITEMS))] * epochs


@pytest.mark.parametrize("loss", ["emptied", "lost"])
def test_jobs_share_their_loads_without_redis(world: World, data: Stock, loss: str) -> None:
    """Rule: need is known by the homes, so jobs that do not share would read twice as much as these do when Redis is emptied or
    lost in the middle of an epoch; what jobs and the plan had is back once the jobs have registered again."""
    jobs = jobs_on(world, data, 3)
    run(jobs, jobs[0].job, 0)
    halfway(jobs)
    if loss == "emptied":
        world.redis.flush()
    else:
        world.redis.kill()
    run(jobs, jobs[0].job, 1)
    assert reads_of(world, jobs, 2) < 0.8
    assert_exact(jobs, 3)
    if loss == "lost":
        world.redis.start()
    for schedule in jobs:
        path = f"/v1/jobs/{schedule.job.name}/heartbeat"
        eventually(
            lambda path=path: ask(world.nodes[0], "POST", path, BEAT).status, lambda status: status == 404, "404"
        )
        return_to(world.nodes[0], data, schedule.job.name)
    await_space(world.nodes[1], data)


def test_a_leader_that_dies_takes_its_items_only(world: World, data: Stock) -> None:
    """Rule: jobs read on through the other nodes; from the next epoch on these hold as much as they can, and jobs share it."""
    jobs = jobs_on(world, data, 4)
    run(jobs, jobs[0].job, 0)
    leading = [running.metric("larder_manager_leading") for running in world.nodes]
    halfway(jobs)
    world.kill(leading.index(max(leading)))
    others = [number for number in range(len(world.nodes)) if number != leading.index(max(leading))]
    world.await_nodes(*others)
    left = [world.nodes[number] for number in others]
    for schedule in jobs:
        schedule.job.nodes = left
    run(jobs, jobs[0].job, 1)
    run(jobs, jobs[0].job, 2)
    assert reads_of(world, jobs, 3) < 0.95
    assert_exact(jobs, 4)
    for schedule in jobs:
        path = f"/v1/jobs/{schedule.job.name}/heartbeat"
        eventually(
            lambda path=path: ask(left[0], "POST", path, BEAT).status, lambda status: status == 200, "a heartbeat"
        )
    await_space(left[1], data)
