"""Blobs are written whole, verified once per start, and stay readable until the last reader releases them."""

import asyncio
import errno
import hashlib
import os
import resource
import threading
from zlib import crc32

import pytest

from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.model.objects import BlobRef
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.growing import SMALL
from gateway.store.files.threads import closer
from rig.consistency import assert_index_equals_disk, files_of
from rig.processes import open_files
from tests.faults import FaultyDirectory
from tests.stores import eventually, get, key_of, put, query, write_blob


def path_of(root, ref: BlobRef):
    """The file of a blob."""
    return root / "blobs" / ref.digest.hex()[:2] / ref.digest.hex()[2:]


def is_open(fd: int, content: bytes) -> bool:
    """True if the descriptor is open and its file has exactly these bytes."""
    try:
        return os.pread(fd, len(content) + 1, 0) == content
    except OSError:
        return False


async def test_a_committed_blob_is_named_by_what_was_written(store, root):
    """Digest, size and checksum are those of the bytes, in however many pieces they came."""
    blob = store.begin(6)
    await blob.write(b"ab")
    await blob.write(memoryview(b"cdef"))
    ref = await blob.commit()
    blob.end()
    assert ref == BlobRef(hashlib.sha256(b"abcdef").digest(), 6, crc32(b"abcdef"))
    assert path_of(root, ref).read_bytes() == b"abcdef"
    assert list((root / "tmp").iterdir()) == []


async def test_folders_are_made_for_the_blobs_there_are(store, root):
    """Rule: a new cache opens without making 256 folders; the first blob of a folder makes it."""
    assert list((root / "blobs").iterdir()) == []
    ref = await write_blob(store, b"first")
    assert [path.name for path in (root / "blobs").iterdir()] == [ref.digest.hex()[:2]]


async def test_readers_follow_a_growing_blob_beyond_its_commit(store):
    """Bytes below ``received`` can be read at once; a reader's descriptor outlives the commit and closes when he leaves."""
    blob = store.begin(6)
    assert blob.join()
    await blob.write(b"abc")
    assert os.pread(blob.fd, blob.received, 0) == b"abc"
    await blob.write(b"def")
    await blob.commit()
    blob.end()
    fd = blob.fd
    assert os.pread(fd, 10, 3) == b"def"
    blob.leave()
    await closer.done()
    assert blob.fd == -1
    assert not blob.join()


async def test_readers_of_an_aborted_blob_keep_their_descriptor(store, root):
    """The end of a blob without a name removes the file; the descriptor is closed when the last reader has left."""
    blob = store.begin(6)
    await blob.write(b"abc")
    assert blob.join()
    blob.end()
    blob.end()
    fd = blob.fd
    await closer.done()
    assert list((root / "tmp").iterdir()) == []
    assert os.pread(fd, 10, 0) == b"abc"
    blob.leave()
    await closer.done()
    assert not is_open(fd, b"abc")


async def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(open_store, root):
    """Short writes are continued where they ended."""
    directory = FaultyDirectory(root)
    directory.most_bytes = 3
    store = await open_store(directory=directory)
    ref = await write_blob(store, b"0123456789")
    assert path_of(root, ref).read_bytes() == b"0123456789"
    assert directory.appended == 4


async def test_equal_bytes_keep_the_file_that_is_known_to_be_right(store, root):
    """Committing bytes that are already resident keeps the existing file and drops the new one."""
    first = await write_blob(store, b"same")
    inode = path_of(root, first).stat().st_ino
    assert await write_blob(store, b"same") == first
    assert path_of(root, first).stat().st_ino == inode
    assert list((root / "tmp").iterdir()) == []


async def test_a_fresh_copy_replaces_a_damaged_file(store, root):
    """A commit replaces a file of the same name that changed since it was written."""
    _, (ref,) = await put(store, "a", b"good")
    path_of(root, ref).write_bytes(b"evil")
    await put(store, "b", b"good")
    assert path_of(root, ref).read_bytes() == b"good"
    assert await get(store, "a") == b"good"
    assert store.status().corrupt_dropped == 0


async def test_what_was_just_written_is_resident(store):
    """The bytes were hashed on their way in, so the first hit needs neither thread nor index."""
    ref = await write_blob(store, b"abc")
    blob = store.resident(ref)
    assert (os.pread(blob.fd, 9, 0), blob.size, blob.crc32) == (b"abc", 3, crc32(b"abc"))


async def test_nothing_is_resident_before_it_was_opened(open_store):
    """After a start, a blob must be opened, and so verified, before it counts as resident."""
    first = await open_store()
    _, (ref,) = await put(first, "a", b"abc")
    await first.close()
    second = await open_store()
    assert second.resident(ref) is None
    blob = await second.open_blob(ref)
    assert second.resident(ref) is blob


@pytest.mark.parametrize("damage", ["flipped", "truncated", "lengthened", "deleted", "replaced"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_damaged_files_are_dropped_and_never_served(open_store, root, damage, restarted):
    """A file damaged during a run or between two is never served; its rows are deleted."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"precious bytes")
    await put(store, "b", b"precious bytes")
    await put(store, "c", b"others")
    if restarted:
        await store.close()
    path = path_of(root, ref)
    before = path.stat()
    match damage:
        case "flipped":
            path.write_bytes(b"precious bytEs")
        case "truncated":
            os.truncate(path, 3)
        case "lengthened":
            path.write_bytes(b"precious bytes and more")
        case "deleted":
            path.unlink()
        case "replaced":
            path.with_name("other").write_bytes(b"precious bytEs")
            path.with_name("other").rename(path)
    if restarted:
        if path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        store = await open_store()
    assert store.resident(ref) is None
    with pytest.raises(BlobGone):
        await store.open_blob(ref)
    assert [await store.lookup(key_of(name)) is None for name in "abc"] == [True, True, False]
    status = store.status()
    assert (status.corrupt_dropped, status.missing_dropped) == ((0, 1) if damage == "deleted" else (1, 0))
    assert_index_equals_disk(root)


async def test_a_blob_that_cannot_be_read_is_dropped_and_counts_against_the_disk(open_store, root):
    """A bad sector costs one blob, and makes the disk unstable; the other blobs stay."""
    directory = FaultyDirectory(root)
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    await put(store, "b", b"def")
    await store.close()
    store = await open_store(directory=directory)
    directory.read_errno = errno.EIO
    with pytest.raises(BlobGone):
        await store.open_blob(ref)
    directory.read_errno = 0
    assert (store.status().state, store.status().cause) == ("unstable", "io")
    assert (await get(store, "a"), await get(store, "b")) == (None, b"def")
    assert_index_equals_disk(root)


async def test_running_out_of_descriptors_costs_no_blob(open_store, root):
    """A process without free descriptors fails the read and keeps the blob."""
    directory = FaultyDirectory(root)
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    await store.close()
    store = await open_store(directory=directory)
    directory.read_errno = errno.EMFILE
    with pytest.raises(BlobGone):
        await store.open_blob(ref)
    directory.read_errno = 0
    assert await get(store, "a") == b"abc"
    assert store.status().state == "normal"


async def test_what_was_gone_is_found_when_it_is_back(open_store, root):
    """A failed opening is not remembered: bytes that another worker fetched again are served."""
    one, two = await open_store(), await open_store()
    _, (ref,) = await put(one, "a", b"abc")
    path_of(root, ref).unlink()
    with pytest.raises(BlobGone):
        await two.open_blob(ref)
    await put(one, "a", b"abc")
    assert await get(two, "a") == b"abc"


async def test_a_file_is_read_through_once_per_start(open_store, root):
    """Workers of one start trust each other's verification; the next start verifies again."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"precious bytes")
    path = path_of(root, ref)
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = await open_store()
    blob = await second.open_blob(ref)
    assert os.pread(blob.fd, 1, 0) == b"X"
    await store.close()
    await second.close()
    third = await open_store()
    with pytest.raises(BlobGone):
        await third.open_blob(ref)


async def test_verification_is_remembered(open_store, root):
    """After a start the first opening writes down that the file was found right under this start."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    await store.close()
    store = await open_store()
    assert query(root, "SELECT boot FROM blobs") != [(store.directory.boot,)]
    await store.open_blob(ref)
    await store.forget([])
    assert query(root, "SELECT boot FROM blobs") == [(store.directory.boot,)]


async def test_a_file_that_was_only_touched_is_verified_and_kept(store, root):
    """A new modification time alone, as after a restore from backup, costs one reading and no bytes."""
    _, (ref,) = await put(store, "a", b"abc")
    os.utime(path_of(root, ref), ns=(1, 1))
    assert store.resident(ref) is None
    assert await get(store, "a") == b"abc"
    assert store.resident(ref) is not None


async def test_concurrent_openings_share_one_descriptor(open_store):
    """A hundred readers of one cold blob open and verify it once."""
    store = await open_store()
    _, (ref,) = await put(store, "a", b"abc")
    await store.close()
    store = await open_store()
    blobs = await asyncio.gather(*(store.open_blob(ref) for _ in range(100)))
    assert len({blob.fd for blob in blobs}) == 1


async def test_a_held_blob_stays_open_when_others_push_it_out(open_store):
    """The cache of open files is bounded, but never closes a file that is being read."""
    store = await open_store(open_files=8)
    ref = await write_blob(store, b"first")
    blob = store.resident(ref)
    blob.hold()
    fd = blob.fd
    del blob
    for number in range(20):
        await write_blob(store, b"%d" % number)
    assert store.resident(ref) is None
    assert store.status().open_files == 8
    assert os.pread(fd, 9, 0) == b"first"


async def test_the_last_release_closes_what_was_pushed_out(open_store):
    """The descriptor of a blob that left the list of open files closes when its last reader releases it."""
    store = await open_store(open_files=8)
    ref = await write_blob(store, b"first")
    blob = store.resident(ref)
    blob.hold()
    blob.hold()
    fd = blob.fd
    for number in range(20):
        await write_blob(store, b"%d" % number)
    blob.release()
    assert is_open(fd, b"first")
    blob.release()
    del blob
    await closer.done()
    assert not is_open(fd, b"first")


async def test_no_descriptor_is_left_after_close(open_store, root):
    """Opening, filling, reading and closing a store leaves no file open."""
    store = await open_store()
    for number in range(20):
        await put(store, f"{number}", b"%d" % number)
    assert len(open_files(root)) > 20
    await store.close()
    assert open_files(root) == []


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "no-space"), (errno.EIO, "disk"), (errno.EROFS, "disk")])
async def test_failing_writes_name_their_reason_and_leave_nothing(open_store, root, code, reason):
    """A failed write or commit raises DiskUnavailable and leaves neither file nor reservation."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    blob = store.begin(3)
    directory.write_errno = code
    with pytest.raises(DiskUnavailable) as failure:
        await blob.write(b"abc")
    blob.end()
    assert failure.value.reason == reason
    await closer.done()
    assert (files_of(root), list((root / "tmp").iterdir()), store.status().filling) == ({}, [], 0)


async def test_a_commit_that_fails_leaves_nothing(open_store, root):
    """A failed rename removes the temporary file and ends the reservation."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    blob = store.begin(3)
    await blob.write(b"abc")
    directory.publish_errno = errno.EIO
    with pytest.raises(DiskUnavailable):
        await blob.commit()
    blob.end()
    await closer.done()
    assert (files_of(root), list((root / "tmp").iterdir()), store.status().filling) == ({}, [], 0)
    assert blob.fd == -1


async def test_bytes_of_an_unlinked_blob_are_let_go(store, root):
    """A chore closes files that were unlinked, so that their bytes become free."""
    _, (ref,) = await put(store, "a", b"abc")
    assert store.status().open_files == 1
    await store.forget([key_of("a")])
    await eventually(lambda: files_of(root) == {})
    await store.sweep()
    assert store.status().open_files == 0
    assert store.resident(ref) is None


class MeetingDirectory(CacheDirectory):
    """A directory in which two files must be appended to at the same time."""

    def append(self, descriptor: int, data: memoryview) -> int:
        """Wait for the other one."""
        meeting.wait(30)
        return super().append(descriptor, data)


meeting = threading.Barrier(2)


async def test_large_blobs_are_written_at_the_same_time(open_store, root, monkeypatch):
    """Rule: on a quick disk, too, pieces of large blobs are hashed and written by as many threads as there are blobs."""
    monkeypatch.setattr("gateway.store.files.threads._STANDSTILL", 3600.0)
    store = await open_store(directory=MeetingDirectory(root))
    store._disk._files._pace = 1e-4
    blobs = [store.begin(2 * SMALL) for _ in range(2)]
    await asyncio.gather(*(blob.write(bytes([number]) * SMALL) for number, blob in enumerate(blobs)))
    assert [blob.received for blob in blobs] == [SMALL] * 2
    for blob in blobs:
        blob.end()


async def test_a_sweep_looks_at_no_open_file_while_no_blob_has_gone(store, root):
    """Rule: sweeps are frequent, so one that removes nothing makes no system call for each open file."""
    await put(store, "a", b"abc")
    (digest,) = files_of(root)
    (root / "blobs" / digest[:2] / digest[2:]).unlink()
    await store.sweep()
    assert store.status().open_files == 1


async def test_open_blobs_leave_descriptors_to_connections(open_store, monkeypatch):
    """Rule: open blobs take at most a quarter of the process's descriptors, even if the setting allows more."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (80, 80))
    store = await open_store(open_files=512)
    for number in range(30):
        await put(store, str(number), b"%010d" % number)
    assert store.status().open_files == 20
