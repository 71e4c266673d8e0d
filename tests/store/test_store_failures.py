"""The cache disk fails in every way that could be arranged; no call fails with it, and the disk is found again."""

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.policies.health.breaker import BreakerState
from gateway.store.files.growing import GrowingBlob
from gateway.store.files.threads import closer
from rig.consistency import assert_index_equals_disk, files_of
from tests.faults import FaultyDirectory
from tests.stores import BLOCK, eventually, get, key_of, meta_of, put, query, touch, write_blob


@contextmanager
def mounted(path, *options: str):
    """A small file system in memory."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "larder-test", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def remount(path, option: str) -> None:
    """Change a mounted file system."""
    subprocess.run(["mount", "-o", f"remount,{option}", path], check=True)


async def write_much(blob) -> None:
    """Write eight megabytes."""
    for _ in range(8):
        await blob.write(bytes(1024**2))


def fill_up(path) -> None:
    """Write until the file system is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def assert_bypassed(store, reason: str = "disk") -> None:
    """A store that is down answers everything, at once, with nothing."""
    key = key_of("any")
    assert store.status().state is BreakerState.DOWN
    assert await store.lookup(key) is None
    assert await store.blocks(1, 0, 0) == {}
    assert await store.grants(1) == {}
    await store.grant(1, "o/A", 1.0)
    await store.revoke(1, "o/A")
    await store.confirm(key, meta_of(b"x"), 1.0)
    await store.forget([key])
    assert not await store.make_room(1)
    with pytest.raises(DiskUnavailable) as refusal:
        store.begin(1)
    assert refusal.value.reason == reason
    touch(store, b"x" * 32, 1.0)
    assert not await store.try_lock()


async def come_back(store, clock) -> None:
    """Let the probe's time come."""
    clock.time += 60
    await store.sweep()
    assert store.status().state is not BreakerState.DOWN


async def test_a_directory_that_cannot_be_made_is_bypassed(open_store, root):
    """Opening never fails: a path below a file gives a store that is down."""
    root.write_text("in the way")
    store = await open_store()
    await assert_bypassed(store)
    await store.sweep()
    assert (await store.recover()).blobs == 0


async def test_a_directory_that_can_be_made_later_is_used_then(open_store, root, clock):
    """The probe makes the missing directory, and the store works as if it had existed from the start."""
    root.write_text("in the way")
    store = await open_store()
    root.unlink()
    await store.sweep()
    assert store.status().state is BreakerState.DOWN
    await come_back(store, clock)
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"
    assert_index_equals_disk(root)


async def test_a_directory_deleted_while_running_is_made_anew(open_store, root, clock):
    """Deleting the cache directory loses the cached objects and nothing else."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    generation = store.generations.of(key_of("a"))
    shutil.rmtree(root)
    assert await store.lookup(key_of("a")) is None
    assert store.resident(ref) is None
    with pytest.raises(BlobGone):
        await store.open_blob(ref)
    await assert_bypassed(store)
    await come_back(store, clock)
    assert store.generations.of(key_of("a")) != generation
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"
    assert_index_equals_disk(root)


async def test_a_probe_needs_no_keeper(open_store, root, clock):
    """A worker that does not sweep probes the disk at its next use."""
    store = await open_store()
    shutil.rmtree(root)
    assert await store.lookup(key_of("a")) is None
    clock.time += 60
    assert await store.lookup(key_of("a")) is None
    await eventually(lambda: store.status().state is not BreakerState.DOWN)
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"


async def test_workers_meet_again_in_a_directory_made_anew(open_store, root, clock):
    """After a deletion every worker uses the same new table, so that a write in one fences fills in the other."""
    one, two = await open_store(), await open_store()
    shutil.rmtree(root)
    for store in (one, two):
        assert await store.lookup(key_of("a")) is None
        await come_back(store, clock)
    generation = one.generations.of(key_of("a"))
    ref = await write_blob(one, b"stale")
    await two.forget([key_of("a")])
    assert (
        await one.record(key_of("a"), meta_of(b"stale"), BLOCK, {0: ref}, generation=generation, confirmed_at=1.0)
        is None
    )
    await put(one, "b", b"shared")
    assert await get(two, "b") == b"shared"


async def test_a_worker_that_missed_the_new_directory_still_reaches_the_others(open_store, root, clock):
    """A forget looks for the table at the path, so it holds for workers that have already moved on."""
    one, two = await open_store(), await open_store()
    shutil.rmtree(root)
    assert await one.lookup(key_of("a")) is None
    await come_back(one, clock)
    generation = one.generations.of(key_of("a"))
    await two.forget([key_of("a")])
    assert one.generations.of(key_of("a")) != generation


async def test_a_full_disk_refuses_fills_and_keeps_reading(open_store, tmp_path):
    """On a full file system fills fail with no-space, and cached objects are still served."""
    with mounted(tmp_path / "small", "size=3m"):
        store = await open_store(dir=str(tmp_path / "small" / "cache"))
        await put(store, "a", b"abc")
        blob = store.begin(1000)
        with pytest.raises(DiskUnavailable) as refusal:
            await write_much(blob)
        assert refusal.value.reason == "no-space"
        assert await get(store, "a") == b"abc"
        blob.end()
        await closer.done()
        await put(store, "b", b"def")
        assert await get(store, "b") == b"def"
        await store.close()


async def test_a_disk_filled_by_others_is_survived_and_used_again(open_store, tmp_path, clock):
    """With no byte left, not even the index can be written; when there is space again, everything works."""
    with mounted(tmp_path / "small", "size=3m"):
        directory = FaultyDirectory(tmp_path / "small" / "cache")
        # The file system's own word would end every attempt before it begins.
        directory.free_bytes = 10**9
        store = await open_store(directory=directory)
        await put(store, "a", b"abc")
        ballast = tmp_path / "small" / "ballast"
        with pytest.raises(OSError):
            fill_up(ballast)
        generation = store.generations.of(key_of("b"))
        for number in range(8):
            try:
                ref = await write_blob(store, b"%d" % number * 5000)
            except DiskUnavailable:
                continue
            await store.record(
                key_of("b"), meta_of(b"x" * 5000), 8192, {0: ref}, generation=generation, confirmed_at=1.0
            )
        assert store.status().state is BreakerState.DOWN
        await assert_bypassed(store, "no-space")
        ballast.unlink()
        await come_back(store, clock)
        await put(store, "c", b"def")
        assert (await get(store, "a"), await get(store, "c")) == (b"abc", b"def")
        await store.close()


async def test_a_blob_whose_row_found_no_room_is_removed(open_store, tmp_path, clock):
    """If the disk fills up between a blob and its row, the file without a row is removed as soon as possible."""
    with mounted(tmp_path / "small", "size=3m"):
        store = await open_store(dir=str(tmp_path / "small" / "cache"))
        await put(store, "a", b"abc")
        generation = store.generations.of(key_of("b"))
        ref = await write_blob(store, b"b" * 5000)
        with pytest.raises(OSError):
            fill_up(tmp_path / "small" / "ballast")
        # Each one needs a page of the index more; the log has some room left, so not the first one fails.
        meta = meta_of(b"b" * 5000)
        for number in range(50):
            key = key_of(f"b{number}" * 100)
            generation = store.generations.of(key)
            if await store.record(key, meta, 8192, {0: ref}, generation=generation, confirmed_at=1.0) is None:
                break
            await store.forget([key])
        else:
            pytest.fail("the index never ran out of space")
        (tmp_path / "small" / "ballast").unlink()
        await come_back(store, clock)
        await store.sweep()
        await eventually(lambda: len(files_of(tmp_path / "small" / "cache")) == 1)
        assert_index_equals_disk(tmp_path / "small" / "cache")
        await store.close()


async def test_a_read_only_file_system_is_bypassed_until_it_can_be_written(open_store, tmp_path, clock):
    """A cache that is mounted read-only gives a store that is down; remounted, it works."""
    with mounted(tmp_path / "small", "size=3m", "ro"):
        store = await open_store(dir=str(tmp_path / "small" / "cache"))
        await assert_bypassed(store)
        remount(tmp_path / "small", "rw")
        await come_back(store, clock)
        await put(store, "a", b"abc")
        assert await get(store, "a") == b"abc"
        await store.close()


async def test_a_file_system_that_turns_read_only_is_bypassed(open_store, tmp_path, clock):
    """A read-only file system mounted over the cache directory takes the store down; after the unmount it comes back."""
    root = tmp_path / "cache"
    store = await open_store(dir=str(root))
    await put(store, "a", b"abc")
    with mounted(root, "ro"):
        with pytest.raises(DiskUnavailable):
            await store.begin(1).write(b"x")
        await assert_bypassed(store)
    await come_back(store, clock)
    assert await get(store, "a") == b"abc"


async def test_input_output_errors_open_the_breaker(open_store, root, clock):
    """Writes that fail with EIO bring the store down after five, with no exception but DiskUnavailable; a probe revives it."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    await put(store, "a", b"abc")
    directory.break_everything(errno.EIO)
    for _ in range(5):
        blob = store.begin(3)
        with pytest.raises(DiskUnavailable):
            await blob.write(b"abc")
        blob.end()
    await assert_bypassed(store)
    clock.time += 60
    await store.sweep()
    assert store.status().state is BreakerState.DOWN
    directory.break_everything(0)
    await come_back(store, clock)
    assert await get(store, "a") == b"abc"


@pytest.mark.parametrize(("code", "served"), [(errno.EROFS, True), (errno.ENOSPC, True), (errno.EIO, False)])
async def test_a_disk_that_cannot_be_written_still_serves_open_files(open_store, root, code, served):
    """While the store is down, open blobs are resident unless the disk fails to read and write alike."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    _, (ref,) = await put(store, "a", b"abc")
    directory.break_everything(code)
    while store.usable:
        blob = store.begin(3)
        with pytest.raises(DiskUnavailable):
            await blob.write(b"abc")
        blob.end()
    assert (store.resident(ref) is not None) is served


async def test_a_write_that_takes_seconds_makes_the_disk_unstable(store):
    """A write that takes three seconds makes the disk unstable, even if it succeeds."""
    moments = iter([10.0, 13.0])
    blob = GrowingBlob(store, 3, clock=lambda: next(moments))
    await blob.write(b"abc")
    assert (store.status().state, store.status().cause) == (BreakerState.UNSTABLE, "slow")
    blob.end()


class Busy:
    """A store whose threads take five seconds to get to a step."""

    def __init__(self, store, clock):
        self._store, self._clock = store, clock

    def __getattr__(self, name):
        return getattr(self._store, name)

    def append_on_disk(self, work):
        """As the store does, later."""
        self._clock.time += 5
        return self._store.append_on_disk(work)

    on_disk = append_on_disk


async def test_waiting_for_a_thread_is_not_the_disks_fault(store, clock):
    """A write that waits for a thread for seconds, and is quick then, leaves the disk normal."""
    blob = GrowingBlob(Busy(store, clock), 6, clock=clock)
    await blob.write(b"abc")
    await blob.commit(b"def")
    assert store.status().state is BreakerState.NORMAL


async def test_success_after_a_while_makes_the_disk_normal_again(open_store, root, clock):
    """One failure shows as unstable, and is forgotten after a calm time."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    directory.write_errno = errno.EIO
    blob = store.begin(3)
    with pytest.raises(DiskUnavailable):
        await blob.write(b"abc")
    blob.end()
    assert (store.status().state, store.status().cause) == (BreakerState.UNSTABLE, "io")
    directory.write_errno = 0
    clock.time += 60
    await put(store, "a", b"abc")
    assert store.status().state is BreakerState.NORMAL


def damage_pages(path) -> None:
    """Overwrite every page of the index but its header."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


async def test_an_index_that_is_garbage_at_the_start_begins_anew(open_store, root):
    """A file that is not a database is replaced by an empty index, and the blobs without rows are removed."""
    store = await open_store()
    await put(store, "a", b"abc")
    await store.close()
    (root / "index.db").write_bytes(b"garbage" * 1000)
    store = await open_store()
    assert store.status().state is BreakerState.NORMAL
    assert await store.lookup(key_of("a")) is None
    assert await store.try_lock()
    await store.sweep()
    assert files_of(root) == {}
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"
    assert_index_equals_disk(root)


async def test_an_index_found_corrupt_in_use_begins_anew(open_store, root, clock):
    """Pages that turn out malformed bring the store down; the probe starts a new index, orphans go, fills work again."""
    store = await open_store()
    assert await store.try_lock()
    for number in range(50):
        await put(store, f"{number}", b"%d" % number)
    await store.close()
    damage_pages(root / "index.db")
    store = await open_store()
    for number in range(50):
        assert await store.lookup(key_of(f"{number}")) is None
    if store.status().state is BreakerState.DOWN:
        assert store.status().cause == "corrupt"
        await come_back(store, clock)
    assert await store.try_lock()
    await store.sweep()
    assert files_of(root) == {}
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"
    assert_index_equals_disk(root)


async def test_an_index_with_one_bad_page_begins_anew(open_store, root, clock):
    """Damage that shows only when the index is used, not when it is opened, also leads to a new index."""
    store = await open_store()
    await put(store, "a", b"abc")
    await store.close()
    ((page,),) = query(root, "SELECT rootpage FROM sqlite_master WHERE name = 'objects'")
    with (root / "index.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    store = await open_store()
    assert store.usable
    assert await store.lookup(key_of("a")) is None
    await assert_bypassed(store)
    await come_back(store, clock)
    await put(store, "a", b"abc")
    assert await get(store, "a") == b"abc"


async def test_an_index_that_vanishes_in_use_begins_anew(open_store, root, clock):
    """The store notices a deleted index and starts a new one, whereas SQLite would keep writing to the deleted file."""
    store = await open_store()
    await put(store, "a", b"abc")
    for path in root.glob("index.db*"):
        path.unlink()
    assert await store.lookup(key_of("a")) is None
    await assert_bypassed(store)
    await come_back(store, clock)
    assert await store.try_lock()
    await store.sweep()
    assert files_of(root) == {}
    await put(store, "a", b"abc")
    assert_index_equals_disk(root)


async def test_what_was_forgotten_while_the_index_failed_stays_forgotten(open_store, root, clock):
    """A write during an outage hides the old row from every worker, then and after the disk is back."""
    directory = FaultyDirectory(root)
    broken, healthy = await open_store(directory=directory), await open_store()
    await put(broken, "a", b"old")
    await put(broken, "b", b"kept")
    directory.break_everything(errno.EROFS)
    with pytest.raises(DiskUnavailable):
        await broken.begin(1).write(b"x")
    await assert_bypassed(broken)
    await broken.forget([key_of("a")])
    assert await healthy.lookup(key_of("a")) is None
    directory.break_everything(0)
    await come_back(broken, clock)
    assert await broken.lookup(key_of("a")) is None
    assert await broken.try_lock()
    await broken.sweep()
    assert broken.generations.trusts(key_of("a"))
    assert await broken.lookup(key_of("a")) is None
    await put(healthy, "a", b"new")
    assert await get(broken, "a") == b"new"


async def test_a_prefix_forgotten_during_an_outage_hides_everything(open_store, root, clock):
    """The rows of the prefix cannot be queried during the outage, so all rows are distrusted until a keeper has deleted them."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    await put(store, "a", b"abc")
    directory.break_everything(errno.EROFS)
    with pytest.raises(DiskUnavailable):
        await store.begin(1).write(b"x")
    assert await store.forget_prefix(key_of("")) == 0
    directory.break_everything(0)
    await come_back(store, clock)
    assert await store.lookup(key_of("a")) is None
    assert await store.try_lock()
    await store.sweep()
    assert files_of(root) == {}
    await put(store, "a", b"new")
    assert await get(store, "a") == b"new"


async def test_a_forget_during_an_outage_bumps(open_store, root):
    """A forget invalidates entries in memory and fills in progress, even while the disk is down."""
    root.write_text("in the way")
    store = await open_store()
    before = store.generations.of(key_of("a"))
    await store.forget([key_of("a")])
    assert store.generations.of(key_of("a")) != before


async def test_new_objects_never_get_the_ids_of_a_lost_index(open_store, root, clock):
    """After a loss of the index, row ids are not reused, so a remembered grant never applies to another object."""
    store = await open_store()
    old, _ = await put(store, "a", b"abc")
    shutil.rmtree(root)
    await store.lookup(key_of("a"))
    await come_back(store, clock)
    new, _ = await put(store, "b", b"def")
    await store.grant(old.row_id, "o/A", 1.0)
    assert await store.grants(new.row_id) == {}
