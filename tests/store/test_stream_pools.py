"""Pools of access streams over a real store: assignment, ghosts, release."""

from __future__ import annotations

import asyncio
from pathlib import Path
from sqlite3 import Connection

import pytest

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.policies.pools import (
    LEAST_GHOSTS,
    MOST_GHOSTS,
    Pool,
    ghost_window,
    stream_place,
    stream_pools,
    with_default,
)
from gateway.store.index import pool_rows
from gateway.store.index.pool_rows import Walked
from gateway.store.store import Store
from rig.consistency import assert_index_equals_disk
from tests.stores import FakeClock, key_of, put

CAPACITY = 200_000
BUCKET = key_of("").bucket
ABOVE, BELOW, OBJECT = f"stream:{BUCKET}/", f"stream:{BUCKET}/a/", f"stream:{BUCKET}/a/big"


async def have(store: Store, *names: str, target: int = CAPACITY // 2, order: str = "lru") -> None:
    """Define pools of streams."""
    assert await store.try_lock()
    pools = [Pool(name, target, order) for name in names]
    assert await store.pools.define(with_default(pools, int(0.9 * CAPACITY), "lru"))


async def pool_of(store: Store, name: str, block: int = 0) -> str:
    """The pool that a block of an object is charged to."""
    record = await store.lookup(key_of(name))
    assert record is not None
    row = await store.pools.of((await store.blocks(record.row_id, block, block))[block].digest)
    assert row is not None
    return row.pool.name


def test_the_most_specific_pool_is_named_first():
    """Rule: an object may be in the pool of its own blocks, of a prefix, or of its bucket; another origin is named too."""
    assert stream_pools(ObjectKey("default", "b", "x/y/z")) == (
        "stream:b/x/y/z",
        "stream:b/x/y/",
        "stream:b/x/",
        "stream:b/",
    )
    assert stream_pools(ObjectKey("o:1", "b", "k")) == ("stream:o:1:b/k", "stream:o:1:b/")
    assert stream_place("stream:o:1:b/x/y/") == ObjectKey("o:1", "b", "x/y/")
    assert stream_place("stream:b/") == ObjectKey("default", "b", "")
    assert len(stream_pools(ObjectKey("default", "b", "/" * 1024))) == 34


async def test_a_fill_enters_the_pool_of_its_stream(open_store) -> None:
    """Rule: a new blob enters the most specific pool that there is for its key, else ``default``."""
    store = await open_store(capacity=CAPACITY)
    await have(store, ABOVE, BELOW, OBJECT)
    for name in ("a/small", "a/big", "a/bigger", "b/other"):
        await put(store, name, name.encode() * 500)
    names = [await pool_of(store, name) for name in ("a/small", "a/big", "a/bigger", "b/other")]
    assert names == [BELOW, OBJECT, BELOW, ABOVE]
    await have(store, BELOW)
    await put(store, "c/plain", b"plain")
    assert await pool_of(store, "c/plain") == "default"


async def test_what_was_here_is_charged_page_by_page(open_store, root: Path) -> None:
    """Rule: objects below a prefix go over to the pool of their stream, those of other keys and of datasets do not."""
    store = await open_store(capacity=CAPACITY)
    await have(store)
    names = [f"a/{number}" for number in range(5)]
    for name in (*names, "a", "b/1"):
        await put(store, name, name.encode() * 100)
    await have(store, BELOW, "dataset:d")
    record = await store.lookup(key_of("a/0"))
    assert record is not None
    await store.pools.charge([(await store.blocks(record.row_id, 0, 0))[0].digest], "dataset:d")
    place, last, pages = stream_place(BELOW), Walked(), 0
    while (after := await store.pools.charge_below(place, last, 2)) is not None:
        last, pages = after, pages + 1
    assert pages == 2
    assert [await pool_of(store, name) for name in (*names, "a", "b/1")] == [
        "dataset:d",
        *[BELOW] * 4,
        "default",
        "default",
    ]
    assert_index_equals_disk(root)


async def steps_of_a_page(store: Store, limit: int) -> int:
    """Instructions that SQLite executes to look at the first objects of a stream."""
    steps = [0]

    def count() -> None:
        steps[0] += 1

    def look(connection: Connection) -> None:
        connection.set_progress_handler(count, 1)
        pool_rows.charge_below(connection, stream_place(BELOW), Walked(), 1.0, limit)
        connection.set_progress_handler(None, 1)

    await store._disk.write(look)
    return steps[0]


async def test_a_page_costs_the_same_in_a_large_cache(open_store) -> None:
    """Rule: to charge some objects to a pool takes the same work however many blobs are in the pools."""
    store = await open_store(capacity=CAPACITY)
    await have(store, BELOW)

    async def put_many(first: int, last: int) -> None:
        await asyncio.gather(*(put(store, f"a/{number:04}", b"%d" % number) for number in range(first, last)))

    await put_many(0, 100)
    before = await steps_of_a_page(store, 100)
    await put_many(100, 400)
    assert await steps_of_a_page(store, 100) < 2 * before


@pytest.mark.parametrize(
    ("pool", "limit", "held"), [(BELOW, 9, 1200), (BELOW, 1, 300), (OBJECT, 9, 600), (ABOVE, 9, 1500)]
)
async def test_what_is_held_of_a_stream_without_a_pool_is_added_up(
    open_store, pool: str, limit: int, held: int
) -> None:
    """Rule: bytes in ``default`` of objects below a prefix, or of one object, of so many objects at most; not those beside it.
    Those of equal objects take space once, and count once."""
    store = await open_store(capacity=CAPACITY)
    await have(store)
    for name in ("a/1", "a/big", "a/bigger", "a0", "b/1"):
        await put(store, name, name.encode().ljust(600 if name == "a/big" else 300))
    await put(store, "a/copy", b"a/1".ljust(300))
    await have(store, "dataset:d")
    record = await store.lookup(key_of("b/1"))
    assert record is not None
    await store.pools.charge([(await store.blocks(record.row_id, 0, 0))[0].digest], "dataset:d")
    assert await store.pools.held_below(stream_place(pool), limit) == held


async def test_an_object_loaded_ahead_of_a_scan_enters_its_pool_unread(open_store) -> None:
    """Rule: the blobs of an object enter the pool that is named, behind those that were read, unless they are a dataset's or
    there is no such pool."""
    store = await open_store(capacity=CAPACITY)
    scan = f"stream:scans@{BUCKET}/a/"
    await have(store, BELOW, "dataset:d", order="consumed")
    for name in ("a/1", "a/2", "a/3"):
        await put(store, name, name.encode())
    await store.pools.charge_object(key_of("a/1"), None, scan)
    assert await pool_of(store, "a/1") == BELOW
    await have(store, BELOW, "dataset:d", scan, order="consumed")
    record = await store.lookup(key_of("a/2"))
    assert record is not None
    await store.pools.charge([(await store.blocks(record.row_id, 0, 0))[0].digest], "dataset:d")
    for name in ("a/1", "a/2"):
        await store.pools.charge_object(key_of(name), None, scan)
    await store.pools.charge_object(key_of("a/3"), (1 << 30, 1 << 31), scan)
    assert [await pool_of(store, name) for name in ("a/1", "a/2", "a/3")] == [scan, "dataset:d", BELOW]
    fresh = {row.pool.name: row.ledger.fresh for row in await store.pools.usage()}
    assert (fresh[scan], fresh[BELOW] > 0) == (0, True)


async def test_misses_count_for_the_stream(open_store) -> None:
    """Rule: a miss counts for the pool that the object would have entered."""
    store = await open_store(capacity=CAPACITY)
    await have(store, BELOW)
    for name in ("a/1", "a/x/2", "b/3"):
        store.accesses.record(Access(key_of(name), 0, b"", False, 1.0, OriginIdentity("default", "AK")))
    await store.sweep()
    assert {row.pool.name: row.misses for row in await store.pools.usage()} == {BELOW: 2, "default": 1}


async def test_a_stream_is_released_whole(open_store, root: Path) -> None:
    """Rule: a release removes all blobs of its pool, in bounded steps, and none of another; they do not count as evicted."""
    store = await open_store(capacity=CAPACITY)
    await have(store, BELOW)
    for number in range(6):
        await put(store, f"a/{number}", b"a" * 1000 + bytes([number]))
        await put(store, f"b/{number}", b"b" * 1000 + bytes([number]))
    for _ in range(2):
        await store.pools.release(BELOW, 1)
        assert store.status().released_bytes == 6 * 1001
    assert {row.pool.name: row.blobs for row in await store.pools.usage()} == {BELOW: 0, "default": 6}
    assert store.status().evicted_blobs == 0
    assert_index_equals_disk(root)


@pytest.mark.parametrize(("order", "hits"), [("lru", 1), ("uniform", 0)])
async def test_a_skewed_stream_remembers_what_left_last(
    open_store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, order: str, hits: int
) -> None:
    """Rule: under ``lru``, a blob that returns while it is among the last evicted ones is a ghost hit of its stream."""
    assert [ghost_window(blobs) for blobs in (0, 5000, 10**6)] == [LEAST_GHOSTS, 500, MOST_GHOSTS]
    monkeypatch.setattr(pool_rows, "ghost_window", lambda _: 2)
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await store.pools.define(with_default([Pool(BELOW, 1000, order)], 9000, "lru"))
    for number in range(8):
        await put(store, f"a/{number}", bytes([number]) * 1000, confirmed_at=float(number))
    assert await store.make_room(6000)
    gone = [number for number in range(8) if await store.lookup(key_of(f"a/{number}")) is None]
    assert len(gone) >= 3
    first, last = (gone[0], gone[-1]) if order == "lru" else (gone[-1], gone[0])
    for number in (first, last):
        await put(store, f"a/{number}", bytes([number]) * 1000, confirmed_at=10.0)
    (row,) = [row for row in await store.pools.usage() if row.pool.name == BELOW]
    assert row.ghost_hits == hits
