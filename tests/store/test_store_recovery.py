"""After a crash: no short object, index equals disk, no orphan; several workers on one directory."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from gateway.store.files.directory import CacheDirectory
from rig.consistency import assert_index_equals_disk, files_of
from rig.forked import Forked
from tests.busy_worker import NAMES, content_of
from tests.stores import BLOCK, eventually, get, key_of, meta_of, put, query, write_blob

Start = Callable[..., Forked]


@pytest.fixture
def start_worker(forked, root) -> Start:
    """Starts busy workers on ``root``."""

    def start(seed: int, *, capacity: int = 60_000, rounds: int = 0) -> Forked:
        return forked("tests.busy_worker", root, seed, capacity, rounds)

    return start


async def assert_everything_is_right(store, root) -> int:
    """Assert that every object in the index can be read whole with the bytes of its key; return their number."""
    found = 0
    for number in range(NAMES):
        content = await get(store, str(number))
        if content is not None:
            assert content == content_of(str(number))
            found += 1
    assert_index_equals_disk(root)
    assert list((root / "tmp").iterdir()) == []
    return found


@pytest.mark.parametrize("lines", [1, 2, 5, 12])
async def test_a_killed_worker_leaves_nothing_wrong(open_store, root, start_worker, lines):
    """kill -9 at a random moment of filling, forgetting and evicting; after recovery index and disk are equal."""
    worker = start_worker(lines)
    for _ in range(lines):
        assert worker.stdout.readline()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    store = await open_store()
    assert await store.try_lock()
    await store.recover()
    assert await assert_everything_is_right(store, root) > 0
    assert (store.status().corrupt_dropped, store.status().missing_dropped) == (0, 0)


async def test_one_of_two_workers_is_killed(open_store, root, start_worker):
    """The surviving worker continues and takes over the node lock; the next start finds every object intact."""
    victim, survivor = start_worker(1), start_worker(2, rounds=80)
    for _ in range(3):
        assert victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert survivor.wait(60) == 0
    store = await open_store()
    assert await store.try_lock()
    await store.recover()
    assert await assert_everything_is_right(store, root) > 0


async def test_two_workers_share_one_directory(open_store, root, start_worker):
    """Two processes that fill, forget and evict the same objects end with an index that equals the disk."""
    workers = [start_worker(seed, rounds=80) for seed in (3, 4)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    store = await open_store()
    assert await assert_everything_is_right(store, root) > 0
    assert store.status().bytes == sum(files_of(root).values()) <= 60_000


async def test_recovery_of_a_healthy_cache_changes_nothing(open_store, root):
    """Recovery keeps and counts intact blobs."""
    store = await open_store()
    await put(store, "a", b"abc")
    await put(store, "big", b"x" * BLOCK + b"y" * 10)
    await store.close()
    store = await open_store()
    before = files_of(root)
    report = await store.recover()
    assert (report.leftovers, report.orphans, report.broken, report.miscounted) == (0, 0, 0, 0)
    assert (report.blobs, report.size) == (3, BLOCK + 13)
    assert files_of(root) == before


async def test_recovery_removes_what_has_no_row(open_store, root):
    """Recovery removes blobs without a row, files that are not blobs, and temporary files."""
    store = await open_store()
    await put(store, "a", b"abc")
    await write_blob(store, b"never recorded")
    await store.close()
    stranger = root / "blobs" / "00" / "stranger"
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(b"?")
    (root / "tmp" / "leftover").write_bytes(b"?")
    store = await open_store()
    report = await store.recover()
    assert (report.leftovers, report.orphans, report.broken) == (1, 1, 0)
    assert not stranger.exists()
    assert_index_equals_disk(root)
    assert await get(store, "a") == b"abc"


@pytest.mark.parametrize(("compared", "steps"), [(4096, 1), (1, 13)])
async def test_recovery_compares_a_small_cache_at_once(open_store, root, monkeypatch, compared, steps):
    """Rule: recovery compares the folders of few blobs in one step, those of many one after the other, and finds the same."""
    ranges: list[range] = []
    monkeypatch.setattr("gateway.store.evictor._COMPARED", compared)
    look = CacheDirectory.in_shards
    monkeypatch.setattr(
        CacheDirectory, "in_shards", lambda self, shards: (ranges.append(shards), look(self, shards))[1]
    )
    store = await open_store()
    for number in range(12):
        await put(store, str(number), bytes([number]) * 10)
    await store.close()
    blobs = sorted((root / "blobs").glob("*/*"))
    for lost in (blobs[0], blobs[-1]):
        lost.unlink()
    for shard in ("00", "7f", "80", "ff"):
        orphan = root / "blobs" / shard / ("0" * 62)
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"?")
    store = await open_store()
    report = await store.recover()
    assert (report.orphans, report.broken, report.blobs) == (4, 2, 10)
    assert_index_equals_disk(root)
    assert ([number for shards in ranges for number in shards], len(ranges)) == ([*range(256)], steps)


@pytest.mark.parametrize("damage", ["missing", "short"])
async def test_recovery_drops_rows_without_their_bytes(open_store, root, damage):
    """A row whose file is missing or short goes, with the objects that had nothing else."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    await put(store, "b", b"def")
    await store.close()
    path = root / "blobs" / ref.digest.hex()[:2] / ref.digest.hex()[2:]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"a")
    store = await open_store()
    report = await store.recover()
    assert (report.broken, report.blobs) == (1, 1)
    assert await store.lookup(key_of("a")) is None
    assert_index_equals_disk(root)


async def test_recovery_counts_again(open_store, root):
    """Recovery corrects wrong counts."""
    store = await open_store()
    await put(store, "a", b"abc")
    await store._disk.write(lambda connection: connection.execute("UPDATE pools SET bytes = 1000, blobs = 7"))
    report = await store.recover()
    assert (report.miscounted, report.size, report.blobs) == (-997, 3, 1)
    assert query(root, "SELECT bytes, blobs FROM pools") == [(3, 1), (3, 1)]


async def test_recovery_leaves_fills_of_this_start_alone(open_store, root):
    """Another worker may be in the middle of a fill, before or after its blob got its name."""
    keeper, worker = await open_store(), await open_store()
    growing = worker.begin(6)
    await growing.write(b"abc")
    generation = worker.generations.of(key_of("a"))
    named = await write_blob(worker, b"named")
    report = await keeper.recover()
    assert (report.leftovers, report.orphans) == (0, 0)
    await growing.write(b"def")
    await growing.commit()
    recorded = await worker.record(
        key_of("a"), meta_of(b"named"), BLOCK, {0: named}, generation=generation, confirmed_at=1.0
    )
    assert recorded is not None
    assert await get(worker, "a") == b"named"


async def test_a_fill_that_is_still_written_is_no_leftover_however_old(open_store, root):
    """A locked temporary file has a live writer and is kept at any age."""
    keeper, worker = await open_store(), await open_store()
    growing = worker.begin(6)
    await growing.write(b"abc")
    os.utime(growing.path, ns=(1, 1))
    assert (await keeper.recover()).leftovers == 0
    await growing.write(b"abc")
    await growing.commit()


async def test_an_audit_takes_orphans_by_age(open_store, root):
    """While the node runs, a blob without a row goes when it is older than the audit's limit, and not before."""
    store = await open_store()
    ref = await write_blob(store, b"young")
    changed = next((root / "blobs").glob("*/*")).stat().st_ctime_ns
    assert await store._evictor._audit(range(ref.digest[0], ref.digest[0] + 1), changed - 1) == (0, 0)
    assert len(files_of(root)) == 1
    assert await store._evictor._audit(range(ref.digest[0], ref.digest[0] + 1), changed) == (1, 0)
    assert files_of(root) == {}


async def test_sweeps_audit_one_shard_after_the_other(open_store, root, clock):
    """Once a minute a sweep compares the next of the 256 folders with the index."""
    store = await open_store()
    assert await store.try_lock()
    await store.sweep()
    stranger = root / "blobs" / "03" / "stranger"
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(b"?")
    gone_after = []
    for minute in range(1, 6):
        clock.time += 60
        await store.sweep()
        await store.sweep()
        if not stranger.exists():
            gone_after.append(minute)
    assert gone_after == [4, 5]


async def test_the_node_lock_has_one_holder_and_passes_on(open_store):
    """Only one worker is the keeper; when it leaves, the next one that asks becomes it."""
    one, two = await open_store(), await open_store()
    assert await one.try_lock()
    assert await one.try_lock()
    assert not await two.try_lock()
    assert (one.status().keeper, two.status().keeper) == (True, False)
    await one.close()
    assert await two.try_lock()


async def test_a_start_ends_when_the_last_worker_leaves(open_store):
    """Workers that overlap share the number of the start; the first one after all have gone makes a new one."""
    one, two = await open_store(), await open_store()
    number = one.directory.boot
    assert two.directory.boot == number
    await one.close()
    three = await open_store()
    assert three.directory.boot == number
    await two.close()
    await three.close()
    four = await open_store()
    assert four.directory.boot not in (0, number)


async def test_many_workers_open_a_new_directory_at_once(open_store, root):
    """Concurrent first starts of many workers agree on one index, one table and one number."""
    stores = await asyncio.gather(*(open_store() for _ in range(8)))
    assert len({store.directory.boot for store in stores}) == 1
    assert len({store.generations.of(key_of("a")) for store in stores}) == 1
    await asyncio.gather(*(put(store, f"{number}", b"%d" % number) for number, store in enumerate(stores)))
    assert [await get(stores[0], f"{number}") for number in range(8)] == [b"%d" % number for number in range(8)]
    await eventually(lambda: len(files_of(root)) == 8)
    assert_index_equals_disk(root)
