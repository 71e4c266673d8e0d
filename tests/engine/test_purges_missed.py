"""Purges that a node missed, and those announced before it read them from the catalog."""

from __future__ import annotations

from pathlib import Path

from gateway.model.keys import ObjectKey
from gateway.operate.purge.work import Forgetting, Purge, Unseen
from tests.engine.conftest import Bench, benched


class Remembered:
    """A catalog's purges."""

    def __init__(self, *purges: Purge, more: bool = False) -> None:
        self.purges = purges
        self.more = more

    async def __call__(self, last: str) -> Unseen:
        """The purges after the last applied one."""
        names = [purge.id for purge in self.purges]
        after = names.index(last) + 1 if last in names else 0
        return Unseen(self.purges[after:], self.more and last not in names)


def node(bench: Bench) -> Forgetting:
    """The part of the node that applies purges."""
    return Forgetting(bench.store, lambda: ["default"])


async def cached(bench: Bench, *keys: str) -> list[str]:
    """The keys among these that are in the index."""
    return [key for key in keys if await bench.store.lookup(ObjectKey("default", "b", key)) is not None]


async def filled(bench: Bench, *keys: str) -> None:
    """Have objects in the cache."""
    for key in keys:
        bench.origin.put("b", key, b"x" * 100)
        await bench.read(key)
    await bench.settle()
    assert await cached(bench, *keys) == [*keys]


async def test_what_was_missed_is_applied_once(tmp_path: Path) -> None:
    """Rule: a returning node applies the purges that it missed, only these, and only once."""
    missed = Remembered(Purge("b", "a/", id="1"), Purge("b", "a/deeper/", id="2"))
    async with benched(tmp_path) as bench:
        await filled(bench, "a/k", "z/k")
        assert await node(bench).catch_up("2", missed)
        assert await cached(bench, "a/k", "z/k") == ["z/k"]
        assert ObjectKey("default", "b", "a/k") in bench.store.generations.forgotten, "others may still have it"
        assert ObjectKey("default", "b", "z/k") not in bench.store.generations.forgotten
        await filled(bench, "a/k")
    async with benched(tmp_path) as bench:
        assert await node(bench).catch_up("2", missed)
        assert await cached(bench, "a/k", "z/k") == ["a/k", "z/k"]


async def test_a_missed_purge_of_one_object_takes_no_other(bench: Bench) -> None:
    """Rule: a missed purge of a key forgets that object alone, and hides no longer prefix that was purged too."""
    missed = Remembered(
        Purge("b", "a", id="1", exact=True), Purge("b", "ab/", id="2"), Purge("b", "a", id="3", exact=True)
    )
    await filled(bench, "a", "ab", "ab/k")
    assert await node(bench).catch_up("3", missed)
    assert await cached(bench, "a", "ab", "ab/k") == ["ab"]
    assert ObjectKey("default", "b", "a") in bench.store.generations.forgotten, "others may still have it"
    assert ObjectKey("default", "b", "ab") not in bench.store.generations.forgotten


async def test_what_it_was_told_of_is_not_applied_again(bench: Bench) -> None:
    """Rule: an earlier missed purge is applied although a later one arrived; neither is applied twice."""
    missed = Remembered(Purge("b", "a/", id="1"), Purge("b", "z/", id="2"))
    await filled(bench, "a/k", "z/k")
    assert (await node(bench).apply(missed.purges[1])).held.objects == 1
    await filled(bench, "z/k")
    assert await node(bench).catch_up("2", missed)
    assert await cached(bench, "a/k", "z/k") == ["z/k"]


async def test_a_new_cache_begins_with_what_is(bench: Bench) -> None:
    """Rule: an empty cache has missed no purge: it starts from the latest one."""
    assert await node(bench).catch_up("7", Remembered(Purge("b", "a/", id="7"), more=True))
    assert ObjectKey("default", "b", "a/k") not in bench.store.generations.forgotten
    await filled(bench, "a/k")
    assert await node(bench).catch_up("7", Remembered(Purge("b", "a/", id="7")))
    assert await cached(bench, "a/k") == ["a/k"]


async def test_who_was_away_for_too_long_forgets_everything(bench: Bench) -> None:
    """Rule: if the catalog may have dropped purges that a node missed, the node forgets all objects."""
    await filled(bench, "a/k", "z/k")
    assert await node(bench).catch_up("7", Remembered(Purge("b", "a/", id="7"), more=True))
    assert await cached(bench, "a/k", "z/k") == []
    assert ObjectKey("default", "b", "z/k") in bench.store.generations.forgotten
