"""Input workers of jobs in Redis: each rank's own, kept for a while, and nothing in Redis makes a gateway fail."""

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs.scaling import WorkerScaling
from gateway.policies.space.autoscale import ScaleSettings, TrainerReport

Z = "larder:z:"
LONG = 60.0


def report(seconds: float, workers: int) -> TrainerReport:
    """A report of a trainer whose queue is empty."""
    return TrainerReport(seconds, 0.0, workers)


async def test_gateways_decide_in_turn(redis: Redis) -> None:
    """Rule: gateways share their decisions, because heartbeats go to any of them."""
    one, other = WorkerScaling(redis, Z, LONG), WorkerScaling(redis, Z, LONG)
    found = [
        await gateway.decide("t/j", 0, report(0.8 / min(workers, 4), workers))
        for gateway, workers in ((one, 1), (other, 2), (one, 3), (other, 4), (one, 5), (other, 4))
    ]
    assert found == [2, 3, 4, 5, 4, 4]


async def test_ranks_and_jobs_are_apart(redis: Redis) -> None:
    """Rule: each rank of each job has its own number of workers; a forgotten job starts over."""
    scaling = WorkerScaling(redis, Z, LONG)
    assert await scaling.decide("t/j", 0, report(0.8, 1)) == 2
    assert await scaling.decide("t/j", 1, report(0.8, 1)) == 2
    assert await scaling.decide("u/j", 0, report(0.8, 1)) == 2
    assert await scaling.decide("t/j", 0, report(0.4, 2)) == 3
    await scaling.forget("t/j")
    assert await scaling.decide("t/j", 0, report(0.8, 1)) == 2
    assert 0 < await redis.pttl(f"{Z}job:t/j:workers") <= 1000 * LONG


@pytest.mark.parametrize("mode", ["", "get"])
async def test_an_emptied_redis_takes_no_worker_away(redis: Redis, mode: str) -> None:
    """Rule: a job of which nothing is known keeps the workers that it reports, also when its mode becomes known later; then the
    search goes on."""
    scaling = WorkerScaling(redis, Z, LONG, ScaleSettings(review=2))
    await redis.flushall()
    assert await scaling.decide("t/j", 0, TrainerReport(0.1, 0.0, 8, mode)) == 8
    assert await scaling.decide("t/j", 0, TrainerReport(0.1, 0.0, 8, "get")) == 8
    found = [await scaling.decide("t/j", 0, TrainerReport(0.2, 0.0, 8, "get")) for _ in range(3)]
    assert found[-1] == 9


async def test_no_job_is_given_more_workers_than_allowed(redis: Redis) -> None:
    """Rule: what a job reports is bounded like what is decided."""
    scaling = WorkerScaling(redis, Z, LONG, ScaleSettings(most=8))
    assert await scaling.decide("t/j", 0, report(0.1, 60_000)) == 8


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"workers": "many"}', '{"workers": 0}', '{"workers": 1000000}'])
async def test_what_is_in_redis_is_not_believed(redis: Redis, text: str) -> None:
    """Rule: an invalid or out-of-bounds state counts as absent."""
    await redis.hset(f"{Z}job:t/j:workers", "0", text)
    scaling = WorkerScaling(redis, Z, LONG, ScaleSettings(most=8))
    assert await scaling.decide("t/j", 0, report(0.8, 1)) == 2
