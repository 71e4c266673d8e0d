"""Objects whose fills end together are recorded together, and each as if it were alone."""

import asyncio
import threading
from contextlib import asynccontextmanager

from gateway.model.objects import BlobRef
from gateway.policies.pools import DEFAULT, STREAM, Pool
from gateway.store.index import database, schema
from gateway.store.index.objects import PrefixTotals
from rig.consistency import assert_index_equals_disk
from tests.stores import BLOCK, get, key_of, meta_of, put, query, write_blob

MANY = 3 * schema.ROWS + 5


@asynccontextmanager
async def held_up(store):
    """Keep the index's writer busy, so that it performs all requests of the block in one transaction."""
    gate = threading.Event()
    busy = asyncio.ensure_future(store._disk.write(lambda connection: gate.wait(20)))
    try:
        yield
    finally:
        gate.set()
        await busy


def recording(store, name: str, content: bytes, etag: str, ref: BlobRef):
    """A fill that ends now."""
    key, grants = key_of(name), {"default/AK": 5.0}
    meta, generation = meta_of(content, etag), store.generations.of(key)
    return asyncio.ensure_future(
        store.record(key, meta, BLOCK, {0: ref}, generation=generation, confirmed_at=1.0, grants=grants)
    )


async def record_together(store, contents: list[tuple[str, bytes, str]]):
    """Record objects (name, content, ETag) in one transaction and return the record of each."""
    refs = [await write_blob(store, content) for _, content, _ in contents]
    async with held_up(store):
        tasks = [recording(store, *each, ref) for each, ref in zip(contents, refs, strict=True)]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks)


async def test_objects_that_are_recorded_together_are_each_found(store, root):
    """Every object leads to its own bytes and has its own grant, however many there are."""
    records = await record_together(store, [(f"o{n}", b"bytes %d" % n, f'"{n}"') for n in range(MANY)])
    assert len({record.row_id for record in records}) == MANY
    for number, record in enumerate(records):
        assert await store.lookup(key_of(f"o{number}")) == record
        assert await get(store, f"o{number}") == b"bytes %d" % number
        assert await store.grants(record.row_id) == {"default/AK": 5.0}
    assert_index_equals_disk(root)


async def test_objects_of_the_same_bytes_share_a_blob_when_recorded_together(store, root):
    """The bytes are counted once."""
    await record_together(store, [(f"o{n}", b"the same", '"e"') for n in range(5)])
    assert [await get(store, f"o{n}") for n in range(5)] == [b"the same"] * 5
    assert query(root, "SELECT bytes, blobs FROM pools WHERE id = 0") == [(8, 1)]
    assert_index_equals_disk(root)


async def test_one_object_twice_among_others_is_recorded_in_order(store, root):
    """The later version of an object replaces the earlier one, whose bytes go."""
    await record_together(store, [("a", b"old", '"1"'), ("b", b"other", '"1"'), ("a", b"new", '"2"')])
    assert [await get(store, name) for name in "ab"] == [b"new", b"other"]
    assert query(root, "SELECT count(*) FROM blobs") == [(2,)]


async def test_objects_with_a_row_are_merged_among_new_ones(store, root):
    """An object of another ETag is replaced; one of the same keeps its row."""
    kept, _ = await put(store, "kept", b"kept")
    await put(store, "changed", b"before")
    records = await record_together(
        store, [("kept", b"kept", '"e1"'), ("changed", b"after", '"e2"'), ("new", b"new", '"e3"')]
    )
    assert records[0].row_id == kept.row_id
    assert [await get(store, name) for name in ("kept", "changed", "new")] == [b"kept", b"after", b"new"]


async def test_what_was_written_meanwhile_is_left_out_of_those_recorded_together(store, root):
    """A fill that a write overtook is not recorded, and its file goes; the others are."""
    contents = [b"bytes %d" % number for number in range(4)]
    refs = [await write_blob(store, content) for content in contents]
    async with held_up(store):
        tasks = [recording(store, f"o{number}", contents[number], '"e"', refs[number]) for number in range(4)]
        await asyncio.sleep(0)
        store.generations.bump(key_of("o2"))
    records = await asyncio.gather(*tasks)
    assert [record is not None for record in records] == [True, True, False, True]
    await store._disk.write(lambda connection: None)
    assert_index_equals_disk(root)


async def test_objects_that_are_recorded_together_keep_the_capacity(open_store, root):
    """Objects are recorded while there is room beside those of another worker; the files of the rest are removed."""
    store, sibling = await open_store(capacity=3 * BLOCK), await open_store(capacity=3 * BLOCK)
    refs = [await write_blob(store, bytes([number]) * BLOCK) for number in range(2)]
    await put(sibling, "first", b"f" * BLOCK)
    await put(sibling, "second", b"s" * BLOCK)
    async with held_up(store):
        tasks = [recording(store, f"o{number}", bytes(BLOCK), '"e"', ref) for number, ref in enumerate(refs)]
        await asyncio.sleep(0)
    records = await asyncio.gather(*tasks)
    assert [record is not None for record in records] == [True, False]
    await store._disk.write(lambda connection: None)
    assert_index_equals_disk(root)


async def test_each_enters_the_pool_of_its_own_stream(store, root):
    """Pools are chosen for every object, and counted."""
    stream = Pool(f"{STREAM}bucket/deep/", 10**6)
    await store.pools.define([stream, Pool(DEFAULT, 10**6)])
    await record_together(store, [("deep/a", b"12345", '"e"'), ("flat", b"123", '"e"'), ("deep/b", b"1", '"e"')])
    counted = dict(query(root, "SELECT name, bytes FROM pools"))
    assert (counted[stream.name], counted[DEFAULT]) == (6, 3)
    assert_index_equals_disk(root)


async def test_recordings_wait_for_others_until_another_operation_comes(store, monkeypatch):
    """Recordings of several turns of the event loop are written by one call; the order of all operations is kept."""
    monkeypatch.setattr(database, "GATHER", 3600.0)
    done = []

    def together(_connection, arguments):
        done.append(list(arguments))
        return arguments

    waiting = []
    for number in range(3):
        waiting.append(store._disk.write_each(together, number))
        await asyncio.sleep(0)
    assert done == []
    await store._disk.write(lambda connection: done.append("another"))
    assert await asyncio.gather(*waiting) == [0, 1, 2]
    assert done == [[0, 1, 2], "another"]


async def test_a_recording_that_somebody_waits_for_does_not_wait(store, monkeypatch):
    """Recordings that must not wait are written at once, with those that waited."""
    monkeypatch.setattr(database, "GATHER", 3600.0)
    first = store._disk.write_each(lambda _connection, arguments: arguments, 1)
    assert await store._disk.write_each(lambda _connection, arguments: arguments, 2, False) == 2
    assert await first == 1


async def test_what_waits_to_be_recorded_is_counted(store, monkeypatch):
    """An object that was just read is held, though its recording still waits for others."""
    monkeypatch.setattr(database, "GATHER", 3600.0)
    task = recording(store, "dir/new", b"12345", '"e"', await write_blob(store, b"12345"))
    await asyncio.sleep(0)
    assert await store.held(key_of("dir/")) == PrefixTotals(1, 5)
    await task


async def test_look_ups_of_one_moment_share_a_call(store):
    """All look-ups of one turn of the event loop are answered by one call, without delay."""
    done = []

    def together(_connection, arguments):
        done.append(list(arguments))
        return arguments

    assert await asyncio.gather(*(store._disk.look_each(together, number) for number in range(3))) == [0, 1, 2]
    assert done == [[0, 1, 2]]


async def test_look_ups_together_find_what_each_finds_alone(store):
    """Concurrent look-ups of objects with a row, without one, and with an impossible key each find the same as alone."""
    for number in range(3):
        await put(store, f"o{number}", b"bytes %d" % number)
    keys = [key_of(name) for name in ("o0", "absent", "o1", "\ud800", "o2", "o0")]
    found = await asyncio.gather(*(store.known(key, 64) for key in keys))
    assert found == [await store.known(key, 64) for key in keys]
    assert [known is not None for known in found] == [True, False, True, False, True, True]


async def test_recordings_are_written_before_the_index_is_closed(store, monkeypatch):
    """Closing the store writes the recordings that still wait for others."""
    monkeypatch.setattr(database, "GATHER", 3600.0)
    waiting = store._disk.write_each(lambda connection, arguments: arguments, 1)
    await store.close()
    assert await waiting == 1
