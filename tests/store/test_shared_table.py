"""The file of the table of generations: one for all workers of a gateway, whatever other programs and users do to its name."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.model.errors import ConfigError
from gateway.model.keys import ObjectKey
from gateway.store import disk as disk_module
from gateway.store.files.directory import CacheDirectory
from gateway.store.shared import own_files, table_file
from gateway.store.shared.generations import Generations
from gateway.store.shared.leases import FillLeases
from gateway.store.shared.removed import RemovedBlobs, slot_of
from tests.other_user import NOBODY
from tests.stores import get, key_of, put

KEY = ObjectKey("default", "bucket", "key")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The path of a table that this process holds, as a gateway does before it forks workers."""
    path = tmp_path / "table"
    table_file.hold(path, tmp_path)
    yield path
    table_file.release(path)


def worker(path: Path) -> Generations:
    """A worker that is started now."""
    table = Generations()
    table.attach(path, path.parent)
    return table


def removed(path: Path) -> None:
    """A cleaner removes the file."""
    path.unlink()


def replaced(path: Path) -> None:
    """Another file takes its place."""
    path.unlink()
    path.write_bytes(b"something else")


def copied(path: Path) -> None:
    """A copy takes its place."""
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def linked(path: Path) -> None:
    """A link takes its place."""
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("harm", [removed, replaced, copied, linked])
def test_a_worker_started_later_shares_the_table_of_the_others(path, harm) -> None:
    """Rule: all workers of a gateway map one table, whatever becomes of its name; a write in one is seen by all."""
    first = worker(path)
    harm(path)
    second = worker(path)
    before = first.of(KEY)
    second.bump(KEY)
    assert first.of(KEY) != before
    assert first.of(KEY) == second.of(KEY)
    assert not first.attach(path, path.parent)


@pytest.mark.parametrize("size", [0, 1000, table_file.MARKS_END - 5, table_file.TABLE_BYTES])
def test_a_table_that_was_cut_off_is_completed_in_place(path, size) -> None:
    """Rule: the workers that live keep their table; what was lost may have been marks, so no row is trusted."""
    before = path.stat().st_ino
    os.truncate(path, size)
    second = worker(path)
    assert path.stat().st_ino == before
    assert second.identity == table_file.identity(path)
    assert not second.trusts(KEY)
    assert second.owes(KEY)
    third = worker(path)
    second.bump(KEY)
    assert third.of(KEY) == second.of(KEY)


def test_a_table_that_was_made_longer_keeps_its_content(path) -> None:
    """Rule: bytes behind the table are no reason to distrust the index."""
    before = worker(path).of(KEY)
    os.truncate(path, path.stat().st_size + 5)
    assert worker(path).of(KEY) == before
    assert worker(path).trusts(KEY)


def test_a_table_has_no_holes(path) -> None:
    """Rule: every page exists before it is mapped: on a full file system, touching a hole kills the process."""
    status = path.stat()
    assert 512 * status.st_blocks >= status.st_size


def test_workers_share_leases_whatever_becomes_of_their_file(path) -> None:
    """Rule: a block is filled by one worker, also if the file of leases was removed before the other one started."""
    first = FillLeases(table_file.leases_of(path))
    table_file.leases_of(path).unlink()
    assert first.acquire(KEY, 0, 0)
    child = os.fork()
    if not child:
        os._exit(0 if not FillLeases(table_file.leases_of(path)).acquire(KEY, 0, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    first.close()


def test_workers_share_removals_whatever_becomes_of_their_file(path) -> None:
    """Rule: a worker sees which blobs others have removed, also if the file was removed before it started."""
    beside, digest = table_file.removals_of(path), bytes(32)
    first, second = RemovedBlobs(), RemovedBlobs()
    first.attach(beside)
    beside.unlink()
    second.attach(beside)
    before = second.numbers[slot_of(digest)]
    first.add(digest)
    assert second.numbers[slot_of(digest)] == first.numbers[slot_of(digest)] != before


@pytest.fixture
def held_in_vain(tmp_path: Path) -> Iterator[Path]:
    """A path whose table cannot be held by its name; tests say why."""
    path = tmp_path / "table"
    yield path
    table_file.release(path)


def test_without_room_the_workers_share_memory_without_a_name(held_in_vain, monkeypatch, caplog) -> None:
    """Rule: a full /dev/shm takes nothing from a gateway but the table's life after it; the log names the file."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(held_in_vain))

    monkeypatch.setattr(table_file, "_create", full)
    table_file.hold(held_in_vain, held_in_vain.parent)
    first, second = worker(held_in_vain), worker(held_in_vain)
    second.bump(KEY)
    assert first.of(KEY) == second.of(KEY)
    assert str(held_in_vain) in caplog.text
    assert "No space left" in caplog.text
    assert not held_in_vain.exists()


def test_a_file_of_another_user_is_no_table(held_in_vain, caplog) -> None:
    """Rule: a user who takes the name first gets nothing, and stops nothing; the log names the file. Needs root."""
    held_in_vain.write_bytes(bytes(table_file._FILE_BYTES))
    os.chmod(held_in_vain, 0o666)
    os.chown(held_in_vain, NOBODY, NOBODY)
    before = held_in_vain.read_bytes()
    table_file.hold(held_in_vain, held_in_vain.parent)
    first, second = worker(held_in_vain), worker(held_in_vain)
    second.bump(KEY)
    assert first.of(KEY) == second.of(KEY)
    assert held_in_vain.read_bytes() == before
    assert "belongs to another user" in caplog.text


@pytest.mark.parametrize("what", ["file", "pipe", "link", "folder"])
def test_only_plain_files_of_this_user_are_opened(tmp_path, what) -> None:
    """Rule: in a folder where all users may create files, nothing else is opened, and nothing is waited for. Needs root."""
    place = tmp_path / "place"
    if what == "file":
        place.touch()
        os.chown(place, NOBODY, NOBODY)
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "link":
        (tmp_path / "target").touch()
        place.symlink_to(tmp_path / "target")
    else:
        place.mkdir()
    with pytest.raises(OSError):
        own_files.open_own(place, os.O_RDONLY)
    assert own_files.read_own(place) == b""


def test_a_file_that_others_may_open_is_narrowed(tmp_path) -> None:
    """Rule: what this user's gateways share is for this user only, whatever made the file."""
    place = tmp_path / "place"
    place.touch()
    os.chmod(place, 0o644)
    os.close(own_files.open_own(place, os.O_RDWR))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_files_of_another_user_are_left_alone(tmp_path) -> None:
    """Rule: clearing up opens and removes nothing that is not this user's. Needs root."""
    squatted = tmp_path / f"larder-{os.geteuid()}-{'0' * 24}"
    other = tmp_path / f"larder-{os.geteuid()}-{'1' * 24}-reads"
    for place in (squatted, other):
        os.mkfifo(place)
        os.chown(place, NOBODY, NOBODY)
    table_file.remove_dead(tmp_path)
    assert squatted.exists()
    assert other.exists()


# --- the directory


async def test_a_table_that_is_a_copy_is_not_vouched_for(open_store, root) -> None:
    """Rule: marks that a copy of the table missed are as lost as after a reboot: rows are checked before they are served."""
    store = await open_store()
    await put(store, "a", b"abc", confirmed_at=5.0)
    table = store.directory.generations
    shutil.copy(table, f"{table}.copy")
    crashed(store)
    os.replace(f"{table}.copy", table)
    again = await open_store()
    assert again.generations.since > 5.0
    assert await get(again, "a") == b"abc"


async def test_a_table_survives_a_crash(open_store, root) -> None:
    """Rule: the same file is vouched for, so nothing is checked again."""
    store = await open_store()
    await put(store, "a", b"abc", confirmed_at=5.0)
    crashed(store)
    assert (await open_store()).generations.since == 0.0


def crashed(store) -> None:
    """The worker ends without its last acts: its locks are gone, and its table stays."""
    store.directory.leave()


async def test_a_gateway_that_shares_no_table_with_another_does_not_start(open_store, root, monkeypatch) -> None:
    """Rule: its writes would not be heard by the other gateway on the directory, which would serve old bytes; so it waits for
    the end of that gateway, and then says what is wrong."""
    monkeypatch.setattr(disk_module, "_MOUNT_PATIENCE", 4 * disk_module._LOOK_AGAIN)
    first = await open_store()
    first.directory.generations.unlink()
    with pytest.raises(ConfigError, match="another gateway uses") as refusal:
        await open_store()
    assert str(first.directory.generations) in str(refusal.value)
    await put(first, "a", b"abc")
    assert await get(first, "a") == b"abc"


async def test_a_gateway_starts_when_the_other_one_has_ended(open_store, root, monkeypatch) -> None:
    """Rule: the successor of a gateway whose table was removed begins a start of its own, without a restart."""
    first = await open_store()
    first.directory.generations.unlink()
    asked = []
    mounting = disk_module.Disk._mount

    def mount(disk: disk_module.Disk) -> None:
        try:
            mounting(disk)
        except disk_module.Estranged:
            asked.append(first.directory.leave())
            raise

    monkeypatch.setattr(disk_module.Disk, "_mount", mount)
    second = await open_store()
    assert asked == [None]
    assert second.status().state == "normal"


async def test_a_worker_that_is_estranged_trusts_nothing(open_store, root, monkeypatch) -> None:
    """Rule: a worker that finds the directory used with another table has everything checked with the origin."""
    store = await open_store()
    await put(store, "a", b"abc")
    other = CacheDirectory(root)
    store.directory.leave()
    other.join(lambda boot, previous: b"another table...")
    with pytest.raises(disk_module.Estranged):
        store._disk._mount()
    assert store.generations.since == float("inf")
    assert await store.lookup(key_of("a")) is None
    other.leave()
    store._disk._mount()
    assert store.generations.since < float("inf")
