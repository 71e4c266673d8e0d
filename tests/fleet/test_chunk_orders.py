"""The order of an epoch in a real Redis: ranks, jobs and nodes of two versions that ask at the same time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.redis.compare_and_set import TRIES, Change, CompareAndSet, Contended
from gateway.policies.space.chunk_order import Opening
from tests.fleet.job_book import D1, D2, LONG, beat, order, record


async def test_every_rank_gets_the_order_of_the_first(jobs: Jobs) -> None:
    """Rule: concurrent requests for the order of an epoch get the same answer, even if they propose different orders."""
    await jobs.register(record(ranks=8))
    proposals = [[*range(place, 8), *range(place)] for place in range(8)]
    orders = await asyncio.gather(*(order(jobs, "t/j", 0, proposal, None) for proposal in proposals))
    assert orders[0] in proposals
    assert all(order == orders[0] for order in orders)
    assert await order(jobs, "t/j", 0, [7, 6, 5, 4, 3, 2, 1, 0], None) == orders[0]


async def test_jobs_that_open_at_once_take_one_sequence(jobs: Jobs) -> None:
    """Rule: of jobs that open an epoch of one dataset at the same time, one sets the sequence and the others follow it."""
    names = [f"j{number}" for number in range(16)]
    for name in names:
        await jobs.register(record(name, ranks=1))
    for epoch in (0, 1):
        proposals = [[*range(place, 8), *range(place)] for place in range(8)] * 2
        orders = await asyncio.gather(
            *(order(jobs, f"t/{name}", epoch, proposal, -1) for name, proposal in zip(names, proposals, strict=True))
        )
        assert len({tuple(found or ()) for found in orders}) == 1
        for name in names:
            await at(jobs, name, epoch, 1)


Deciding = Callable[[], Awaitable[Change[tuple[int, ...] | None]]]


async def decided(jobs: Jobs, asked: Opening) -> Deciding:
    """Decide now, return this decision from the first call, and decide again in later calls."""
    made = [await jobs._open(asked.job, asked)]

    async def decide() -> Change[tuple[int, ...] | None]:
        return made.pop() if made else await jobs._open(asked.job, asked)

    return decide


async def test_a_sequence_set_anew_is_seen_though_it_is_the_same(jobs: Jobs, redis: Redis) -> None:
    """Rule: a job that decided while another set the sequence again, unchanged, decides again and follows it."""
    await three(jobs)
    assert await order(jobs, "t/a", 0, [2, 1, 0], -1) == [2, 1, 0]
    await at(jobs, "a", 0, 1)
    late = await decided(jobs, Opening("t/b", 1, (0, 1, 2), -1))
    assert await order(jobs, "t/a", 1, [2, 1, 0], -1) == [2, 1, 0]
    assert await CompareAndSet(redis)(late) == (2, 1, 0)


async def test_a_redis_that_lost_everything_gets_no_order(jobs: Jobs, redis: Redis) -> None:
    """Rule: orders from before Redis lost its data are not written into it; the job registers and asks again."""
    await jobs.register(record())
    late = await decided(jobs, Opening("t/j", 0, (0, 1, 2), -1))
    await redis.flushdb()
    assert await CompareAndSet(redis)(late) is None
    assert await redis.keys("*") == []
    await jobs.register(record())
    assert await order(jobs, "t/j", 0, [2, 1, 0], -1) == [2, 1, 0]


async def test_what_changes_at_every_attempt_is_given_up(redis: Redis) -> None:
    """Rule: a change is tried a bounded number of times; the error then lets clients try again."""
    tries = 0

    async def decide() -> Change[None]:
        nonlocal tries
        tries += 1
        return Change(None, [("hash", "field", b"never there")], [("SET", "done", "1")])

    with pytest.raises(Contended):
        await CompareAndSet(redis)(decide)
    assert tries == TRIES
    assert isinstance(Contended(), DOWN)
    assert await redis.get("done") is None


@pytest.mark.parametrize("first", ["old", "new"])
async def test_old_and_new_nodes_give_one_order(jobs: Jobs, redis: Redis, first: str) -> None:
    """Rule: with a node of an older version, which decides in its own script, all ranks of a job get one order from either node,
    jobs follow one another's sequence, and each node reads the other's entries."""
    script = redis.register_script((Path(__file__).parent / "order_of_version_1.lua").read_text())

    async def old(key: str, epoch: int, proposal: list[int], begin: int) -> list[int] | None:
        arguments = [round(1000 * LONG), key, epoch, json.dumps(proposal), begin, 4, 1]
        found = await script(keys=["larder:z:"], args=arguments)
        return None if found is None else json.loads(found)

    async def new(key: str, epoch: int, proposal: list[int], begin: int) -> list[int] | None:
        return await order(jobs, key, epoch, proposal, begin)

    one, other = (old, new) if first == "old" else (new, old)
    await three(jobs)
    for epoch in range(6):
        ranks = (
            ask("t/a", epoch, [epoch % 5, *(n for n in range(5) if n != epoch % 5)], -1) for ask in (one, other) * 8
        )
        orders = await asyncio.gather(*ranks)
        assert all(found == orders[0] for found in orders)
        await at(jobs, "a", epoch, 3)
        turned = [[*orders[0][start:], *orders[0][:start]] for start in range(5)]
        assert await other("t/b", epoch, [4, 3, 2, 1, 0], orders[0][2]) in turned
        await at(jobs, "a", epoch, 1)
        await at(jobs, "b", epoch, 1)
    assert sorted(map(int, await redis.hkeys("larder:z:job:t/a:epochs"))) == [2, 3, 4, 5]


async def test_an_unknown_job_has_no_order(jobs: Jobs) -> None:
    """Rule: an unregistered job gets no order."""
    assert await order(jobs, "t/j", 0, [0, 1], None) is None


async def three(jobs: Jobs) -> None:
    """Jobs a, b and c on one dataset, of one rank each."""
    for name in "abc":
        await jobs.register(record(name, ranks=1))


async def at(jobs: Jobs, job: str, epoch: int, left: int) -> None:
    """Report that a job has this number of chunks left."""
    assert await jobs.beat(f"t/{job}", beat(0, epoch, tuple(range(left)), left)) is not None


async def test_who_joins_others_follows_their_sequence_from_the_active_chunk(jobs: Jobs) -> None:
    """Rule: a job that joins others in mid-epoch takes their sequence, rotated to begin at the active chunk."""
    await three(jobs)
    assert await order(jobs, "t/a", 0, [3, 1, 0, 2], -1) == [3, 1, 0, 2]
    await at(jobs, "a", 0, 3)
    assert await order(jobs, "t/b", 0, [0, 1, 2, 3], 0) == [0, 2, 3, 1]
    assert await order(jobs, "t/b", 1, [0, 1, 2, 3], 2) == [2, 3, 1, 0]


async def test_jobs_that_begin_together_begin_with_the_same_chunk(jobs: Jobs) -> None:
    """Rule: while the others are in the first chunk of their epoch, reported or not, a new job takes their order from its
    beginning, whatever chunk the plan names: the plan may still name a chunk of the epoch before."""
    await three(jobs)
    assert await order(jobs, "t/a", 0, [4, 2, 0, 3, 1], 3) == [4, 2, 0, 3, 1]
    assert await order(jobs, "t/b", 7, [0, 1, 2, 3, 4], 3) == [4, 2, 0, 3, 1]
    await at(jobs, "a", 0, 5)
    assert await order(jobs, "t/c", 0, [0, 1, 2, 3, 4], 0) == [4, 2, 0, 3, 1]


async def test_who_is_nearer_to_the_second_chunk_begins_there(jobs: Jobs) -> None:
    """Rule: when the plan names the second chunk because the others are more than half through the first, a new job begins with
    the second, and so do jobs that begin together with it."""
    await three(jobs)
    await order(jobs, "t/a", 0, [4, 2, 0, 3, 1], -1)
    assert await order(jobs, "t/b", 0, [0, 1, 2, 3, 4], 2) == [2, 0, 3, 1, 4]
    await jobs.remove("t/a")
    assert await order(jobs, "t/c", 0, [0, 1, 2, 3, 4], 2) == [2, 0, 3, 1, 4]


async def test_the_sequence_changes_when_all_open_a_new_epoch(jobs: Jobs) -> None:
    """Rule: who opens an epoch while the others have at most two chunks left sets a new sequence, which the others take from its
    beginning; also if the first one has been silent since, and though it proposes something else."""
    await three(jobs)
    for name in "abc":
        assert await order(jobs, f"t/{name}", 0, [4, 2, 0, 3, 1], -1) == [4, 2, 0, 3, 1]
    for name, left in {"a": 0, "b": 1, "c": 2}.items():
        await at(jobs, name, 0, left)
    assert await order(jobs, "t/a", 1, [0, 1, 2, 3, 4], 1) == [0, 1, 2, 3, 4]
    assert await order(jobs, "t/b", 1, [3, 1, 4, 0, 2], 3) == [0, 1, 2, 3, 4]
    await at(jobs, "a", 1, 5)
    assert await order(jobs, "t/c", 1, [4, 3, 2, 1, 0], 0) == [0, 1, 2, 3, 4]


async def test_who_opens_an_epoch_while_others_are_in_the_middle_follows_them(jobs: Jobs) -> None:
    """Rule: one job with more than two chunks left is enough for the sequence to stay."""
    await three(jobs)
    for name in "abc":
        await order(jobs, f"t/{name}", 0, [4, 2, 0, 3, 1], -1)
    await at(jobs, "b", 0, 1)
    await at(jobs, "c", 0, 3)
    assert await order(jobs, "t/a", 1, [0, 1, 2, 3, 4], 0) == [0, 3, 1, 4, 2]


async def test_who_follows_others_does_not_begin_with_what_it_has_just_used(jobs: Jobs) -> None:
    """Rule: a job that ends its epoch while others are in mid-epoch continues with them after the last chunk it used, if the plan
    names that chunk or the one before; it does not repeat a chunk that it has just used."""
    await three(jobs)
    for name in "ab":
        await order(jobs, f"t/{name}", 0, [4, 2, 0, 3, 1], -1)
    await at(jobs, "b", 0, 3)
    for epoch, active in enumerate((1, 4), 1):
        assert await order(jobs, "t/a", epoch, [0, 1, 2, 3, 4], active) == [4, 2, 0, 3, 1]
    assert await order(jobs, "t/a", 3, [0, 1, 2, 3, 4], 3) == [4, 2, 0, 3, 1]
    assert await order(jobs, "t/a", 4, [0, 1, 2, 3, 4], 0) == [0, 3, 1, 4, 2]


async def test_a_rank_that_is_late_in_the_epoch_before_changes_nothing(jobs: Jobs) -> None:
    """Rule: a job that has opened an epoch is at its beginning, even if a rank's late heartbeat still reports the previous one; a
    job that restarts several epochs earlier is at the place that it reports."""
    await three(jobs)
    await order(jobs, "t/a", 7, [4, 2, 0, 3, 1], -1)
    await at(jobs, "a", 6, 1)
    assert await order(jobs, "t/b", 7, [0, 1, 2, 3, 4], -1) == [4, 2, 0, 3, 1]
    await at(jobs, "a", 2, 1)
    await at(jobs, "b", 7, 2)
    assert await order(jobs, "t/c", 7, [0, 1, 2, 3, 4], -1) == [0, 1, 2, 3, 4]


async def test_places_leave_with_their_jobs(jobs: Jobs, redis: Redis) -> None:
    """Rule: a job's position is dropped with its registration."""
    await three(jobs)
    for name in "abc":
        await order(jobs, f"t/{name}", 0, [1, 0, 2], -1)
    await jobs.remove("t/a")
    assert set(await redis.hkeys(f"larder:z:places:{D1}")) == {b"t/b", b"t/c"}
    await redis.hset("larder:z:jobs", "t/b", "not a registration")
    await redis.zrem(f"larder:z:using:{D1}", "t/b", "t/c")
    await order(jobs, "t/c", 1, [1, 0, 2], -1)
    assert await redis.hkeys(f"larder:z:places:{D1}") == [b"t/c"]


@pytest.mark.parametrize("why", ["alone", "not rotated", "cut otherwise", "the others ended"])
async def test_who_joins_nobody_takes_its_own_order(jobs: Jobs, why: str) -> None:
    """Rule: alone, with a dataset that is not rotated, or cut into another number of chunks, a job gets its proposal."""
    await jobs.register(record("a"))
    await jobs.register(record("b"))
    if why != "alone":
        await order(jobs, "t/a", 0, [2, 1, 0], 1)
    if why == "the others ended":
        await jobs.remove("t/a")
    proposal = [3, 0, 2, 1] if why == "cut otherwise" else [0, 1, 2]
    assert await order(jobs, "t/b", 0, proposal, None if why == "not rotated" else 1) == proposal


async def test_a_job_of_other_chunks_leads_nobody(jobs: Jobs) -> None:
    """Rule: a job whose chunks differ from those that the fleet rotates takes its own order; the others keep theirs."""
    for name in ("a", "odd", "b"):
        await jobs.register(record(name))
    assert await order(jobs, "t/a", 0, [2, 0, 1], 0) == [2, 0, 1]
    assert await order(jobs, "t/odd", 0, [1, 0], 0, leads=False) == [1, 0]
    assert await order(jobs, "t/b", 0, [0, 2, 1], 0) == [0, 1, 2]
    assert await order(jobs, "t/odd", 1, [0, 1], 0, leads=False) == [0, 1]
    for name in "ab":
        await at(jobs, name, 0, 1)
    assert await order(jobs, "t/b", 1, [0, 2, 1], 0) == [0, 2, 1]


async def test_other_datasets_have_sequences_of_their_own(jobs: Jobs) -> None:
    """Rule: only jobs on the same dataset follow one another."""
    await jobs.register(record("a"))
    await jobs.register(record("b", D2))
    await order(jobs, "t/a", 0, [2, 1, 0], 1)
    assert await order(jobs, "t/b", 0, [0, 1, 2], 1) == [0, 1, 2]


async def test_old_orders_are_forgotten(jobs: Jobs, redis: Redis) -> None:
    """Rule: the four newest epochs of a job are kept; a request for an older one decides again."""
    await jobs.register(record())
    for epoch in range(20):
        await order(jobs, "t/j", epoch, [0, 1, 2], None)
    assert sorted(map(int, await redis.hkeys("larder:z:job:t/j:epochs"))) == [16, 17, 18, 19]
    assert await order(jobs, "t/j", 3, [2, 1, 0], None) == [2, 1, 0]
    assert await order(jobs, "t/j", 3, [0, 1, 2], None) == [2, 1, 0]
