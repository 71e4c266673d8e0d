"""Claims on results in a real Redis."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from gateway.fleet.jobs.result_claims import ResultClaims

C = "pool/content"
LONG = 100.0


async def test_a_result_is_claimed_once(redis: Redis) -> None:
    """Rule: only the owner of a claim can claim the same result again."""
    claims = ResultClaims(redis, "larder:z:")
    assert await claims.take(C, [1, 2, 3], "a", LONG) == {1, 2, 3}
    assert await claims.take(C, [2, 3, 4], "b", LONG) == {4}
    assert await claims.take(C, [1, 4], "a", LONG) == {1}
    assert await claims.take("pool/other", [1], "b", LONG) == {1}


async def test_a_claim_ends(redis: Redis) -> None:
    """Rule: a claim ends by expiry, by its owner, or when the result is stored; another job cannot end it."""
    claims = ResultClaims(redis, "larder:z:")
    await claims.take(C, [0], "a", 0.0)
    await claims.take(C, [1, 2, 3], "a", LONG)
    await claims.end(C, [1, 3], "b")
    await claims.end(C, [2], "a")
    await claims.end(C, [3])
    assert await claims.take(C, [0, 1, 2, 3], "b", LONG) == {0, 2, 3}


async def test_many_results_are_claimed_at_once(redis: Redis) -> None:
    """Rule: more results than Lua takes words in one command are claimed in one request."""
    claims = ResultClaims(redis, "larder:z:")
    assert await claims.take(C, range(10_000), "a", LONG) == {*range(10_000)}
    assert await claims.take(C, range(10_000), "b", LONG) == set()


async def test_jobs_that_claim_at_once_divide_the_results(redis: Redis) -> None:
    """Rule: of concurrent claims of one result, exactly one succeeds."""
    claims = [ResultClaims(redis, "larder:z:") for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one.take(C, range(50), str(number), LONG)) for number, one in enumerate(claims)]
    assert sorted(index for each in asked for index in each.result()) == [*range(50)]
