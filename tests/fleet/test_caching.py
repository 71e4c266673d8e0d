"""Where pipelines cache, in Redis: one decision for all ranks and gateways, and results that others may read."""

import asyncio
from collections.abc import Collection

import pytest
from redis.asyncio import Redis

from gateway.fleet.caching import PipelineDecisions, override_name
from gateway.fleet.plans import Plans
from gateway.fleet.read_times import ENOUGH, ReadTimes
from gateway.policies.space.autocache import COMPUTE, CacheReason, ReadSums, StageProfile
from gateway.policies.space.cache_mode import PipelineProfile

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


async def measured(redis: Redis) -> ReadTimes:
    """Reads of a millisecond each."""
    times = ReadTimes(redis, Z)
    times.note(100, 10_000, 0.1)
    await times.turn()
    return times


async def gateway(redis: Redis) -> PipelineDecisions:
    """One gateway."""
    return PipelineDecisions(redis, Z, LONG, await measured(redis))


async def test_all_ranks_follow_one_decision(redis: Redis) -> None:
    """Rule: ranks that report at once to several gateways, with different times, get the same answer."""
    gateways = [await gateway(redis) for _ in range(4)]
    reports = [profile(0.01 + 0.0001 * rank) for rank in range(16)]
    found = await asyncio.gather(
        *(gateways[rank % 4].decide("t/j", rank, one, plenty) for rank, one in enumerate(reports))
    )
    assert len({one.costs for one in found}) == 1
    known = await gateways[0].of(["t/j", "t/none"])
    assert sorted(known) == ["t/j"]
    assert sorted(known["t/j"].profiles) == list(range(16))
    assert len(known["t/j"].past) == 1


async def test_a_decision_outlives_the_gateway_and_goes_with_the_job(redis: Redis) -> None:
    """Rule: it is in Redis until the job is forgotten or silent."""
    first = await (await gateway(redis)).decide("t/j", 0, profile(), plenty)
    assert (first.stage, first.reason) == (2, CacheReason.FASTEST)
    other = await gateway(redis)
    assert await other.known("t/j") == first
    assert await other.decide("t/j", 1, profile(0.0001, measured=5), plenty) == first
    assert 0 < await redis.pttl(f"{Z}job:t/j:pipeline") <= 1000 * LONG
    await other.forget("t/j")
    assert await other.known("t/j") is None


async def test_a_second_job_begins_with_what_the_first_has_stored(redis: Redis) -> None:
    """Rule: from the first epoch with the mark in force on, others with the same results read them, without a profile."""
    decisions = await gateway(redis)
    await decisions.decide("t/one", 0, profile(), plenty)
    before = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert before.reason is CacheReason.PROFILING
    await decisions.decide("t/one", 0, profile(cache=2, epoch=1), plenty)
    after = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert (after.stage, after.reason, after.projections[0].seconds) == (2, CacheReason.SHARED, 10.0)


async def test_results_that_do_not_pay_are_not_offered_to_others(redis: Redis) -> None:
    """Rule: a job that leaves a mark, as reading takes longer than computing, does not lead others to it."""
    decisions = await gateway(redis)
    await decisions.decide("t/one", 0, profile(), plenty)
    for _ in range(3):
        found = await decisions.decide("t/one", 0, profile(0.5, cache=2, epoch=2), plenty)
    assert found.stage == COMPUTE
    await decisions.decide("t/one", 0, profile(), plenty)
    new = await decisions.decide("t/two", 0, profile(measured=1), plenty)
    assert new.reason is CacheReason.PROFILING


async def test_an_operators_override_is_followed(redis: Redis) -> None:
    """Rule: in the words of other overrides, by the job; when it is lifted, the fleet decides again."""
    decisions, plans = await gateway(redis), Plans(redis, Z)
    await plans.override(override_name("t/j"), "never")
    assert (await decisions.decide("t/j", 0, profile(), plenty)).reason is CacheReason.OVERRIDE
    assert (await decisions.decide("t/k", 0, profile(), plenty)).stage == 2
    await plans.override(override_name("t/j"), "")
    assert (await decisions.decide("t/j", 0, profile(), plenty)).stage == 2
    past = (await decisions.of(["t/j"]))["t/j"].past
    assert [one.reason for one in past] == [CacheReason.FASTEST, CacheReason.OVERRIDE]
    assert past[0].at >= past[1].at > 1e9


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"stage": "two"}', '{"reason": "whim"}'])
async def test_what_is_in_redis_is_not_believed(redis: Redis, text: str) -> None:
    """Rule: a document that does not fit counts as none, wherever it is."""
    for name in ("decision", "past", "rank:0", "rank:one"):
        await redis.hset(f"{Z}job:t/j:pipeline", name, text)
    await redis.hset(f"{Z}reads", mapping={"3:elements": text, "x": text, "7:elements": "1"})
    decisions = await gateway(redis)
    assert (await decisions.of(["t/j"]))["t/j"].decision is None
    assert (await decisions.decide("t/j", 0, profile(), plenty)).stage == 2


# --- reads


async def test_reads_of_all_workers_add_up_by_size(redis: Redis) -> None:
    """Rule: elements of similar size are one sum; an answer without elements is none."""
    one, other = ReadTimes(redis, Z), ReadTimes(redis, Z)
    for times in (one, other):
        times.note(10, 1000, 0.5)
        times.note(1, 100_000, 0.25)
        times.note(0, 0, 1.0)
        await times.turn()
    assert await one.all() == [ReadSums(20, 2000, 1.0), ReadSums(2, 200_000, 0.5)]
    await one.turn()
    assert await other.all() == [ReadSums(20, 2000, 1.0), ReadSums(2, 200_000, 0.5)]


async def test_the_latest_reads_count_most(redis: Redis) -> None:
    """Rule: sums of many elements are halved before more are added."""
    times = ReadTimes(redis, Z)
    for seconds in (100.0, 1.0):
        times.note(ENOUGH, 100 * ENOUGH, seconds)
        await times.turn()
    assert await times.all() == [ReadSums(1.5 * ENOUGH, 150 * ENOUGH, 51.0)]


async def test_reads_are_kept_while_redis_is_down(redis: Redis) -> None:
    """Rule: what could not be added is added later."""
    lost = Redis.from_url("redis://127.0.0.1:1/0")
    times, working = ReadTimes(lost, Z), ReadTimes(redis, Z)
    times.note(1, 100, 0.5)
    await times.turn()
    times.note(1, 100, 0.5)
    times._redis, times._add = working._redis, working._add
    await times.turn()
    assert await times.all() == [ReadSums(2, 200, 1.0)]
    await lost.aclose()
