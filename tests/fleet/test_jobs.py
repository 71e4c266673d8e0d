"""The job book in a real Redis: registration, heartbeats of ranks as one job, expiry, and the order of an epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.fleet import jobs as module
from gateway.fleet.connection import commands
from gateway.fleet.embedded import EmbeddedRedis
from gateway.fleet.jobs import Beat, JobRecord, Jobs, OtherDataset, TooManyJobs, merged
from gateway.policies.plan import Phase
from gateway.policies.probing import PhaseTotals
from tests.fleet.waiting import eventually

D1, D2 = "1" * 64, "2" * 64
LONG = 1000.0
SHORT = 0.2


def record(job: str = "j", dataset: str = D1, tenant: str = "t", ranks: int = 2) -> JobRecord:
    """A registration."""
    return JobRecord(tenant, job, dataset, "name", 4, 32, ranks, "auto", "default", "key", 1000, 10, "auto")


def beat(rank: int = 0, epoch: int = 0, upcoming: tuple[int, ...] = (1, 2, 0), left: int = 3, **totals: float) -> Beat:
    """A heartbeat; totals are of the steady phase."""
    counts = PhaseTotals(**totals) if totals else PhaseTotals()  # type: ignore[arg-type]
    return Beat(rank, epoch, upcoming, left, {Phase.STEADY: counts})


@pytest.fixture
async def redis(redis_server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A connection for commands."""
    connection = commands(redis_server.url, 5.0)
    yield connection
    await connection.aclose()


@pytest.fixture
def jobs(redis: Redis) -> Jobs:
    """The book of a zone in which nobody is silent for too long."""
    return Jobs(redis, "larder:z:", LONG)


async def test_ranks_join_one_job(jobs: Jobs) -> None:
    """Rule: the first registration of a name is new, the others join it, and what was said last counts."""
    assert await jobs.register(record()) is True
    assert await jobs.register(record()) is False
    assert await jobs.register(replace(record(), gpus=8)) is False
    _, known = await jobs.all()
    assert [(job.record.gpus, job.epoch, job.upcoming) for job in known] == [(8, -1, ())]


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


async def test_the_zone_has_room_for_so_many(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the jobs of a zone are bounded; those that are there go on."""
    monkeypatch.setattr(module, "MOST_JOBS", 2)
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    with pytest.raises(TooManyJobs):
        await jobs.register(record("c"))
    assert await jobs.register(record("b")) is False


async def test_a_tenant_has_room_for_so_many(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: nobody takes the places of all others; a place is free again when a job is removed, or gone."""
    monkeypatch.setattr(module, "MOST_OF_TENANT", 2)
    jobs = Jobs(redis, "larder:z:", LONG)
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    with pytest.raises(TooManyJobs, match="you have 2"):
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
    """Rule: each with its own ranks, however many questions it takes."""
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    for number in range(5):
        await jobs.register(record(str(number)))
        await jobs.beat(f"t/{number}", beat(epoch=number))
    _, known = await jobs.all()
    assert [(job.record.job, job.epoch, job.ranks_heard) for job in known] == [(str(n), n, 1) for n in range(5)]
    assert await jobs.records() == [job.record for job in known]


async def test_jobs_are_told_apart_by_tenant_and_zone(jobs: Jobs, redis: Redis) -> None:
    """Rule: equal names of two tenants are two jobs, also when a tenant's name has a slash; another zone has none of them."""
    for tenant in ("t", "t/u", "u"):
        await jobs.register(record(tenant=tenant))
    assert [job.record.tenant for job in await jobs.of_tenant("t")] == ["t"]
    assert [job.record.tenant for job in await jobs.of_tenant("t/u")] == ["t/u"]
    assert await Jobs(redis, "larder:other:", LONG).all() == (pytest.approx(0, abs=1e11), [])


async def test_a_heartbeat_needs_a_job(jobs: Jobs) -> None:
    """Rule: the heartbeat of a job that nobody registered changes nothing, and its sender is told."""
    assert await jobs.beat("t/j", beat()) is None
    assert (await jobs.all())[1] == []


async def test_a_rank_that_the_job_has_not_is_not_kept(jobs: Jobs) -> None:
    """Rule: a heartbeat of rank 5 of a job with two ranks leaves the job as it was."""
    await jobs.register(record())
    assert await jobs.beat("t/j", beat(rank=5)) == record()
    known = await jobs.find("t/j")
    assert known is not None
    assert (known.epoch, known.ranks_heard) == (-1, 0)


async def test_the_slowest_rank_says_where_the_job_is(jobs: Jobs) -> None:
    """Rule: a job is where the rank is that has most left: lowest epoch first, then most of it left; items are summed."""
    await jobs.register(record(ranks=3))
    await jobs.beat("t/j", beat(0, 1, (5, 6, 7), 3, steps=12, seconds=6.0, items=30, hits=30))
    await jobs.beat("t/j", beat(1, 0, (9, 5, 6), 1, steps=9, seconds=6.0, items=30, hits=10))
    await jobs.beat("t/j", beat(2, 0, (8, 9, 5), 2, steps=9, seconds=6.0, items=30, hits=20))
    known = await jobs.find("t/j")
    assert known is not None
    assert (known.epoch, known.upcoming, known.epoch_left, known.ranks_heard) == (0, (8, 9, 5), 2, 3)
    assert known.totals[Phase.STEADY] == PhaseTotals(10, 6.0, 0.0, 90, 60)


async def test_a_job_that_is_silent_is_gone(redis: Redis) -> None:
    """Rule: after the time of silence on Redis's clock nothing is left of a job: neither itself nor its ranks nor its orders."""
    jobs = Jobs(redis, "larder:z:", SHORT)
    await jobs.register(record())
    await jobs.beat("t/j", beat())
    await jobs.order("t/j", 0, [0, 1, 2], None)

    async def gone() -> bool:
        return not (await jobs.all())[1]

    await eventually(gone)
    assert await jobs.beat("t/j", beat()) is None
    left = {key.decode() for key in await redis.keys("*")}
    assert left <= {"larder:z:sequence", "larder:z:sizes"}


def test_a_silent_rank_holds_nothing_up() -> None:
    """Rule: a rank that was silent for too long says nothing about the job's place, but what it has counted stays."""
    ages = [(0.1, beat(0, 3, (1,), 1, steps=4)), (31.0, beat(1, 0, (7,), 1, steps=2)), (0.1, beat(7, 0, (5,), 1))]
    known = merged(record(), 0.0, 0.1, ages, 30.0)
    assert (known.epoch, known.upcoming, known.ranks_heard) == (3, (1,), 1)
    assert known.totals[Phase.STEADY].steps == 3


def test_a_rank_that_has_ended_holds_nothing_up() -> None:
    """Rule: a rank with nothing upcoming says nothing about the job's place, unless all ranks have ended."""
    ended = (0.1, beat(0, 2, (), 0))
    known = merged(record(), 0.0, 0.1, [ended, (0.1, beat(1, 4, (6, 7), 2))], 30.0)
    assert (known.epoch, known.upcoming, known.ranks_heard) == (4, (6, 7), 2)
    known = merged(record(), 0.0, 0.1, [ended, (0.1, beat(1, 4, (), 0))], 30.0)
    assert (known.upcoming, known.epoch_left) == ((), 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=12))
def test_totals_never_shrink_while_ranks_only_go_on(said: list[tuple[int, int]]) -> None:
    """Rule: whichever rank is heard of in whichever order, the job's totals only grow as long as the ranks' own do."""
    ranks: dict[int, int] = {}
    before = PhaseTotals()
    for rank, more in said:
        ranks[rank] = ranks.get(rank, 0) + more
        beats = [(0.0, beat(number, steps=count, items=count, hits=count)) for number, count in ranks.items()]
        after = merged(record(ranks=3), 0.0, 0.0, beats, 30.0).totals[Phase.STEADY]
        assert (after.steps, after.items, after.hits) >= (before.steps, before.items, before.hits)
        before = after


# --- the order of an epoch


async def test_every_rank_gets_the_order_of_the_first(jobs: Jobs) -> None:
    """Rule: of all that ask for the order of an epoch at once, whatever they propose, everybody gets the same answer."""
    await jobs.register(record(ranks=8))
    proposals = [[*range(place, 8), *range(place)] for place in range(8)]
    orders = await asyncio.gather(*(jobs.order("t/j", 0, proposal, None) for proposal in proposals))
    assert orders[0] in proposals
    assert all(order == orders[0] for order in orders)
    assert await jobs.order("t/j", 0, [7, 6, 5, 4, 3, 2, 1, 0], None) == orders[0]


async def test_what_a_job_registered_is_asked_for_without_its_ranks(jobs: Jobs, redis: Redis) -> None:
    """Rule: at the start of an epoch all ranks ask at once, and what each costs does not grow with how many they are."""
    await jobs.register(record(ranks=64))
    for rank in range(64):
        await jobs.beat("t/j", beat(rank))
    await redis.config_resetstat()
    assert await jobs.record("t/j") == record(ranks=64)
    assert await jobs.record("t/k") is None
    assert not {"cmdstat_evalsha", "cmdstat_hgetall"} & set(await redis.info("commandstats"))


@pytest.mark.parametrize("text", ["", "no number {}", "1 {", "1 5", "1 {}", '1 {"tenant":"t","dataset":"d","ranks":1}'])
async def test_what_is_no_job_is_in_nobodys_way(jobs: Jobs, redis: Redis, text: str) -> None:
    """Rule: what another version wrote, or nobody, is an unknown job: the others go on, and it may register again."""
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
        assert await jobs.order("t/j", 0, [0, 1], None) is None
        assert await jobs.register(record()) is True


async def test_an_unknown_job_has_no_order(jobs: Jobs) -> None:
    """Rule: nobody registered it, so nothing is decided for it."""
    assert await jobs.order("t/j", 0, [0, 1], None) is None


async def three(jobs: Jobs) -> None:
    """Jobs a, b and c on one dataset, of one rank each."""
    for name in "abc":
        await jobs.register(record(name, ranks=1))


async def at(jobs: Jobs, job: str, epoch: int, left: int) -> None:
    """A job says that it has so many chunks left."""
    assert await jobs.beat(f"t/{job}", beat(0, epoch, tuple(range(left)), left)) is not None


async def test_who_joins_others_follows_their_sequence_from_the_active_chunk(jobs: Jobs) -> None:
    """Rule: with chunks in rotation and others in the middle of theirs, a job takes their sequence, begun at the active chunk."""
    await three(jobs)
    assert await jobs.order("t/a", 0, [3, 1, 0, 2], -1) == [3, 1, 0, 2]
    await at(jobs, "a", 0, 3)
    assert await jobs.order("t/b", 0, [0, 1, 2, 3], 0) == [0, 2, 3, 1]
    assert await jobs.order("t/b", 1, [0, 1, 2, 3], 2) == [2, 3, 1, 0]


async def test_jobs_that_begin_together_begin_with_the_same_chunk(jobs: Jobs) -> None:
    """Rule: while the others are in the first chunk of their epoch, told or not, their order is taken from its beginning,
    whatever the plan says; a chunk that was left from before, or the one of the epoch before, is no place to begin."""
    await three(jobs)
    assert await jobs.order("t/a", 0, [4, 2, 0, 3, 1], 3) == [4, 2, 0, 3, 1]
    assert await jobs.order("t/b", 7, [0, 1, 2, 3, 4], 3) == [4, 2, 0, 3, 1]
    await at(jobs, "a", 0, 5)
    assert await jobs.order("t/c", 0, [0, 1, 2, 3, 4], 0) == [4, 2, 0, 3, 1]


async def test_who_is_nearer_to_the_second_chunk_begins_there(jobs: Jobs) -> None:
    """Rule: when the plan says that those in the first chunk are more than half through it, the second is where to begin; and for
    those who begin together with that job as well."""
    await three(jobs)
    await jobs.order("t/a", 0, [4, 2, 0, 3, 1], -1)
    assert await jobs.order("t/b", 0, [0, 1, 2, 3, 4], 2) == [2, 0, 3, 1, 4]
    await jobs.remove("t/a")
    assert await jobs.order("t/c", 0, [0, 1, 2, 3, 4], 2) == [2, 0, 3, 1, 4]


async def test_the_sequence_changes_when_all_open_a_new_epoch(jobs: Jobs) -> None:
    """Rule: who opens an epoch while the others have at most two chunks left sets a new sequence, which the others take from its
    beginning; also if nothing was heard of the first one in the meantime, and though it proposes something else."""
    await three(jobs)
    for name in "abc":
        assert await jobs.order(f"t/{name}", 0, [4, 2, 0, 3, 1], -1) == [4, 2, 0, 3, 1]
    for name, left in {"a": 0, "b": 1, "c": 2}.items():
        await at(jobs, name, 0, left)
    assert await jobs.order("t/a", 1, [0, 1, 2, 3, 4], 1) == [0, 1, 2, 3, 4]
    assert await jobs.order("t/b", 1, [3, 1, 4, 0, 2], 3) == [0, 1, 2, 3, 4]
    await at(jobs, "a", 1, 5)
    assert await jobs.order("t/c", 1, [4, 3, 2, 1, 0], 0) == [0, 1, 2, 3, 4]


async def test_who_opens_an_epoch_while_others_are_in_the_middle_follows_them(jobs: Jobs) -> None:
    """Rule: one job with more than two chunks left is enough for the sequence to stay."""
    await three(jobs)
    for name in "abc":
        await jobs.order(f"t/{name}", 0, [4, 2, 0, 3, 1], -1)
    await at(jobs, "b", 0, 1)
    await at(jobs, "c", 0, 3)
    assert await jobs.order("t/a", 1, [0, 1, 2, 3, 4], 0) == [0, 3, 1, 4, 2]


async def test_who_follows_others_does_not_begin_with_what_it_has_just_used(jobs: Jobs) -> None:
    """Rule: a job that ends its epoch while others are in the middle of theirs goes on with them after the last chunk it used, if
    the plan says that one or the one before; it is not sent back to it."""
    await three(jobs)
    for name in "ab":
        await jobs.order(f"t/{name}", 0, [4, 2, 0, 3, 1], -1)
    await at(jobs, "b", 0, 3)
    for epoch, active in enumerate((1, 4), 1):
        assert await jobs.order("t/a", epoch, [0, 1, 2, 3, 4], active) == [4, 2, 0, 3, 1]
    assert await jobs.order("t/a", 3, [0, 1, 2, 3, 4], 3) == [4, 2, 0, 3, 1]
    assert await jobs.order("t/a", 4, [0, 1, 2, 3, 4], 0) == [0, 3, 1, 4, 2]


async def test_a_rank_that_is_late_in_the_epoch_before_changes_nothing(jobs: Jobs) -> None:
    """Rule: a job that has opened an epoch is at its beginning, though the last heartbeat of one of its ranks comes after that;
    one that begins again, epochs before, is where it says."""
    await three(jobs)
    await jobs.order("t/a", 7, [4, 2, 0, 3, 1], -1)
    await at(jobs, "a", 6, 1)
    assert await jobs.order("t/b", 7, [0, 1, 2, 3, 4], -1) == [4, 2, 0, 3, 1]
    await at(jobs, "a", 2, 1)
    await at(jobs, "b", 7, 2)
    assert await jobs.order("t/c", 7, [0, 1, 2, 3, 4], -1) == [0, 1, 2, 3, 4]


async def test_places_leave_with_their_jobs(jobs: Jobs, redis: Redis) -> None:
    """Rule: nothing is kept of where a job was that is not there, whatever became of its registration."""
    await three(jobs)
    for name in "abc":
        await jobs.order(f"t/{name}", 0, [1, 0, 2], -1)
    await jobs.remove("t/a")
    assert set(await redis.hkeys(f"larder:z:places:{D1}")) == {b"t/b", b"t/c"}
    await redis.hset("larder:z:jobs", "t/b", "not a registration")
    await redis.zrem(f"larder:z:using:{D1}", "t/b", "t/c")
    await jobs.order("t/c", 1, [1, 0, 2], -1)
    assert await redis.hkeys(f"larder:z:places:{D1}") == [b"t/c"]


@pytest.mark.parametrize("why", ["alone", "not rotated", "cut otherwise", "the others ended"])
async def test_who_joins_nobody_takes_its_own_order(jobs: Jobs, why: str) -> None:
    """Rule: alone, with a dataset that is not rotated, or cut into another number of chunks, a job gets what it proposed."""
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    if why != "alone":
        await jobs.order("t/a", 0, [2, 1, 0], 1)
    if why == "the others ended":
        await jobs.remove("t/a")
    proposal = [3, 0, 2, 1] if why == "cut otherwise" else [0, 1, 2]
    assert await jobs.order("t/b", 0, proposal, None if why == "not rotated" else 1) == proposal


async def test_a_job_of_other_chunks_leads_nobody(jobs: Jobs) -> None:
    """Rule: who was cut into other chunks than the fleet rotates takes its own order, and leaves the others theirs."""
    for name in ("a", "odd", "b"):
        await jobs.register(record(name))
    assert await jobs.order("t/a", 0, [2, 0, 1], 0) == [2, 0, 1]
    assert await jobs.order("t/odd", 0, [1, 0], 0, leads=False) == [1, 0]
    assert await jobs.order("t/b", 0, [0, 2, 1], 0) == [0, 1, 2]
    assert await jobs.order("t/odd", 1, [0, 1], 0, leads=False) == [0, 1]
    for name in "ab":
        await at(jobs, name, 0, 1)
    assert await jobs.order("t/b", 1, [0, 2, 1], 0) == [0, 2, 1]


async def test_other_datasets_have_sequences_of_their_own(jobs: Jobs) -> None:
    """Rule: only jobs on the same dataset follow one another."""
    await jobs.register(record("a"))
    await jobs.register(record("b", D2))
    await jobs.order("t/a", 0, [2, 1, 0], 1)
    assert await jobs.order("t/b", 0, [0, 1, 2], 1) == [0, 1, 2]


async def test_old_orders_are_forgotten(jobs: Jobs, redis: Redis) -> None:
    """Rule: the four newest epochs of a job are kept; who asks for an older one has begun again, and decides anew."""
    await jobs.register(record())
    for epoch in range(20):
        await jobs.order("t/j", epoch, [0, 1, 2], None)
    assert sorted(map(int, await redis.hkeys("larder:z:job:t/j:epochs"))) == [16, 17, 18, 19]
    assert await jobs.order("t/j", 3, [2, 1, 0], None) == [2, 1, 0]
    assert await jobs.order("t/j", 3, [0, 1, 2], None) == [2, 1, 0]


async def test_sizes_outlive_jobs_until_nobody_needs_them(jobs: Jobs) -> None:
    """Rule: what a dataset's size is stays known for an operator's decision after its jobs ended, and is then forgotten."""
    await jobs.register(record())
    await jobs.remove("t/j")
    assert await jobs.sizes([D1, D2]) == {D1: (1000, 10, "auto")}
    await jobs.forget_sizes({D1})
    assert await jobs.sizes([D1]) == {D1: (1000, 10, "auto")}
    await jobs.forget_sizes(())
    assert await jobs.sizes([D1]) == {}
