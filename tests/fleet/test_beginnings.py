"""When problems of the zone began, in a real Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.nodes.beginnings import Beginnings


async def test_a_problem_keeps_its_time_until_it_ends(redis: Redis) -> None:
    """Rule: the first time counts, whoever notes it; what has ended is forgotten and begins anew when it returns."""
    leader, other = Beginnings(redis, "larder:z:"), Beginnings(redis, "larder:z:")
    await leader.note(["no-space a", "empty"])
    first = await other.all()
    assert first.keys() == {"no-space a", "empty"}
    await other.note(["empty", "no-space b"])
    second = await leader.all()
    assert second.keys() == {"no-space b", "empty"}
    assert second["empty"] == first["empty"]
    assert second["no-space b"] >= first["no-space a"]
    await leader.note([])
    assert await leader.all() == {}
