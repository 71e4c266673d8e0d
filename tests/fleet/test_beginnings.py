"""When problems of the zone began, in a real Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.nodes.beginnings import Beginnings


async def test_a_problem_keeps_its_time_until_it_ends(redis: Redis) -> None:
    """Rule: the first time counts, whoever notes it; what has ended is forgotten and begins anew when it returns."""
    leader, other = Beginnings(redis, "larder:z:"), Beginnings(redis, "larder:z:")
    await leader.record({"no-space a": "first", "empty": "words"})
    first = await other.all()
    assert first.keys() == {"no-space a", "empty"}
    await other.record({"empty": "newer words", "no-space b": "other"})
    second = await leader.all()
    assert second.keys() == {"no-space b", "empty"}
    assert second["empty"] == first["empty"]
    assert second["no-space b"] >= first["no-space a"]
    await leader.record({})
    assert await leader.all() == {}


async def test_what_has_ended_is_listed_with_its_last_words(redis: Redis) -> None:
    """Rule: a problem that is over has both its times and the words noted last; the newest is the first."""
    problems = Beginnings(redis, "larder:z:")
    await problems.record({"empty": "one", "gone b": "gone"})
    began = await problems.all()
    await problems.record({"empty": "two words"})
    await problems.record({"empty": "three words"})
    await problems.record({})
    [empty, gone] = await problems.ended()
    assert (empty.words, gone.words) == ("three words", "gone")
    assert empty.since == began["empty"] <= empty.until
    assert 0 < await redis.ttl("larder:z:problems:ended") <= 7 * 86_400


async def test_a_mute_ends(redis: Redis) -> None:
    """Rule: a mute lasts as long as was asked, or until it is ended; the next note removes it when it is over."""
    problems = Beginnings(redis, "larder:z:")
    until = await problems.mute("gone b", 3600)
    assert await problems.mutes() == {"gone b": until}
    await problems.mute("empty", 0)
    await problems.record({})
    assert await problems.mutes() == {"gone b": until}
    assert await problems.unmute("gone b")
    assert not await problems.unmute("gone b")
