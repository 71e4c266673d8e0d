"""Pools over a real store: every eviction order under the same rules, and which pool gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.model.objects import BlobRef
from gateway.policies.pools import DEFAULT, ORDERS, Pool, with_default
from gateway.store.store import Store
from rig.consistency import assert_index_equals_disk, files_of
from tests.faults import FaultyDirectory
from tests.store.test_migrations import old_cache
from tests.stores import FakeClock, entering, key_of, put, query, touch, write_blob

CAPACITY = 20_000
SIZE = 1000


async def keep(store: Store, name: str, now: float, pool: str = DEFAULT) -> BlobRef:
    """An item of 1000 bytes enters a pool."""
    ref = await write_blob(store, f"{name:>10}".encode() * (SIZE // 10))
    assert await store.keep_item(ref, entering(now, pool))
    return ref


async def have(store: Store, *pools: Pool, order: str = "lru") -> None:
    """Define pools; ``default`` gets the rest of nine tenths of the capacity."""
    assert await store.try_lock()
    assert await store.pools.define(with_default(pools, int(0.9 * CAPACITY), order))


async def held(store: Store, refs: Sequence[BlobRef]) -> list[int]:
    """The numbers of the cached blobs."""
    return [number for number, ref in enumerate(refs) if await store.items.resident(ref.digest) is not None]


async def sizes(store: Store) -> dict[str, int]:
    """Bytes by pool."""
    return {row.pool.name: row.ledger.size for row in await store.pools.usage()}


def leaving(root: Path) -> list[str]:
    """All blobs of ``default`` in the order of their ranks, as the index has it."""
    return [row[0] for row in query(root, "SELECT hex(digest) FROM blobs ORDER BY pool, rank, digest")]


@pytest.mark.parametrize("order", ORDERS)
class TestEveryOrder:
    """Rules that every eviction order keeps."""

    async def filled(self, store: Store, clock: FakeClock, count: int = 10) -> list[BlobRef]:
        """Items in ``default``, entered one after the other; every third was read again."""
        refs = [await keep(store, f"{number}", clock.time + number) for number in range(count)]
        for ref in refs[::3]:
            touch(store, ref.digest, clock.time + 100)
        await store.sweep()
        return refs

    async def test_evicting_frees_what_it_says(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: as many files and bytes go as are counted, as many as the watermarks say, and the pool has the same figures."""
        store = await open_store(capacity=CAPACITY)
        await have(store, order=order)
        await self.filled(store, clock, 18)
        before = files_of(root)
        assert await store.make_room(5 * SIZE)
        gone = before.keys() - files_of(root).keys()
        status = store.status()
        assert len(gone) == status.evicted_blobs == 5
        assert sum(before[name] for name in gone) == status.evicted_bytes
        (pool,) = await store.pools.usage()
        assert (pool.evicted_blobs, pool.evicted_bytes) == (status.evicted_blobs, status.evicted_bytes)
        assert_index_equals_disk(root)

    async def test_what_leaves_has_the_lowest_ranks(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: the victims are the first in the order, or in the part of it that the order names."""
        store = await open_store(capacity=CAPACITY)
        await have(store, order=order)
        await self.filled(store, clock, 18)
        ranks = dict(query(root, "SELECT hex(digest), rank FROM blobs"))
        assert await store.make_room(5 * SIZE)
        left = set(leaving(root))
        for side in (True, False):
            gone = [rank for name, rank in ranks.items() if name not in left and (rank < 0) is side]
            stay = [rank for name, rank in ranks.items() if name in left and (rank < 0) is side]
            assert max(gone, default=-1e99) <= min(stay, default=1e99)

    async def test_victims_are_never_pinned(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: a pool gives up nothing below its minimum, even if no other victim is left."""
        store = await open_store(capacity=CAPACITY)
        await have(store, Pool("dataset:pinned", 0, order, minimum=8 * SIZE), order=order)
        pinned = [await keep(store, f"p{number}", clock.time, "dataset:pinned") for number in range(8)]
        plain = await self.filled(store, clock)
        assert not await store.make_room(CAPACITY - 7 * SIZE)
        assert await held(store, pinned) == list(range(8))
        assert await held(store, plain) == []
        assert_index_equals_disk(root)

    async def test_counts_equal_the_index(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: entering, reading, changing pools, evicting and giving up leave the counts of all pools exact."""
        store = await open_store(capacity=CAPACITY)
        await have(store, Pool("dataset:a", 5 * SIZE, order), order=order)
        refs = await self.filled(store, clock)
        await store.pools.charge([ref.digest for ref in refs[:6]], "dataset:a")
        assert_index_equals_disk(root)
        await store.pools.evict([refs[0].digest, refs[9].digest])
        assert await store.make_room(15 * SIZE)
        await keep(store, "again", clock.time, "dataset:a")
        assert_index_equals_disk(root)
        assert sum((await sizes(store)).values()) == store.status().bytes
        assert (await store.recover()).miscounted == 0

    async def test_the_order_survives_a_restart(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: a restart keeps the order of eviction, the pools and their counts."""
        store = await open_store(capacity=CAPACITY)
        await have(store, order=order)
        await self.filled(store, clock, 18)
        before, pools = leaving(root), await store.pools.usage()
        await store.close()
        store = await open_store(capacity=CAPACITY)
        assert await store.try_lock()
        await store.recover()
        assert leaving(root) == before
        assert await store.pools.usage() == pools
        assert await store.make_room(4 * SIZE)
        assert_index_equals_disk(root)

    async def test_the_order_takes_over_a_migrated_cache(self, order: str, open_store, root: Path) -> None:
        """Rule: the blobs of an older cache enter the pool without loss and are evicted like all others."""
        old_cache(root, {f"{number}": f"{number:>10}".encode() * 100 for number in range(18)})
        store = await open_store(capacity=CAPACITY)
        await have(store, order=order)
        while await store.pools.settle():
            assert_index_equals_disk(root)
        assert await sizes(store) == {DEFAULT: 18 * SIZE}
        assert await store.make_room(5 * SIZE)
        assert_index_equals_disk(root)
        assert len(files_of(root)) == 13

    async def test_the_order_survives_a_full_disk(self, order: str, open_store, root: Path, clock: FakeClock) -> None:
        """Rule: when other programs fill the file system, all blobs but the pinned ones are evicted; later the order resumes."""
        directory = FaultyDirectory(root)
        store = await open_store(directory=directory, reserve=10**6, capacity=CAPACITY)
        await have(store, Pool("dataset:pinned", 2 * SIZE, order, minimum=2 * SIZE), order=order)
        pinned = [await keep(store, f"p{number}", clock.time, "dataset:pinned") for number in range(2)]
        plain = await self.filled(store, clock)
        directory.free_bytes = 0
        await store.sweep()
        assert (await held(store, pinned), await held(store, plain)) == ([0, 1], [])
        directory.free_bytes = 10**9
        await store.sweep()
        await self.filled(store, clock, 17)
        assert await store.make_room(5 * SIZE)
        assert await held(store, pinned) == [0, 1]
        assert_index_equals_disk(root)


async def test_the_pool_furthest_over_its_target_gives(open_store, root: Path) -> None:
    """Rule: each victim is of the pool that is furthest over at that moment, so pools end equally far over."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:a", 2 * SIZE), Pool("dataset:b", 4 * SIZE))
    for number in range(8):
        await keep(store, f"a{number}", float(number), "dataset:a")
        await keep(store, f"b{number}", float(number), "dataset:b")
    await keep(store, "plain", 0.0)
    assert await store.make_room(11 * SIZE)
    found = await sizes(store)
    assert found[DEFAULT] == SIZE
    assert found["dataset:a"] - 2 * SIZE == pytest.approx(found["dataset:b"] - 4 * SIZE, abs=SIZE)
    assert_index_equals_disk(root)


async def test_what_a_pool_does_not_use_others_may(open_store) -> None:
    """Rule: a target reserves no space: other blobs may use it until the pool needs it."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:a", 18 * SIZE))
    for number in range(18):
        await keep(store, f"{number}", float(number))
    await store.sweep()
    assert await sizes(store) == {DEFAULT: 18 * SIZE, "dataset:a": 0}


async def test_a_pool_that_is_no_more_hands_its_blobs_to_default(open_store, root: Path, clock: FakeClock) -> None:
    """Rule: they are charged to ``default`` and enter its order as of now; the pool is forgotten when it is empty."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:a", 18 * SIZE, "uniform"))
    await keep(store, "a", 5.0, "dataset:a")
    await have(store)
    assert await sizes(store) == {DEFAULT: 0, "dataset:a": SIZE}
    assert await store.pools.settle() == 1
    assert await store.pools.settle() == 0
    assert await sizes(store) == {DEFAULT: SIZE}
    assert query(root, "SELECT rank FROM blobs") == [(clock.time,)]
    assert_index_equals_disk(root)


async def test_a_changed_order_ranks_everything_anew(open_store, root: Path) -> None:
    """Rule: ranks of different orders are not comparable, so a pool's blobs enter again when its order changes."""
    store = await open_store(capacity=CAPACITY)
    await have(store)
    refs = [await keep(store, f"{number}", 1e9 + number) for number in range(5)]
    await have(store, order="lfu")
    while await store.pools.settle():
        pass
    assert all(rank < 1 for (rank,) in query(root, "SELECT rank FROM blobs"))
    touch(store, refs[0].digest, 2e9)
    await store.sweep()
    assert await store.make_room(17 * SIZE)
    assert await held(store, refs) == [0]


async def test_a_pool_that_changes_order_keeps_its_blobs(open_store, root: Path) -> None:
    """Rule: they move to the pool of the same name, never to ``default``, which has no space for them."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:a", 10 * SIZE, "uniform"))
    for number in range(6):
        await keep(store, f"a{number}", float(number), "dataset:a")
    await keep(store, "plain", 0.0)
    await have(store, Pool("dataset:a", 10 * SIZE, "importance"))
    assert await store.pools.settle() == 6
    assert await store.pools.settle() == 0
    assert await sizes(store) == {DEFAULT: SIZE, "dataset:a": 6 * SIZE}
    assert_index_equals_disk(root)


async def test_bytes_of_a_dataset_stay_with_their_pool(open_store, root: Path) -> None:
    """Rule: a blob is charged once: to the dataset that holds it, although other datasets or objects have the same bytes."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:a", 5 * SIZE), Pool("dataset:b", 5 * SIZE))
    ref = await keep(store, "same", 1.0)
    for pool, holder in (("dataset:a", "dataset:a"), ("dataset:b", "dataset:a")):
        await keep(store, "same", 2.0, pool)
        assert (found := await store.pools.of(ref.digest)) is not None
        assert found.pool.name == holder
    await put(store, "object", b"%10s" % b"same" * 100)
    assert await sizes(store) == {DEFAULT: 0, "dataset:a": SIZE, "dataset:b": 0}
    assert_index_equals_disk(root)


async def test_a_dataset_without_a_pool_is_in_default(open_store) -> None:
    """Rule: a blob whose pool is not defined is charged to ``default``."""
    store = await open_store(capacity=CAPACITY)
    await keep(store, "a", 1.0, "dataset:unknown")
    assert await sizes(store) == {DEFAULT: SIZE}


async def test_ghosts_are_bounded_and_counted(open_store, root: Path) -> None:
    """Rule: ARC remembers at most twice the pool's target; a blob that returns is a ghost hit and kept longer."""
    store = await open_store(capacity=CAPACITY)
    await have(store, order="arc")
    refs = []
    for number in range(60):
        assert await store.make_room(SIZE)
        refs.append(await keep(store, f"{number}", float(number)))
        if number < 9:
            touch(store, refs[-1].digest, float(number))
    (pool,) = await store.pools.usage()
    assert 0 < pool.ledger.ghosts <= 2 * pool.pool.target - pool.ledger.size
    assert query(root, "SELECT coalesce(sum(size), 0), coalesce(sum(size * fresh), 0) FROM ghosts") == [
        (pool.ledger.ghosts, pool.ledger.fresh_ghosts)
    ]
    ghost = query(root, "SELECT hex(digest) FROM ghosts ORDER BY id DESC LIMIT 1")[0][0]
    number = [ref.digest.hex().upper() for ref in refs].index(ghost)
    assert await store.make_room(SIZE)
    await keep(store, f"{number}", 100.0)
    (after,) = await store.pools.usage()
    assert (after.ghost_hits, after.ledger.adapted > pool.ledger.adapted) == (1, True)
    assert query(root, "SELECT count(*) FROM blobs WHERE rank >= 0") == [(10,)]


async def test_hits_and_misses_are_counted_by_pool(open_store) -> None:
    """Rule: a hit counts for the pool of its blob, a miss for the pool that the blob would enter."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:dataset", 5 * SIZE))
    ref = await keep(store, "a", 1.0, "dataset:dataset")
    for time in (2.0, 3.0):
        touch(store, ref.digest, time)
    store.accesses.record(entering(4.0).access)
    store.accesses.record(entering(5.0).access._replace(key=key_of("missed")))
    await store.sweep()
    assert await store.make_room(CAPACITY - SIZE)
    counts = {row.pool.name: (row.hits, row.misses) for row in await store.pools.usage()}
    assert counts == {DEFAULT: (0, 1), "dataset:dataset": (2, 1)}


async def test_a_granted_dataset_stays_beside_streams_below_their_targets(open_store, clock: FakeClock) -> None:
    """Rule: a dataset within its target loses nothing while streams and plain reads have something, even if these are far below
    theirs; then it gives what is needed."""
    store = await open_store(capacity=CAPACITY)
    await have(store, Pool("dataset:whole", 6 * SIZE, "uniform"), Pool("stream:b/p/", 11 * SIZE, "uniform"))
    whole = [await keep(store, f"w{number}", clock.time, "dataset:whole") for number in range(6)]
    stream = [await keep(store, f"s{number}", clock.time, "stream:b/p/") for number in range(6)]
    assert await store.make_room(12 * SIZE)
    assert await held(store, whole) == list(range(6))
    assert len(await held(store, stream)) < 6
    assert await store.make_room(15 * SIZE)
    assert await held(store, stream) == []
    assert 0 < len(await held(store, whole)) < 6
