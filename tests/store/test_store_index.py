"""The index: objects, blocks and grants."""

import asyncio
import subprocess
import sys

import pytest

from gateway.model.errors import DiskUnavailable
from gateway.model.objects import ObjectMeta
from gateway.store.index.index_file import ensure_index
from gateway.store.index.objects import PrefixTotals
from rig.consistency import assert_index_equals_disk, files_of
from tests.stores import BLOCK, eventually, get, key_of, meta_of, put, query, write_blob


async def test_an_object_is_found_as_it_was_recorded(store):
    """Look-up gives back ETag, headers and checksums exactly, and the blocks lead to the bytes."""
    content = bytes(range(256)) * 40
    meta = ObjectMeta(
        '"abc-3"', len(content), "then", (("X-Amz-Meta-Ü", "ö, ü"), ("A", "")), (("x-amz-checksum-crc32", "q"),)
    )
    refs = {no: await write_blob(store, content[no * BLOCK : (no + 1) * BLOCK]) for no in range(3)}
    key = key_of("dir/ключ\n🙂")
    recorded = await store.record(key, meta, BLOCK, refs, generation=store.generations.of(key), confirmed_at=7.5)
    found = await store.lookup(key)
    assert found == recorded
    assert (found.meta, found.block_size, found.confirmed_at) == (meta, BLOCK, 7.5)
    assert await store.blocks(found.row_id, 0, 2) == refs
    assert await store.blocks(found.row_id, 1, 1) == {1: refs[1]}


async def test_unknown_objects_are_not_found(store):
    """Origin, bucket and key must all be equal, letter for letter."""
    await put(store, "Data.txt", b"x")
    assert await store.lookup(key_of("data.txt")) is None
    assert await store.lookup(key_of("Data.txt")) is not None


async def test_an_empty_object_is_one_empty_blob(store):
    """Zero bytes are cached like any others."""
    await put(store, "empty", b"")
    assert await get(store, "empty") == b""


async def test_the_index_survives_a_restart(open_store):
    """The next start finds recorded objects with their grants."""
    first = await open_store()
    record, _ = await put(first, "a", b"abc")
    await first.grant(record.row_id, "default/AK", 5.0)
    await first.close()
    second = await open_store()
    assert await second.lookup(key_of("a")) == record
    assert await second.grants(record.row_id) == {"default/AK": 5.0}
    assert await get(second, "a") == b"abc"


async def test_blocks_of_the_same_object_are_merged(store, root):
    """A second fill of the same ETag adds its blocks to the existing row."""
    content = bytes(BLOCK) + b"x" * BLOCK
    meta, key = meta_of(content), key_of("big")
    first = await write_blob(store, content[:BLOCK])
    second = await write_blob(store, content[BLOCK:])
    generation = store.generations.of(key)
    one = await store.record(key, meta, BLOCK, {0: first}, generation=generation, confirmed_at=1.0)
    assert await get(store, "big") is None
    two = await store.record(key, meta, BLOCK, {1: second}, generation=generation, confirmed_at=2.0)
    assert (two.row_id, two.confirmed_at) == (one.row_id, 2.0)
    assert await get(store, "big") == content
    assert_index_equals_disk(root)


async def test_merging_refreshes_headers_and_keeps_checksums_that_were_not_stated(store):
    """The newer answer's headers replace the older ones; an answer without checksums keeps the known ones."""
    key, ref = key_of("a"), await write_blob(store, b"abc")
    generation = store.generations.of(key)
    full = ObjectMeta('"e"', 3, "then", (("A", "1"),), (("x-amz-checksum-crc32", "q"),))
    ranged = ObjectMeta('"e"', 3, "then", (("A", "2"),), None)
    await store.record(key, full, BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
    await store.record(key, ranged, BLOCK, {0: ref}, generation=generation, confirmed_at=2.0)
    found = await store.lookup(key)
    assert (found.meta.headers, found.meta.checksums) == ((("A", "2"),), full.checksums)


async def test_another_etag_replaces_the_object_and_its_grants(store, root):
    """The old row, its blocks and the grants for it go; so do its bytes."""
    old, _ = await put(store, "a", b"old")
    await store.grant(old.row_id, "default/AK", 1.0)
    new, refs = await put(store, "a", b"newer", etag='"e2"')
    assert new.row_id != old.row_id
    assert await store.grants(new.row_id) == {}
    assert await store.grants(old.row_id) == {}
    await eventually(lambda: list(files_of(root)) == [refs[0].digest.hex()])
    assert_index_equals_disk(root)


async def test_other_bytes_under_the_same_etag_take_the_place_of_the_block(store, root):
    """An origin that reuses an ETag leaves no blob without an object."""
    await put(store, "a", b"old")
    _, refs = await put(store, "a", b"new")
    assert await get(store, "a") == b"new"
    await eventually(lambda: list(files_of(root)) == [refs[0].digest.hex()])
    assert_index_equals_disk(root)


async def test_equal_bytes_are_stored_once(store, root):
    """Two keys with equal content share one file, which is counted once."""
    await put(store, "a", b"same")
    await put(store, "b", b"same", etag='"other"')
    assert len(files_of(root)) == 1
    assert (store.status().bytes, store.status().blobs) == (4, 1)
    assert_index_equals_disk(root)


async def test_a_shared_blob_stays_while_one_object_needs_it(store, root):
    """Forgetting one of two objects with equal bytes leaves the other readable; forgetting both removes the file."""
    await put(store, "a", b"same")
    await put(store, "b", b"same")
    await store.forget([key_of("a")])
    assert (await get(store, "a"), await get(store, "b")) == (None, b"same")
    await store.forget([key_of("b")])
    await eventually(lambda: files_of(root) == {})
    assert_index_equals_disk(root)


async def test_a_fill_from_before_a_write_is_not_recorded(store, root):
    """A generation that moved since the origin was asked means old bytes: nothing is stored and the file goes."""
    generation = store.generations.of(key_of("a"))
    ref = await write_blob(store, b"stale")
    await store.forget([key_of("a")])
    recorded = await store.record(
        key_of("a"), meta_of(b"stale"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0
    )
    assert recorded is None
    assert await store.lookup(key_of("a")) is None
    await eventually(lambda: files_of(root) == {})


async def test_a_write_in_another_worker_fences_fills_here(open_store):
    """The bump of one worker is seen by the transaction of another."""
    here, there = await open_store(), await open_store()
    generation = here.generations.of(key_of("a"))
    ref = await write_blob(here, b"stale")
    await there.forget([key_of("a")])
    assert (
        await here.record(key_of("a"), meta_of(b"stale"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
        is None
    )


async def test_a_fenced_fill_leaves_bytes_that_others_use(store):
    """Refusing to record must not delete a blob that another object shares."""
    await put(store, "b", b"same")
    generation = store.generations.of(key_of("a"))
    ref = await write_blob(store, b"same")
    await store.forget([key_of("a")])
    await store.record(key_of("a"), meta_of(b"same"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
    await store.forget([])
    assert await get(store, "b") == b"same"


async def test_forgetting_bumps_before_and_after(store):
    """A generation read before or during a forget differs from the one after it."""
    key = key_of("a")
    await put(store, "a", b"abc")
    before = store.generations.of(key)
    forgetting = asyncio.ensure_future(store.forget([key]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    between = store.generations.of(key)
    await forgetting
    assert len({before, between, store.generations.of(key)}) == 3


async def test_forgetting_goes_through_when_its_caller_is_cancelled(store, root):
    """A forget completes when its caller is cancelled, for example by a client that hangs up during its PUT."""
    await put(store, "a", b"abc")
    forgetting = asyncio.ensure_future(store.forget([key_of("a")]))
    await asyncio.sleep(0)
    forgetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forgetting
    await eventually(lambda: files_of(root) == {})
    assert await store.lookup(key_of("a")) is None
    assert_index_equals_disk(root)


async def test_forgetting_a_prefix_takes_exactly_that_prefix(store, root):
    """Wildcards of SQL mean nothing; neighbours in key order and in other buckets stay."""
    names = ["a%/1", "a%/2", "a%", "ab/1", "a_/1", "a%/\U0010ffff"]
    for number, name in enumerate(names):
        await put(store, name, b"%d" % number)
    assert await store.forget_prefix(key_of("a%/")) == 3
    assert await store.forget_prefix(key_of("a")._replace(bucket="other")) == 0
    assert [await get(store, name) is None for name in names] == [True, True, False, False, False, True]
    await eventually(lambda: len(files_of(root)) == 3)


async def test_forgetting_one_key_leaves_longer_ones(store):
    """Only the object with that key is counted and forgotten, not those whose keys begin with it."""
    for name in ("a", "ab", "a/1"):
        await put(store, name, name.encode())
    assert await store.held(key_of("a"), exact=True) == PrefixTotals(1, 1)
    assert await store.forget_prefix(key_of("a"), exact=True) == 1
    assert await store.forget_prefix(key_of("missing"), exact=True) == 0
    assert [await get(store, name) is None for name in ("a", "ab", "a/1")] == [True, False, False]


async def test_forgetting_a_prefix_goes_beyond_one_page(store):
    """Prefixes with more than 500 objects are forgotten whole."""
    await asyncio.gather(*(put(store, f"p/{number}", b"x") for number in range(501)))
    assert await store.forget_prefix(key_of("p/")) == 501
    assert await store.lookup(key_of("p/500")) is None


async def test_forgetting_a_prefix_fences_fills_under_way(store):
    """A fill whose object has no row yet is fenced like any other."""
    generation = store.generations.of(key_of("p/new"))
    ref = await write_blob(store, b"stale")
    await store.forget_prefix(key_of("p/"))
    recorded = await store.record(
        key_of("p/new"), meta_of(b"stale"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0
    )
    assert recorded is None


async def test_confirming_refreshes_time_and_headers(store):
    """A confirmation of the same ETag makes the object fresher, never older."""
    await put(store, "a", b"abc", confirmed_at=10.0)
    newer = ObjectMeta('"e1"', 3, "then", (("Cache-Control", "max-age=1"),), None)
    await store.confirm(key_of("a"), newer, 20.0)
    found = await store.lookup(key_of("a"))
    assert (found.confirmed_at, found.meta.headers, found.meta.checksums) == (20.0, newer.headers, ())
    await store.confirm(key_of("a"), newer, 15.0)
    assert (await store.lookup(key_of("a"))).confirmed_at == 20.0


async def test_confirming_another_etag_changes_nothing(store):
    """A confirmation of another ETag neither refreshes nor changes the object."""
    record, _ = await put(store, "a", b"abc", confirmed_at=10.0)
    await store.confirm(key_of("a"), meta_of(b"abc", '"e2"'), 20.0)
    assert await store.lookup(key_of("a")) == record


async def test_grants_are_kept_per_identity_and_can_be_revoked(store):
    """A later grant replaces the time of an earlier one; revoking a grant leaves the others."""
    record, _ = await put(store, "a", b"abc")
    await store.grant(record.row_id, "o/A", 1.0)
    await store.grant(record.row_id, "o/A", 2.0)
    await store.grant(record.row_id, "o/B", 3.0)
    assert await store.grants(record.row_id) == {"o/A": 2.0, "o/B": 3.0}
    await store.revoke(record.row_id, "o/A")
    assert await store.grants(record.row_id) == {"o/B": 3.0}


async def test_a_grant_for_a_forgotten_row_reaches_no_other_object(store):
    """Row ids are never reused, so a late grant cannot open the object that came next."""
    old, _ = await put(store, "a", b"abc")
    await store.forget([key_of("a")])
    await store.grant(old.row_id, "o/A", 1.0)
    new, _ = await put(store, "b", b"def")
    assert new.row_id != old.row_id
    assert await store.grants(new.row_id) == {}


@pytest.mark.parametrize("damage", ["gone", "short"])
async def test_a_block_whose_file_is_gone_or_short_is_not_recorded(store, root, damage):
    """A row never promises bytes that are not there."""
    key, ref = key_of("a"), await write_blob(store, b"abc")
    path = root / "blobs" / ref.digest.hex()[:2] / ref.digest.hex()[2:]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"a")
    recorded = await store.record(
        key, meta_of(b"abc"), BLOCK, {0: ref}, generation=store.generations.of(key), confirmed_at=1.0
    )
    assert recorded is None
    await eventually(lambda: files_of(root) == {})
    assert_index_equals_disk(root)


async def test_concurrent_calls_are_all_done(store, root):
    """Group commit loses nothing: a hundred objects recorded, granted and half of them forgotten at once."""
    rows = await asyncio.gather(*(put(store, f"k{number}", b"%d" % number) for number in range(100)))
    await asyncio.gather(
        *(store.grant(record.row_id, "o/A", 1.0) for record, _ in rows),
        *(store.forget([key_of(f"k{number}")]) for number in range(50)),
    )
    assert [await get(store, f"k{number}") for number in range(100)] == [None] * 50 + [
        b"%d" % n for n in range(50, 100)
    ]
    assert query(root, "SELECT count(*) FROM grants") == [(50,)]
    await eventually(lambda: len(files_of(root)) == 50)
    assert_index_equals_disk(root)


async def test_headers_that_are_no_utf8_come_back_as_they_were(store):
    """Bytes above ASCII in an origin's header, decoded with surrogates, survive the index."""
    key, ref = key_of("a"), await write_blob(store, b"abc")
    meta = ObjectMeta(
        '"e"', 3, "then", (("x-amz-meta-a", b"caf\xe9".decode("utf-8", "surrogateescape")), ("b", "é")), ()
    )
    await store.record(key, meta, BLOCK, {0: ref}, generation=store.generations.of(key), confirmed_at=1.0)
    assert (await store.lookup(key)).meta == meta


async def test_a_key_that_is_no_text_is_not_cached_and_fails_nothing(store):
    """Look-up, record and forget of such a key do nothing, to it or to others asked at the same time."""
    key = key_of("\udce9")
    ref = await write_blob(store, b"abc")
    generation = store.generations.of(key)
    recorded, (other, _), _ = await asyncio.gather(
        store.record(key, meta_of(b"abc"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0),
        put(store, "b", b"def"),
        store.forget([key]),
    )
    assert recorded is None
    assert await store.lookup(key) is None
    assert await store.lookup(key_of("b")) == other
    assert store.status().state == "normal"


async def test_a_closed_store_answers_like_one_that_is_down(store):
    """A task that outlives the store is not left waiting."""
    await put(store, "a", b"abc")
    await store.close()
    assert await store.lookup(key_of("a")) is None
    await store.forget([key_of("a")])
    with pytest.raises(DiskUnavailable):
        store.begin(1)


async def test_nobody_else_on_the_machine_can_read_the_cache(store, root):
    """Index, blobs and directory are readable only by the gateway's user, under any umask."""
    await put(store, "a", b"abc")
    files = [root, *root.glob("index.db*"), *root.glob("blobs/*/*"), store.directory.generations, root / "boot"]
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in files if path.stat().st_mode & 0o077} == {}


async def test_an_origin_that_moved_is_forgotten(open_store):
    """Rule: another endpoint under the same name is another store; objects of the old one are no longer served."""
    store = await open_store()
    assert await store.settle_origins({"default": "http://one"}) == []
    key = key_of("k")
    ref = await write_blob(store, b"old")
    generation = store.generations.of(key)
    await store.record(key, meta_of(b"old"), 8192, {0: ref}, generation=generation, confirmed_at=1.0)
    assert await store.settle_origins({"default": "http://one"}) == []
    assert await store.lookup(key) is not None
    assert await store.settle_origins({"default": "http://two"}) == ["default"]
    assert await store.lookup(key) is None
    assert store.generations.of(key) != generation
    assert await store.settle_origins({"default": "http://two"}) == []


async def test_a_probe_keeps_the_locks_of_the_index(open_store, root) -> None:
    """Rule: after a probe has looked at the index, another process that opens and closes it does not remove its log."""
    await open_store()
    log = root / "index.db-wal"
    before = log.stat().st_ino
    await asyncio.to_thread(ensure_index, root / "index.db", None)
    look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM blobs').fetchone(); c.close()"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", look, str(root / "index.db")], check=True)
    assert log.stat().st_ino == before
