"""The job book in a real Redis: registration, heartbeats of ranks as one job, expiry."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.fleet.jobs import jobs as module
from gateway.fleet.jobs.jobs import HeardJob, Jobs, OtherDataset, TooManyJobs, merged
from gateway.fleet.redis import connection
from gateway.policies.fleet.job_limits import JobLimits
from gateway.policies.space.epochs import EpochReads
from gateway.policies.space.orders import Phase
from gateway.policies.space.probing import PhaseTotals
from tests.fleet.job_book import D1, D2, LONG, SHORT, beat, record
from tests.fleet.waiting import eventually


async def test_ranks_join_one_job(jobs: Jobs) -> None:
    """Rule: the first registration of a name is new, the others join it, and the latest values count."""
    assert await jobs.register(record()) is True
    assert await jobs.register(record()) is False
    assert await jobs.register(replace(record(), gpus=8)) is False
    _, known = await jobs.all()
    assert [(job.record.gpus, job.epoch) for job in known] == [(8, -1)]


async def test_a_name_belongs_to_one_dataset_at_a_time(jobs: Jobs) -> None:
    """Rule: a job of another dataset is refused while the name is taken, and changes nothing; after its removal it is free."""
    await jobs.register(record())
    with pytest.raises(OtherDataset):
        await jobs.register(record(dataset=D2))
    known = await jobs.find("t/j")
    assert known is not None
    assert known.record.dataset == D1
    assert await jobs.remove("t/j") is True
    assert await jobs.register(record(dataset=D2)) is True


async def test_the_zone_has_room_for_so_many(redis: Redis) -> None:
    """Rule: the number of jobs in a zone is bounded; at the bound, registered jobs continue."""
    jobs = Jobs(redis, "larder:z:", LONG, JobLimits(zone=2))
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    with pytest.raises(TooManyJobs):
        await jobs.register(record("c"))
    assert await jobs.register(record("b")) is False


async def test_a_tenant_has_room_for_so_many(redis: Redis) -> None:
    """Rule: one tenant cannot take all places; a place is free again when a job is removed, or gone."""
    jobs = Jobs(redis, "larder:z:", LONG, JobLimits(tenant=2))
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    with pytest.raises(TooManyJobs, match="the tenant has 2"):
        await jobs.register(record("c"))
    assert await jobs.register(record("b")) is False
    assert await jobs.register(record("c", tenant="u")) is True
    await jobs.remove("t/a")
    assert await jobs.register(record("c")) is True
    impatient = Jobs(redis, "larder:z:", SHORT)

    async def none() -> bool:
        return not await impatient.records()

    await eventually(none)
    assert await redis.keys("larder:z:job*") == []
    assert await jobs.register(record("d")) is True


async def test_jobs_are_listed_page_by_page(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a list of jobs over several pages has each job once, with its own ranks."""
    monkeypatch.setattr(connection, "PAGE", 2)
    for number in range(5):
        await jobs.register(record(str(number)))
        await jobs.beat(f"t/{number}", beat(epoch=number))
    _, known = await jobs.all()
    assert [(job.record.job, job.epoch, job.ranks_heard) for job in known] == [(str(n), n, 1) for n in range(5)]
    assert await jobs.records() == [job.record for job in known]


async def test_registrations_are_read_when_they_change(jobs: Jobs, redis: Redis) -> None:
    """Rule: every node asks with each heartbeat, so an unchanged answer costs no reading."""

    async def readings() -> int:
        return int((await redis.info("commandstats")).get("cmdstat_hgetall", {"calls": 0})["calls"])

    await jobs.register(record("a"))
    assert await jobs.records() == [record("a")]
    before = await readings()
    await jobs.register(record("a"))
    await jobs.beat("t/a", beat())
    assert await jobs.records() == [record("a")]
    assert await readings() == before
    await jobs.register(record("a", ranks=3))
    assert await jobs.records() == [record("a", ranks=3)]
    await jobs.register(record("b"))
    assert await jobs.records() == [record("a", ranks=3), record("b")]
    await jobs.remove("t/a")
    assert await jobs.records() == [record("b")]


async def test_registrations_of_earlier_versions_are_read_sooner_or_later(
    jobs: Jobs, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: nodes of earlier versions change a registration without raising its version; it is read again after a few calls."""
    monkeypatch.setattr(module, "_AGAIN", 3)
    await jobs.register(record("a"))
    assert await jobs.records() == [record("a")]
    value = await redis.hget("larder:z:jobs", "t/a")
    await redis.hset("larder:z:jobs", "t/a", value.replace(b'"ranks":2', b'"ranks":5'))
    assert [(await jobs.records())[0].ranks for _ in range(2)] == [2, 5]


async def test_jobs_are_told_apart_by_tenant_and_zone(jobs: Jobs, redis: Redis) -> None:
    """Rule: equal names of two tenants are two jobs, also when a tenant's name has a slash; zones are separate."""
    for tenant in ("t", "t/u", "u"):
        await jobs.register(record(tenant=tenant))
    assert [job.record.tenant for job in await jobs.of_tenant("t")] == ["t"]
    assert [job.record.tenant for job in await jobs.of_tenant("t/u")] == ["t/u"]
    assert await Jobs(redis, "larder:other:", LONG).all() == (pytest.approx(0, abs=1e11), [])


async def test_a_heartbeat_needs_a_job(jobs: Jobs) -> None:
    """Rule: the heartbeat of an unregistered job changes nothing, and its sender gets an error."""
    assert await jobs.beat("t/j", beat()) is None
    assert (await jobs.all())[1] == []


async def test_a_rank_that_the_job_has_not_is_not_kept(jobs: Jobs) -> None:
    """Rule: a heartbeat of rank 5 of a job with two ranks changes nothing."""
    await jobs.register(record())
    assert await jobs.beat("t/j", beat(rank=5), "{}", "{}") == HeardJob(record())
    known = await jobs.find("t/j")
    assert known is not None
    assert (known.epoch, known.ranks_heard) == (-1, 0)


async def test_the_slowest_rank_says_where_the_job_is(jobs: Jobs) -> None:
    """Rule: a job is where the rank is that has most left: lowest epoch first, then most of it left; items are summed."""
    await jobs.register(record(ranks=3))
    await jobs.beat("t/j", beat(0, 1, steps=12, seconds=6.0, items=30, hits=30))
    await jobs.beat("t/j", beat(1, 0, steps=9, seconds=6.0, items=30, hits=10))
    await jobs.beat("t/j", beat(2, 0, steps=9, seconds=6.0, items=30, hits=20))
    known = await jobs.find("t/j")
    assert known is not None
    assert (known.epoch, known.ranks_heard) == (0, 3)
    assert known.totals[Phase.STEADY] == PhaseTotals(10, 6.0, 0.0, 90, 60)


async def test_a_whole_epoch_is_kept_with_its_rank(jobs: Jobs) -> None:
    """Rule: what ranks read in their last whole epochs is added, and what earlier versions report has none."""
    await jobs.register(record())
    await jobs.beat("t/j", beat(0))
    known = await jobs.find("t/j")
    assert known is not None
    assert known.finished is None
    for rank in range(2):
        await jobs.beat("t/j", replace(beat(rank, 1), finished=EpochReads(0, 10, 3 + rank, 0.5)))
    known = await jobs.find("t/j")
    assert known is not None
    assert known.finished == EpochReads(0, 20, 7, 0.5, 2)


async def test_a_job_that_is_silent_is_gone(redis: Redis) -> None:
    """Rule: a silent job expires by Redis's clock, with its ranks."""
    jobs = Jobs(redis, "larder:z:", SHORT)
    await jobs.register(record())
    await jobs.beat("t/j", beat())

    async def gone() -> bool:
        return not (await jobs.all())[1]

    await eventually(gone)
    assert await jobs.beat("t/j", beat()) is None
    left = {key.decode() for key in await redis.keys("*")}
    assert left <= {"larder:z:sequence", "larder:z:sizes", "larder:z:registrations:version"}


def test_a_silent_rank_holds_nothing_up() -> None:
    """Rule: a silent rank does not count for the job's position, but its totals stay."""
    ages = [(0.1, beat(0, 3, steps=4)), (31.0, beat(1, 0, steps=2)), (0.1, beat(7, 0))]
    known = merged(record(), 0.0, 0.1, ages, 30.0)
    assert (known.epoch, known.ranks_heard) == (3, 1)
    assert known.totals[Phase.STEADY].steps == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=12))
def test_totals_never_shrink_while_ranks_only_go_on(said: list[tuple[int, int]]) -> None:
    """Rule: the job's totals only grow while its ranks' do, in any order of heartbeats."""
    ranks: dict[int, int] = {}
    before = PhaseTotals()
    for rank, more in said:
        ranks[rank] = ranks.get(rank, 0) + more
        beats = [(0.0, beat(number, steps=count, items=count, hits=count)) for number, count in ranks.items()]
        after = merged(record(ranks=3), 0.0, 0.0, beats, 30.0).totals[Phase.STEADY]
        assert (after.steps, after.items, after.hits) >= (before.steps, before.items, before.hits)
        before = after


async def test_what_a_job_registered_is_asked_for_without_its_ranks(jobs: Jobs, redis: Redis) -> None:
    """Rule: at the start of an epoch all ranks ask at once, and the cost of each does not grow with their number."""
    await jobs.register(record(ranks=64))
    for rank in range(64):
        await jobs.beat("t/j", beat(rank))
    await redis.config_resetstat()
    assert await jobs.record("t/j") == record(ranks=64)
    assert await jobs.record("t/k") is None
    assert not {"cmdstat_evalsha", "cmdstat_hgetall"} & set(await redis.info("commandstats"))


@pytest.mark.parametrize("text", ["", "no number {}", "1 {", "1 5", "1 {}", '1 {"tenant":"t","dataset":"d","ranks":1}'])
async def test_what_is_no_job_is_in_nobodys_way(jobs: Jobs, redis: Redis, text: str) -> None:
    """Rule: an entry of another version counts as an unknown job, which may register again; others are not affected."""
    await jobs.register(record("good"))
    await redis.hset("larder:z:jobs", "t/j", text)
    await redis.zadd("larder:z:jobs:seen", {"t/j": 2.0**52})
    assert [job.record.job for job in (await jobs.all())[1]] == ["good"]
    assert [job.job for job in await jobs.records()] == ["good"]
    assert [job.record.job for job in await jobs.of_tenant("t")] == ["good"]
    assert await jobs.find("t/j") is None
    assert await jobs.record("t/j") is None
    assert await jobs.beat("t/j", beat()) is None
    await redis.zadd("larder:z:jobs:seen", {"t/j": 1})
    assert await jobs.beat("t/good", beat()) is not None
    assert await redis.hkeys("larder:z:jobs") == [b"t/good"]
    await redis.hset("larder:z:jobs", "t/j", text)
    if '"tenant"' not in text:
        assert await jobs.register(record()) is True


@pytest.mark.parametrize("document", ['"ranks":0', '"ranks":-1', '"size":-5', '"items":1.5'])
async def test_a_job_out_of_bounds_is_unknown(jobs: Jobs, redis: Redis, document: str) -> None:
    """Rule: a registration with impossible numbers is ignored and does not affect decisions about other jobs."""
    await jobs.register(record("good"))
    await jobs.register(record())
    name = document.split(":")[0]
    text = (await redis.hget("larder:z:jobs", "t/j") or b"").decode()
    await redis.hset("larder:z:jobs", "t/j", re.sub(f"{name}:\\d+", document, text))
    await redis.hset("larder:z:job:t/j", "0", f"1 {beat().to_text()}")
    assert [job.record.job for job in (await jobs.all())[1]] == ["good"]


@pytest.mark.parametrize("text", ["", "1", "x {}", '1 {"e":0}', '1 {"e":0,"u":[],"l":-1,"t":{},"q":0}'])
async def test_a_heartbeat_that_cannot_be_read_hides_its_job(jobs: Jobs, redis: Redis, text: str) -> None:
    """Rule: a heartbeat of another version is ignored; other jobs are not affected."""
    await jobs.register(record("good"))
    await jobs.register(record())
    await redis.hset("larder:z:job:t/j", "0", text)
    assert [job.record.job for job in (await jobs.all())[1]] == ["good"]


async def test_sizes_outlive_jobs_until_nobody_needs_them(jobs: Jobs) -> None:
    """Rule: a dataset's size stays known for an operator's decision after its jobs ended, and is then forgotten."""
    await jobs.register(record())
    await jobs.remove("t/j")
    assert await jobs.sizes([D1, D2]) == {D1: (1000, 10, "auto")}
    await jobs.forget_sizes({D1})
    assert await jobs.sizes([D1]) == {D1: (1000, 10, "auto")}
    await jobs.forget_sizes(())
    assert await jobs.sizes([D1]) == {}
