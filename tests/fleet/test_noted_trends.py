"""Figures over time in Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.nodes.trends import MOST, Trends


async def test_figures_are_noted_once_in_two_minutes(redis: Redis) -> None:
    """Rule: of two leaders that note at one moment the second changes nothing; a subject's notes come back oldest first."""
    leader, other = Trends(redis, "larder:z:"), Trends(redis, "larder:z:")
    assert await leader.record({"bucket:a": {"requests": 1.5}, "job:t/j": {"waited": None}})
    assert not await other.record({"bucket:a": {"requests": 9.0}})
    assert [note.figures for note in await other.of("bucket:a")] == [{"requests": 1.5}]
    assert [note.figures for note in await other.of("job:t/j")] == [{"waited": None}]
    await redis.delete("larder:z:trends")
    assert await other.record({"bucket:a": {"requests": 2.5}})
    assert [note.figures["requests"] for note in await leader.of("bucket:a")] == [1.5, 2.5]


async def test_a_day_of_notes_is_kept(redis: Redis) -> None:
    """Rule: the oldest notes go; what another version wrote is left out; and every list expires."""
    trends = Trends(redis, "larder:z:")
    await redis.rpush(
        "larder:z:trends:node:a", *(f'{number} {{"x": {number}}}' for number in range(MOST)), "what is this"
    )
    assert await trends.record({"node:a": {"x": -1}})
    notes = await trends.of("node:a")
    assert (len(notes), notes[0].at, notes[-1].figures["x"]) == (MOST - 1, 2.0, -1)
    assert 0 < await redis.ttl("larder:z:trends:node:a") <= 86_400
