"""Caching decisions of pipelines in Redis: one decision for all ranks and gateways, and results shared between jobs."""

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs.caching import PipelineDecisions
from gateway.fleet.jobs.read_times import ReadTimes
from gateway.fleet.jobs.scaling import DETAILED
from gateway.policies.space.autocache import COMPUTE, CacheReason, StageProfile
from gateway.policies.space.cache_mode import PipelineProfile
from gateway.policies.space.read_model import ReadSums

Z = "larder:z:"
LONG = 60.0
POOL = "results:t/d/f"


def profile(seconds: float = 0.01, cache: int = COMPUTE, epoch: int = 0, measured: int = 100) -> PipelineProfile:
    """A pipeline with one mark, at its end."""
    end = StageProfile(2, seconds, 100.0, 1000)
    return PipelineProfile(cache, epoch, measured, end, (end,), {2: POOL})


def plenty(pools: Collection[str]) -> float:
    """Room for everything."""
    return 1e12


def gateway(redis: Redis) -> PipelineDecisions:
    """One gateway."""
    return PipelineDecisions(redis, Z, LONG, ReadTimes(redis, Z))


async def test_all_ranks_follow_one_decision(redis: Redis) -> None:
    """Rule: ranks that report at once to several gateways, with different times, get the same answer; the profiles of the first
    ranks are kept."""
    gateways = [gateway(redis) for _ in range(4)]
    reports = [profile(0.01 + 0.0001 * rank) for rank in range(16)]
    found = await asyncio.gather(
        *(gateways[rank % 4].decide("t/j", rank, one, plenty) for rank, one in enumerate(reports))
    )
    assert len({one.costs for one in found}) == 1
    known = await gateways[0].of(["t/j", "t/none"])
    assert sorted(known) == ["t/j"]
    assert sorted(known["t/j"].profiles) == list(range(DETAILED))
    assert len(known["t/j"].past) == 1


async def test_a_decision_outlives_the_gateway_and_goes_with_the_job(redis: Redis) -> None:
    """Rule: a decision stays in Redis until its job is forgotten or silent."""
    first = await gateway(redis).decide("t/j", 0, profile(), plenty)
    assert (first.stage, first.reason) == (2, CacheReason.FASTEST)
    other = gateway(redis)
    assert await other.known("t/j") == first
    assert await other.decide("t/j", 1, profile(0.0001, measured=5), plenty) == first
    assert 0 < await redis.pttl(f"{Z}job:t/j:pipeline") <= 1000 * LONG
    await other.forget("t/j")
    assert await other.known("t/j") is None


async def test_an_emptied_redis_changes_no_mark(redis: Redis) -> None:
    """Rule: a job that reads a mark goes on with it, and no epoch is computed again; others learn of the results again."""
    decisions = gateway(redis)
    await decisions.decide("t/one", 0, profile(), plenty)
    await redis.flushall()
    reading = profile(0.001, cache=2, epoch=3, measured=5)
    found = await decisions.decide("t/one", 0, reading, plenty)
    assert (found.stage, found.final, found.mode(2, 3)) == (2, True, "get")
    assert (await decisions.decide("t/one", 1, replace(reading, epoch=4), plenty)).stage == 2
    assert (await decisions.decide("t/two", 0, profile(measured=1), plenty)).stage == 2


async def test_a_second_job_begins_with_what_the_first_has_stored(redis: Redis) -> None:
    """Rule: from the first epoch with the mark in force on, others with the same results read them, without a profile."""
    decisions = gateway(redis)
    await decisions.decide("t/one", 0, profile(), plenty)
    before = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert before.reason is CacheReason.PROFILING
    await decisions.decide("t/one", 0, profile(cache=2, epoch=1), plenty)
    after = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert (after.stage, after.reason, after.projections[0].seconds) == (2, CacheReason.SHARED, 10.0)


async def test_results_that_do_not_pay_are_not_offered_to_others(redis: Redis) -> None:
    """Rule: a job that leaves a mark, as reading takes longer than computing, does not lead others to it."""
    decisions = gateway(redis)
    await decisions.decide("t/one", 0, profile(), plenty)
    for _ in range(3):
        found = await decisions.decide("t/one", 0, profile(0.5, cache=2, epoch=2), plenty)
    assert found.stage == COMPUTE
    await decisions.decide("t/one", 0, profile(), plenty)
    new = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert new.reason is CacheReason.PROFILING


async def test_an_operators_override_is_followed(redis: Redis) -> None:
    """Rule: a job with an override follows it; when it is lifted, the fleet decides again."""
    decisions = gateway(redis)
    assert (await decisions.decide("t/j", 0, profile(), plenty, "never")).reason is CacheReason.OVERRIDE
    assert (await decisions.decide("t/j", 0, profile(), plenty)).stage == 2
    past = (await decisions.of(["t/j"]))["t/j"].past
    assert [one.reason for one in past] == [CacheReason.FASTEST, CacheReason.OVERRIDE]
    assert past[0].at >= past[1].at > 1e9


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"stage": "two"}', '{"reason": "whim"}'])
async def test_what_is_in_redis_is_not_believed(redis: Redis, text: str) -> None:
    """Rule: an invalid document in Redis counts as absent, whichever document it is."""
    for name in ("decision", "past", "rank:0", "rank:one"):
        await redis.hset(f"{Z}job:t/j:pipeline", name, text)
    decisions = gateway(redis)
    assert (await decisions.of(["t/j"]))["t/j"].decision is None
    assert (await decisions.decide("t/j", 0, profile(), plenty)).stage == 2


async def test_decisions_of_an_earlier_version_are_read(redis: Redis) -> None:
    """Rule: a reason that this version does not give any more hides no other decision of the job."""
    old = {"at": 1.0, "epoch": 3, "stage": 0, "reason": "not-measured", "room": 5.0}
    await redis.hset(f"{Z}job:t/j:pipeline", "past", json.dumps([old | {"reason": "fastest"}, old]))
    past = (await gateway(redis).of(["t/j"]))["t/j"].past
    assert [one.reason for one in past] == [CacheReason.FASTEST, CacheReason.PROFILING]


# --- reads


async def test_reads_of_a_tenants_pipelines_add_up_by_size(redis: Redis) -> None:
    """Rule: reports of all ranks and gateways are one sum for each class of sizes; another tenant's are apart."""
    one, other = ReadTimes(redis, Z), ReadTimes(redis, Z)
    await asyncio.gather(
        *(times.add("t", ReadSums(10, 1000, 0.5, 0.25)) for times in (one, other) * 5),
        one.add("t", ReadSums(1, 100_000, 0.25, 0.125)),
        one.add("u", ReadSums(7, 700, 7.0, 7.0)),
    )
    assert sorted(await other.of("t")) == [ReadSums(1, 100_000, 0.25, 0.125), ReadSums(100, 10_000, 5.0, 2.5)]
    assert await other.of("u") == [ReadSums(7, 700, 7.0, 7.0)]
    assert await other.of("v") == []


async def test_a_report_of_slow_reads_raises_the_projection(redis: Redis) -> None:
    """Rule: the read times of one rank count in the decisions of all jobs of its tenant, and of no other tenant."""
    decisions = PipelineDecisions(redis, Z, LONG, ReadTimes(redis, Z))
    slow = replace(profile(cache=2, epoch=2), pools={2: "results:t/d/other"}, read=ReadSums(100, 10_000, 5.0, 5.0))
    await decisions.decide("t/reader", 0, slow, plenty)
    found = [await decisions.decide(job, 0, profile(), plenty) for job in ("t/next", "u/next")]
    assert [(one.stage, one.reason) for one in found] == [
        (COMPUTE, CacheReason.NOTHING_TO_GAIN),
        (2, CacheReason.FASTEST),
    ]
    assert [one.projections[1].seconds for one in found] == [
        pytest.approx(50.0, rel=0.05),
        pytest.approx(0.2, rel=0.05),
    ]


@pytest.mark.parametrize(
    "text", ["", "[1]", "[0, 1, 1, 1]", "[1, -1, 1, 1]", '[1, "x", 1, 1]', "[1e999, 1, 1, 1]", "[1, 1, NaN, 1]"]
)
async def test_sums_in_redis_are_not_believed(redis: Redis, text: str) -> None:
    """Rule: invalid sums in Redis count as absent, and the next report of their size replaces them."""
    await redis.hset(f"{Z}reads:t", "7", text)
    times = ReadTimes(redis, Z)
    assert await times.of("t") == []
    await times.add("t", ReadSums(1, 100, 0.5, 0.5))
    assert await times.of("t") == [ReadSums(1, 100, 0.5, 0.5)]
    assert await redis.pttl(f"{Z}reads:t") > 0
