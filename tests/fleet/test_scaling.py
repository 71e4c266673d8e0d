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
    assert await scaling.decide("t/j", 1, report(0.8, 7)) == 1
    assert await scaling.decide("u/j", 0, report(0.8, 7)) == 1
    await scaling.forget("t/j")
    assert await scaling.decide("t/j", 0, report(0.8, 7)) == 1
    assert 0 < await redis.pttl(f"{Z}job:t/j:workers") <= 1000 * LONG


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"workers": "many"}', '{"workers": 0}', '{"workers": 1000000}'])
async def test_what_is_in_redis_is_not_believed(redis: Redis, text: str) -> None:
    """Rule: an invalid or out-of-bounds state counts as absent."""
    await redis.hset(f"{Z}job:t/j:workers", "0", text)
    scaling = WorkerScaling(redis, Z, LONG, ScaleSettings(most=8))
    assert await scaling.decide("t/j", 0, report(0.8, 1)) == 2
