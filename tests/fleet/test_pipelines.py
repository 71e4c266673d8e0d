"""Pipelines of jobs in Redis: ranks report, the leader decides once for all ranks and gateways, and results are shared."""

import json
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs import pipelines
from gateway.fleet.jobs.pipelines import DECIDING, DETAILED, PROFILE, Pipelines
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import COMPUTE, CacheReason
from gateway.policies.space.autoscale import ScaleSettings
from gateway.policies.space.pipelines import RankProfile
from gateway.policies.space.read_model import ReadSums
from tests.fleet.job_book import D1, LONG
from tests.fleet.pipeline_book import FENCE, POOL, RANKS, Fleet, Z, batches, profile


@pytest.fixture
def fleet(redis: Redis) -> Fleet:
    """Ranks and a leader."""
    return Fleet(redis)


# --- marks


async def test_all_ranks_follow_one_decision(fleet: Fleet) -> None:
    """Rule: ranks that report at once, with different times, get the same answer, also those that say nothing; the profiles of
    the first ranks are kept."""
    for rank in range(DETAILED):
        await fleet.report("t/j", rank, profile(0.01 + 0.0001 * rank))
    await fleet.turn()
    told = [await fleet.told("t/j", rank) for rank in range(RANKS)]
    assert len({decision.costs for decision, _ in told if decision is not None}) == 1
    assert all(decision is not None for decision, _ in told)
    records = await fleet.jobs.records()
    known = await fleet.pipelines.of([*records, replace(records[0], job="none")])
    assert sorted(known) == ["t/j"]
    assert sorted(known["t/j"].profiles) == list(range(DETAILED))
    assert known["t/j"].profiles[0].pools == {2: POOL}
    assert len(known["t/j"].past) == 1


async def test_a_decision_outlives_the_leader_and_goes_with_the_job(redis: Redis, fleet: Fleet) -> None:
    """Rule: a decision stays in Redis until its job is removed or silent, and another leader continues from it."""
    first = await fleet.decide("t/j", 0, profile())
    assert (first.stage, first.reason) == (2, CacheReason.FASTEST)
    assert await Fleet(redis).decide("t/j", 1, profile(0.0001, measured=5)) == first
    assert 0 < await redis.pttl(f"{Z}job:t/j:pipeline") <= 1000 * LONG
    await fleet.report("t/j", 0, profile(), batches(0.8, 1))
    await fleet.jobs.remove("t/j")
    assert await redis.keys(f"{Z}job:*") == []
    assert await fleet.waiting() == []
    assert await fleet.told("t/j") == (None, None)


async def test_an_emptied_redis_changes_no_mark(redis: Redis, fleet: Fleet) -> None:
    """Rule: a job that reads a mark goes on with it, and no epoch is computed again; until the leader's turn it is told nothing.
    Others learn of the results again."""
    await fleet.decide("t/one", 0, profile())
    await redis.flushall()
    reading = profile(0.001, cache=2, epoch=3, measured=5)
    assert (await fleet.report("t/one", 0, reading)).decision is None
    await fleet.turn()
    found, _ = await fleet.told("t/one")
    assert found is not None
    assert (found.stage, found.final, found.mode(2, 3)) == (2, True, "get")
    assert (await fleet.decide("t/one", 1, replace(reading, epoch=4))).stage == 2
    assert (await fleet.decide("t/two", 0, profile(measured=1))).stage == 2


async def test_a_second_job_begins_with_what_the_first_has_stored(fleet: Fleet) -> None:
    """Rule: from the first epoch with the mark in force on, others with the same results read them, without a profile of
    their own, even in the same turn."""
    await fleet.decide("t/one", 0, profile())
    before = await fleet.decide("t/two", 0, profile(measured=1))
    assert before.reason is CacheReason.PROFILING
    await fleet.report("t/one", 0, profile(cache=2, epoch=1))
    after = await fleet.decide("t/two", 0, profile(measured=1))
    assert (after.stage, after.reason, after.projections[0].seconds) == (2, CacheReason.SHARED, 10.0)


async def test_results_that_do_not_pay_are_not_offered_to_others(fleet: Fleet) -> None:
    """Rule: a job that leaves a mark, as reading takes longer than computing, does not lead others to it."""
    await fleet.decide("t/one", 0, profile())
    for _ in range(3):
        found = await fleet.decide("t/one", 0, profile(0.5, cache=2, epoch=2))
    assert found.stage == COMPUTE
    await fleet.decide("t/one", 0, profile())
    new = await fleet.decide("t/two", 0, profile(measured=1))
    assert new.reason is CacheReason.PROFILING


async def test_ranks_of_one_turn_decide_again_together(fleet: Fleet) -> None:
    """Rule: three profiles that differ decide again, though they arrive between two turns; further ones of that turn
    do not count."""
    await fleet.decide("t/j", 0, profile())
    for rank in range(DETAILED):
        await fleet.report("t/j", rank, profile(0.5, cache=2, epoch=2))
    await fleet.turn()
    decision, _ = await fleet.told("t/j")
    assert decision is not None
    assert decision.stage == COMPUTE
    assert DETAILED > DECIDING
    assert await fleet.waiting() == []


async def test_an_operators_override_is_followed(fleet: Fleet) -> None:
    """Rule: a job with an override follows it; when it is lifted, the fleet decides again."""
    assert (await fleet.decide("t/j", 0, profile(), "never")).reason is CacheReason.OVERRIDE
    assert (await fleet.decide("t/j", 0, profile())).stage == 2
    past = (await fleet.pipelines.of(await fleet.jobs.records()))["t/j"].past
    assert [one.reason for one in past] == [CacheReason.FASTEST, CacheReason.OVERRIDE]
    assert past[0].at >= past[1].at > 1e9


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"stage": "two"}', '{"reason": "whim"}', "5 {}", "5 []"])
async def test_what_is_in_redis_is_not_believed(redis: Redis, fleet: Fleet, text: str) -> None:
    """Rule: an invalid document in Redis counts as absent, whichever document it is, and does not come up again."""
    await fleet.report("t/j")
    for name in ("decision", "past", "rank:0", "rank:one"):
        await redis.hset(f"{Z}job:t/j:pipeline", name, text)
    for name in ("profile:0", "profile:one", "batches:0", "batches:one", "other", "profile:7"):
        await redis.hset(f"{Z}job:t/j:reports", name, text)
    await redis.zadd(f"{Z}reported", {"t/j": 1, "t/none": 0})
    assert (await fleet.pipelines.of(await fleet.jobs.records()))["t/j"].decision is None
    await fleet.turn()
    assert await fleet.told("t/j") == (None, None)
    assert await redis.keys(f"{Z}reported") == []
    assert (await fleet.decide("t/j", 0, profile())).stage == 2


async def test_decisions_of_an_earlier_version_are_read(redis: Redis, fleet: Fleet) -> None:
    """Rule: a reason that this version does not give any more hides no other decision of the job."""
    old = {"at": 1.0, "epoch": 3, "stage": 0, "reason": "not-measured", "room": 5.0}
    await fleet.report("t/j")
    await redis.hset(f"{Z}job:t/j:pipeline", "past", json.dumps([old | {"reason": "fastest"}, old]))
    past = (await fleet.pipelines.of(await fleet.jobs.records()))["t/j"].past
    assert [one.reason for one in past] == [CacheReason.FASTEST, CacheReason.PROFILING]


async def test_a_turn_decides_on_so_many_jobs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a turn is bounded, also where more jobs report than it decides on: those that have waited longest come first."""
    monkeypatch.setattr(pipelines, "JOBS", 2)
    names = ["t/c", "t/b", "t/a"]
    for name in names:
        await fleet.report(name, 0, profile())
    await fleet.report(names[0], 0, profile())
    await fleet.turn()
    assert [(await fleet.told(name))[0] is None for name in names] == [False, False, True]
    await fleet.turn()
    assert (await fleet.told(names[2]))[0] is not None


async def test_a_report_that_cannot_be_digested_holds_up_no_other_job(fleet: Fleet) -> None:
    """Rule: reports on which a rule fails change nothing, and are not read again; other jobs are decided on."""
    await fleet.report("t/a", 0, replace(profile(), read=ReadSums(0, 0, 0, 0)), batches(0.8, 1))
    await fleet.report("t/b", 0, profile())
    await fleet.turn()
    assert [(await fleet.told(name))[0] is None for name in ("t/a", "t/b")] == [True, False]
    assert await fleet.waiting() == []


# --- workers


async def test_workers_are_found_report_by_report(redis: Redis, fleet: Fleet) -> None:
    """Rule: one leader continues where another ended: workers are added while they help."""
    other = Fleet(redis)
    found = [
        await leader.workers("t/j", 0, batches(0.8 / min(workers, 4), workers))
        for leader, workers in ((fleet, 1), (other, 2), (fleet, 3), (other, 4), (fleet, 5), (other, 4))
    ]
    assert found == [2, 3, 4, 5, 4, 4]


async def test_ranks_and_jobs_are_apart(redis: Redis, fleet: Fleet) -> None:
    """Rule: each rank of each job has its own number of workers; a removed job starts over."""
    for job, rank in (("t/j", 0), ("t/j", 1), ("t/j", RANKS - 1), ("u/j", 0)):
        assert await fleet.workers(job, rank, batches(0.8, 1)) == 2
    assert await fleet.workers("t/j", 0, batches(0.4, 2)) == 3
    past = await fleet.pipelines.workers_of(["t/j", "u/j", "t/none"])
    assert {job: {rank: len(changes) for rank, changes in of.items()} for job, of in past.items()} == {
        "t/j": {0: 2, 1: 1},
        "u/j": {0: 1},
    }
    assert 0 < await redis.pttl(f"{Z}job:t/j:workers") <= 1000 * LONG
    await fleet.jobs.remove("t/j")
    assert await fleet.workers("t/j", 0, batches(0.8, 1)) == 2


@pytest.mark.parametrize("mode", ["unknown", "computing", "reading", "profiling"])
async def test_an_emptied_redis_takes_no_worker_away(redis: Redis, mode: str) -> None:
    """Rule: a job of which nothing is known keeps the workers that it reports, whatever becomes known of its mark, and is told
    nothing until the leader's turn; then the search goes on."""
    fleet = Fleet(redis, ScaleSettings(review=2))
    profiles = {
        "computing": profile(1e-9),
        "reading": profile(0.01, cache=2, epoch=3),
        "profiling": profile(measured=5),
    }
    said = batches(0.1, 8, 2 if mode == "reading" else COMPUTE, 3)
    await redis.flushall()
    assert (await fleet.report("t/j", 0, profiles.get(mode), said)).workers is None
    await fleet.turn()
    assert (await fleet.told("t/j"))[1] == 8
    assert await fleet.workers("t/j", 0, said) == 8
    if mode == "profiling":
        await fleet.decide("t/j", 0, profile(1e-9))
        assert await fleet.workers("t/j", 0, said) == 8
    found = [await fleet.workers("t/j", 0, replace(said, batch_time=0.2)) for _ in range(3)]
    assert found[-1] == 9


async def test_no_job_is_given_more_workers_than_allowed(redis: Redis) -> None:
    """Rule: what a job reports is bounded like what is decided."""
    fleet = Fleet(redis, ScaleSettings(most=8))
    assert await fleet.workers("t/j", 0, batches(0.1, 60_000)) == 8


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"workers": "many"}', '{"workers": 0}', '{"workers": 1000000}'])
async def test_states_in_redis_are_not_believed(redis: Redis, text: str) -> None:
    """Rule: an invalid or out-of-bounds state counts as absent."""
    fleet = Fleet(redis, ScaleSettings(most=8))
    await fleet.report("t/j")
    await redis.hset(f"{Z}job:t/j:workers", "0", text)
    assert await fleet.workers("t/j", 0, batches(0.8, 1)) == 2


# --- reads


async def sums(known: Pipelines, tenant: str) -> list[ReadSums]:
    """What is known of a tenant's reads."""
    return sorted((await known.reads([tenant]))[tenant].values())


async def test_reads_of_a_tenants_pipelines_add_up_by_size(fleet: Fleet) -> None:
    """Rule: reports of all jobs and turns are one sum for each class of sizes; another tenant's are apart."""
    for _ in range(2):
        for job in range(5):
            await fleet.report(f"t/{job}", 0, replace(profile(), read=ReadSums(10, 1000, 0.5, 0.25)))
        await fleet.turn()
    await fleet.report("t/j", 0, replace(profile(), read=ReadSums(1, 100_000, 0.25, 0.125)))
    await fleet.report("u/j", 0, replace(profile(), read=ReadSums(7, 700, 7.0, 7.0)))
    await fleet.turn()
    assert await sums(fleet.pipelines, "t") == [ReadSums(1, 100_000, 0.25, 0.125), ReadSums(100, 10_000, 5.0, 2.5)]
    assert await sums(fleet.pipelines, "u") == [ReadSums(7, 700, 7.0, 7.0)]
    assert await sums(fleet.pipelines, "v") == []


async def test_a_report_of_slow_reads_raises_the_projection(fleet: Fleet) -> None:
    """Rule: the read times of one rank count in the decisions of all jobs of its tenant, and of no other tenant."""
    slow = replace(profile(cache=2, epoch=2), pools={2: "e" * 64}, read=ReadSums(100, 10_000, 5.0, 5.0))
    await fleet.decide("t/reader", 0, slow)
    found = [await fleet.decide(job, 0, profile()) for job in ("t/next", "u/next")]
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
async def test_sums_in_redis_are_not_believed(redis: Redis, fleet: Fleet, text: str) -> None:
    """Rule: invalid sums in Redis count as absent, and the next report of their size replaces them."""
    await redis.hset(f"{Z}reads:t", "7", text)
    await redis.hset(f"{Z}reads:t", "seven", text)
    assert await sums(fleet.pipelines, "t") == []
    await fleet.decide("t/j", 0, replace(profile(), read=ReadSums(1, 100, 0.5, 0.5)))
    assert await sums(fleet.pipelines, "t") == [ReadSums(1, 100, 0.5, 0.5)]
    assert await redis.pttl(f"{Z}reads:t") > 0


# --- reports and turns that meet


class Meanwhile(Pipelines):
    """Pipelines of a leader between whose reading and writing something happens."""

    def __init__(self, redis: Redis, happens: Any) -> None:
        super().__init__(redis, Z, LONG)
        self._happens = happens

    async def stored(self, pools: Any) -> Any:
        """Read the last thing, then let it happen."""
        known = await super().stored(pools)
        await self._happens()
        return known


async def test_a_report_during_a_turn_is_left_for_the_next(redis: Redis, fleet: Fleet) -> None:
    """Rule: a report that a rank replaces while the leader decides counts, and the new one with the next turn; neither counts
    twice."""

    async def again() -> None:
        await fleet.report("t/j", 0, batches=batches(0.4, 2))

    usual = fleet.pipelines
    await fleet.report("t/j", 0, batches=batches(0.8, 1))
    await fleet.report("t/j", 1, batches=batches(0.8, 1))
    fleet.pipelines = Meanwhile(redis, again)
    await fleet.turn()
    fleet.pipelines = usual
    assert [(await fleet.told("t/j", rank))[1] for rank in range(2)] == [2, 2]
    assert await fleet.waiting() == ["t/j"]
    for _ in range(2):
        await fleet.turn()
        assert [(await fleet.told("t/j", rank))[1] for rank in range(2)] == [3, 2]


async def test_a_job_that_replaces_a_removed_one_inherits_nothing(redis: Redis, fleet: Fleet) -> None:
    """Rule: what is decided on a job that is removed meanwhile is dropped, though a job of the same name has taken its place."""

    async def another() -> None:
        await fleet.jobs.remove("t/j")
        await fleet.report("t/j")

    await fleet.report("t/j", 0, profile(), batches(0.1, 8))
    fleet.pipelines = Meanwhile(redis, another)
    await fleet.turn()
    assert await fleet.told("t/j") == (None, None)


async def test_who_does_not_lead_any_more_decides_nothing(fleet: Fleet) -> None:
    """Rule: a turn under an old fence changes nothing, and its reports are left for the successor."""
    await fleet.report("t/j", 0, profile(1e-9), batches(0.8, 1))
    await fleet.turn(fence=FENCE - 1)
    assert await fleet.told("t/j") == (None, None)
    await fleet.turn()
    decision, workers = await fleet.told("t/j")
    assert decision is not None
    assert (decision.final, workers) == (True, 2)


async def test_elements_are_those_of_all_ranks(fleet: Fleet) -> None:
    """Rule: a rank that has read a tenth of the items has counted a tenth of an epoch's elements."""
    await fleet.report("t/j")
    (known,) = await fleet.jobs.records()
    said = RankProfile(1, profile())
    assert known.items == 10
    assert said.of_job(10, lambda name: results_pool("t", D1, name)).end.elements == 10_000
    assert PROFILE.read(PROFILE.text(replace(said, items=0))).of_job(10, str).end.elements == 10_000  # type: ignore[union-attr]
