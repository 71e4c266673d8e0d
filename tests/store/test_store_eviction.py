"""Eviction from a full cache: the order, room on demand, and readers of evicted blobs."""

import asyncio
import os
from contextlib import suppress

import pytest

from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.store import space
from gateway.store.evictor import Evictor
from gateway.store.index import blob_rows
from gateway.store.shared.generations import Generations
from rig.consistency import assert_index_equals_disk, files_of
from tests.faults import FaultyDirectory
from tests.stores import BLOCK, eventually, get, key_of, meta_of, put, touch, write_blob


async def present(store, count: int) -> list[int]:
    """The cached ones of the objects 0, 1, ..., ``count - 1``."""
    return [number for number in range(count) if await store.lookup(key_of(f"{number}")) is not None]


async def fill(store, count: int, size: int = 1000) -> list:
    """Objects 0, 1, ... of different bytes, used in that order."""
    return [
        (await put(store, f"{number}", b"%04d" % number * (size // 4), confirmed_at=float(number)))[1][0]
        for number in range(count)
    ]


async def test_a_sweep_evicts_down_to_the_low_watermark(open_store, root):
    """Above 95 % of the capacity the least recently used go until 90 % are left; index and disk agree."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    for number in range(10):
        await put(store, f"{number}", b"%04d" % number * 250, confirmed_at=float(number))
    await store.sweep()
    assert await present(store, 10) == list(range(1, 10))
    status = store.status()
    assert (status.bytes, status.blobs, status.evicted_blobs, status.evicted_bytes) == (9000, 9, 1, 1000)
    assert_index_equals_disk(root)


async def test_below_the_high_watermark_nothing_goes(open_store):
    """At 90 % a sweep leaves everything."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await fill(store, 9)
    await store.sweep()
    assert await present(store, 9) == list(range(9))


async def test_a_sweep_without_work_asks_the_index_once(open_store, monkeypatch):
    """Rule: the totals of the cache and the room that workers want are one reading; a sweep that evicts nothing has no other."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await fill(store, 9)
    await store.sweep()
    readings, read = [], store._disk.read

    async def noted(work):
        readings.append(work)
        return await read(work)

    monkeypatch.setattr(store._disk, "read", noted)
    await store.sweep()
    assert len(readings) == 1


async def test_what_was_touched_stays_longer(open_store):
    """A sweep respects touches that were only in memory when it began."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    refs = await fill(store, 10)
    touch(store, refs[0].digest, 100.0)
    await store.sweep()
    assert await present(store, 10) == [0, *range(2, 10)]


async def test_making_room_knows_what_was_just_touched(open_store):
    """Room made between two sweeps spares blobs touched since the last sweep."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    refs = await fill(store, 10)
    touch(store, refs[0].digest, 100.0)
    assert await store.make_room(1000)
    assert 0 in await present(store, 10)


async def test_recency_survives_a_restart(open_store):
    """Closing the store saves the touches."""
    store = await open_store()
    refs = await fill(store, 10)
    touch(store, refs[0].digest, 100.0)
    await store.close()
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await store.sweep()
    assert 0 in await present(store, 10)


async def test_eviction_takes_a_blob_with_all_its_references(open_store, root):
    """Two objects of equal bytes lose them together, and both their rows."""
    store = await open_store(capacity=4000)
    assert await store.try_lock()
    await put(store, "a", b"s" * 1000, confirmed_at=1.0)
    await put(store, "b", b"s" * 1000, confirmed_at=1.0)
    for number in range(3):
        await put(store, f"{number}", b"%04d" % number * 250, confirmed_at=10.0)
    await store.sweep()
    assert [await store.lookup(key_of(name)) for name in ("a", "b")] == [None, None]
    assert_index_equals_disk(root)


async def test_an_object_that_loses_one_block_keeps_the_others(open_store, root):
    """Blocks are evicted one by one; the row goes with the last one."""
    store = await open_store(capacity=3 * BLOCK)
    assert await store.try_lock()
    record, refs = await put(store, "big", b"a" * BLOCK + b"b" * BLOCK + b"c" * BLOCK)
    touch(store, refs[0].digest, 50.0)
    touch(store, refs[2].digest, 60.0)
    await store.sweep()
    assert await store.blocks(record.row_id, 0, 2) == {0: refs[0], 2: refs[2]}
    assert await store.lookup(key_of("big")) == record
    assert_index_equals_disk(root)


async def test_evicted_objects_are_remembered_by_every_worker(open_store):
    """Rule: every worker sees an object that lost its last block as evicted; one that keeps a block is not listed."""
    store, other = await open_store(capacity=3 * BLOCK), await open_store(capacity=3 * BLOCK)
    assert await store.try_lock()
    await put(store, "gone", b"g" * BLOCK, confirmed_at=1.0)
    await put(store, "less", b"l" * BLOCK + b"m" * BLOCK, confirmed_at=2.0)
    await store.sweep()
    assert [key_of(name) in other.generations.evicted for name in ("gone", "less")] == [True, False]


async def test_a_killed_gateway_has_noted_what_it_evicted(open_store, root):
    """Rule: the notes are in the table that survives its processes."""
    store = await open_store(capacity=1000)
    assert await store.try_lock()
    await fill(store, 1)
    await store.sweep()
    heir = Generations()
    heir.attach(store.directory.generations, root)
    assert key_of("0") in heir.evicted


async def test_written_and_purged_objects_are_no_longer_evicted(open_store):
    """Rule: the next miss of a key is not blamed on the size of the cache when a write or a purge caused it."""
    store = await open_store(capacity=1000)
    assert await store.try_lock()
    for name, forget in (
        ("written", lambda: store.forget([key_of("written")])),
        ("purged", lambda: store.forget_prefix(key_of("pur"))),
    ):
        await put(store, name, name[:1].encode() * 1000)
        await store.sweep()
        assert key_of(name) in store.generations.evicted
        await forget()
        assert key_of(name) not in store.generations.evicted


async def test_a_reader_finishes_when_its_blob_is_evicted(open_store, root):
    """The file is unlinked under a reader, who reads on to the end."""
    store = await open_store(capacity=1000)
    assert await store.try_lock()
    (ref,) = await fill(store, 1)
    blob = store.resident(ref)
    blob.hold()
    await store.sweep()
    assert files_of(root) == {}
    assert os.pread(blob.fd, 2000, 0) == b"0000" * 250
    assert store.resident(ref) is None
    blob.release()


async def test_the_keeper_makes_room_on_demand(open_store, root):
    """make_room evicts before it says yes, and says yes only if the bytes fit."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await fill(store, 10)
    assert await store.make_room(3000)
    assert store.status().bytes <= 7000
    assert_index_equals_disk(root)


async def test_no_room_can_be_made_for_more_than_the_capacity(open_store):
    """A request for more than the capacity evicts nothing."""
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await fill(store, 5)
    assert not await store.make_room(10_001)
    assert await present(store, 5) == list(range(5))


async def test_reservations_count_until_they_end(open_store):
    """A fill in progress reserves the size it was promised; commit and abort end the reservation."""
    store = await open_store(capacity=10_000)
    blobs = [store.begin(4000), store.begin(4000)]
    with pytest.raises(DiskUnavailable) as refusal:
        store.begin(4000)
    assert refusal.value.reason == "no-space"
    assert not await store.make_room(4000)
    for blob in blobs:
        blob.end()
    store.begin(4000).end()


async def test_a_blob_that_others_are_evicted_for(open_store, monkeypatch):
    """Rule: it is written before they have gone, though all together exceed the capacity: the file system has the room."""
    monkeypatch.setattr(space, "_RECENT", -1)
    store = await open_store(capacity=10_000)
    await fill(store, 8)
    instead = store.begin(4000, instead=True)
    content = b"b" * 4000
    assert (await instead.commit(content)).size == len(content)
    instead.end()


async def test_a_blob_that_is_being_recorded_takes_room(open_store):
    """Rule: from its first byte until the index counts it a blob takes room, or more would be let in than there is room for."""
    store = await open_store(capacity=10_000)
    content, key = b"a" * 6000, key_of("a")
    ref, generation = await write_blob(store, content), store.generations.of(key)
    recording = asyncio.create_task(
        store.record(key, meta_of(content), 8192, {0: ref}, generation=generation, confirmed_at=1.0)
    )
    await asyncio.sleep(0)
    assert (store.status().filling, store.status().bytes) == (6000, 0)
    with pytest.raises(DiskUnavailable):
        store.begin(6000)
    assert await recording is not None
    assert (store.status().filling, store.status().bytes) == (0, 6000)


async def test_refusing_for_lack_of_space_is_no_failure_of_the_disk(open_store):
    """A full cache does not open the breaker."""
    store = await open_store(capacity=10_000)
    for _ in range(10):
        with pytest.raises(DiskUnavailable):
            store.begin(20_000)
    assert store.status().state == "normal"


async def test_workers_together_do_not_exceed_the_capacity(open_store, root):
    """Fills of two workers are recorded only while they fit together; the files of the rest are removed."""
    one, two = await open_store(capacity=10_000), await open_store(capacity=10_000)
    for store, letter in ((one, b"a"), (two, b"b")):
        ref = await write_blob(store, letter * 6000)
        key = key_of(letter.decode())
        await store.record(
            key, meta_of(letter * 6000), 8192, {0: ref}, generation=store.generations.of(key), confirmed_at=1.0
        )
    assert [await one.lookup(key_of(name)) is None for name in "ab"] == [False, True]
    await eventually(lambda: len(files_of(root)) == 1)
    assert_index_equals_disk(root)


async def test_the_reserve_is_kept(open_store, root):
    """When free space falls to the reserve, fills are refused and the keeper evicts until the reserve is free."""
    directory = FaultyDirectory(root)
    directory.free_bytes = 10**6
    store = await open_store(directory=directory, reserve=5000, capacity=100_000)
    assert await store.try_lock()
    await fill(store, 10)
    directory.free_bytes = 5500
    blob = store.begin(1000)
    with pytest.raises(DiskUnavailable):
        await blob.write(bytes(1000))
    blob.end()
    with pytest.raises(DiskUnavailable):
        store.begin(1000)
    directory.free_bytes = 4000
    await store.sweep()
    assert await present(store, 10) == [6, 7, 8, 9]


async def test_a_worker_without_the_lock_does_not_evict(open_store):
    """Only the keeper evicts: another worker's sweep leaves everything."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    assert not await worker.try_lock()
    await fill(worker, 10)
    await worker.sweep()
    assert await present(worker, 10) == list(range(10))


async def test_a_worker_waits_for_the_keeper_to_make_the_room_it_needs(open_store):
    """The keeper's next sweep frees the room that a worker requested, even beyond the watermarks."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    await fill(worker, 9)
    waiting = asyncio.ensure_future(worker.make_room(3000))
    while not waiting.done():
        await keeper.sweep()
    assert await waiting
    assert worker.status().bytes <= 7000


async def test_a_worker_asks_for_room_beside_what_it_has_reserved(open_store):
    """Rule: fills that the worker has begun, which the keeper does not know, keep their room."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    await fill(worker, 8)
    worker.begin(1500)
    waiting = asyncio.ensure_future(worker.make_room(1000))
    while not waiting.done():
        await keeper.sweep()
    assert await waiting


async def test_fills_that_wait_together_get_room_together(open_store):
    """Rule: room for each of the fills that wait at once is made, not for the largest alone."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    await fill(worker, 9)

    async def reserve() -> None:
        assert await worker.make_room(1000)
        worker.begin(1000)

    filling = asyncio.gather(*(reserve() for _ in range(4)))
    while not filling.done():
        await keeper.sweep()
    await filling
    assert worker.status().filling == 4000


async def test_room_that_is_asked_for_while_room_is_made_is_made_next(open_store, monkeypatch):
    """Rule: a request that arrives while the keeper makes room for another one waits for the next sweep, also a smaller one."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    free, made = Evictor.free, []

    async def ask(size: int) -> None:
        await worker._disk.write(lambda connection: blob_rows.want(connection, size))

    async def overtaken(self, wanted: int) -> None:
        await free(self, wanted)
        made.append(wanted)
        if wanted == 3000:
            await ask(2000)

    monkeypatch.setattr(Evictor, "free", overtaken)
    await ask(3000)
    for _ in range(3):
        await keeper.sweep()
    assert made == [3000, 2000]  # and the third sweep, of which nobody wants room, makes none


async def test_a_worker_without_a_keeper_gives_up(open_store):
    """Without a keeper, a request for room is refused after a while."""
    keeper = await open_store(capacity=10_000)
    worker = await open_store(capacity=10_000)
    assert await keeper.try_lock()
    await fill(worker, 10)
    assert not await worker.make_room(3000)


async def test_a_fill_of_bytes_that_are_being_evicted_is_whole_or_absent(open_store, root):
    """Filling, evicting and reading the same few blobs at once never leaves a row without its file."""
    store = await open_store(capacity=6 * BLOCK)
    assert await store.try_lock()

    async def keep_filling(name: str) -> None:
        for round_number in range(30):
            key, content = key_of(name), b"%d" % (round_number % 3) * BLOCK
            try:
                ref = await write_blob(store, content)
            except DiskUnavailable:
                await store.sweep()
                continue
            generation = store.generations.of(key)
            meta = meta_of(content, f'"{round_number}"')
            await store.record(key, meta, BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
            # The index's answer may be outdated when the blob is opened, which then raises BlobGone.
            with suppress(BlobGone):
                assert await get(store, name) in (None, content, *(b"%d" % n * BLOCK for n in range(3)))

    async def keep_evicting() -> None:
        for _ in range(30):
            await store.make_room(6 * BLOCK)

    await asyncio.gather(keep_evicting(), *(keep_filling(name) for name in "abcd"))
    await store.forget([])
    await eventually(lambda: len(list((root / "tmp").iterdir())) == 0)
    # An opening that found no file looked for a row under the write lock, and dropped it.
    assert store.status().missing_dropped == 0
    assert_index_equals_disk(root)


async def test_a_file_system_that_others_have_filled_is_told_of(open_store, root):
    """Rule: while the reserve leaves less than the capacity, the status says how much can be used, however much was evicted."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory, reserve=5_000_000, capacity=100_000_000)
    assert await store.try_lock()
    directory.free_bytes = 200_000_000
    assert (store.status().room, store.status().shortage) == (100_000_000, "")
    await fill(store, 10)
    directory.free_bytes = 4_000_000
    for _ in range(2):
        await store.sweep()
        assert store.status().room == 0
        assert "only 0 B of cache.capacity (100.0 MB) can be used" in store.status().shortage
        assert "cache.reserve (5.0 MB)" in store.status().shortage
    assert store.status().blobs == 0
    directory.free_bytes = 30_000_000
    await store.sweep()
    assert "only 25.0 MB of" in store.status().shortage
    directory.free_bytes = 200_000_000
    await store.sweep()
    assert store.status().shortage == ""


async def test_of_a_disk_that_is_down_nothing_can_be_used(open_store, root):
    """Rule: a disk that is down has no room, and reports no shortage of space."""
    store = await open_store(dir="/dev/null/cache")
    assert (store.status().room, store.status().shortage) == (0, "")


async def test_registrations_of_datasets_count_as_used(open_store, root) -> None:
    """Rule: registrations beyond 16 MiB reduce the space for blobs, and all of their space is shown."""
    (root / "datasets" / "contents" / "c").mkdir(parents=True)
    with (root / "datasets" / "contents" / "c" / "index").open("wb") as file:
        file.truncate(16 * 1024**2 + 4000)
    store = await open_store(capacity=10_000)
    status = store.status()
    assert (status.capacity, status.datasets) == (10_000, 16 * 1024**2 + 4000)
    assert status.room == 6000
    assert await store.make_room(6000)
    assert not await store.make_room(6001)
