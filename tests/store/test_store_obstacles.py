"""A failure on one path, or a lack of inodes, does not stop the rest of the cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.model.errors import DiskUnavailable
from gateway.policies.health.breaker import BreakerState
from gateway.store.files.threads import closer
from gateway.store.store import Store
from rig.mounts import block_device, mounted
from tests.stores import get, put, write_blob

Open = Callable[..., Awaitable[Store]]


def block(path: Path, way: str) -> None:
    """Make a blob's file one that cannot be unlinked."""
    if way == "directory":
        path.unlink()
        (path / "full").mkdir(parents=True)
    else:
        subprocess.run(["chattr", "+i", str(path)], check=True)


def unblock(path: Path, way: str) -> None:
    """Let the test's directory be removed."""
    if way == "immutable" and path.exists():
        subprocess.run(["chattr", "-i", str(path)], check=True)


@pytest.mark.parametrize("way", ["directory", "immutable"])
async def test_a_blob_that_cannot_be_unlinked_stops_no_eviction(
    open_store: Open, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: it is skipped, counted and logged once; the others go, and the disk stays in use."""
    with block_device(tmp_path / "disk") as disk:
        store = await open_store(dir=str(disk / "cache"), capacity=50_000)
        assert await store.try_lock()
        _, (first,) = await put(store, "first", b"1" * 4000)
        path = Path(store.directory.blob_path(first.digest))
        block(path, way)
        try:
            for number in range(30):
                await store.make_room(4000)
                await put(store, str(number), b"%04d" % number * 1000)
            await store.sweep()
            status = store.status()
            assert status.evicted_blobs > 10
            assert (status.state, status.skipped_files) == (BreakerState.NORMAL, 1)
            assert [record.message.count(str(path)) for record in caplog.records if "skipped" in record.message] == [1]
            assert (await store.recover()).broken == 0
        finally:
            unblock(path, way)
            await store.close()


@pytest.mark.parametrize("way", ["directory", "immutable"])
async def test_a_blob_whose_name_is_taken_is_refused_alone(open_store: Open, tmp_path: Path, way: str) -> None:
    """Rule: its readers get it from the origin; others are stored, and the disk stays in use."""
    with block_device(tmp_path / "disk") as disk:
        store = await open_store(dir=str(disk / "cache"))
        _, (ref,) = await put(store, "a", b"abc")
        path = Path(store.directory.blob_path(ref.digest))
        block(path, way)
        await store.close()
        store = await open_store(dir=str(disk / "cache"))
        try:
            for _ in range(6):
                with pytest.raises(DiskUnavailable):
                    await write_blob(store, b"abc")
            await put(store, "b", b"def")
            assert await get(store, "b") == b"def"
            assert store.status().state is BreakerState.NORMAL
        finally:
            unblock(path, way)
            await closer.done()
            await store.close()


async def test_inodes_are_evicted_for(open_store: Open, tmp_path: Path) -> None:
    """Rule: on a file system that runs out of inodes before bytes, eviction keeps some free."""
    with mounted(tmp_path / "small", "size=50m", "nr_inodes=700") as small:
        store = await open_store(dir=str(small / "cache"))
        assert await store.try_lock()
        for number in range(900):
            assert await store.make_room(10)
            await put(store, str(number), b"%010d" % number)
            if number % 10 == 0:
                await store.sweep()
                await closer.done()
        status = store.status()
        assert status.evicted_blobs > 0
        assert status.state is BreakerState.NORMAL
        assert os.statvfs(small).f_favail >= 0.04 * 700
        await store.close()


async def test_a_small_disk_without_reserve_runs_full_and_goes_on(open_store: Open, tmp_path: Path) -> None:
    """Rule: ``reserve = 0`` fills the file system, and still keeps room for the index; the disk stays in use.

    Room for a blob is not room for the folder and the rows that come with it, so a fill may find the disk full. The next fits.
    """
    with block_device(tmp_path / "disk", "24M") as disk:
        store = await open_store(dir=str(disk / "cache"), capacity=10**9)
        assert await store.try_lock()
        refused = False
        for number in range(250):
            assert await store.make_room(150_000)
            try:
                await put(store, str(number), os.urandom(4000) * 37)
                refused = False
            except DiskUnavailable:
                assert not refused
                refused = True
            await store.sweep()
            await closer.done()
            assert store.status().state is BreakerState.NORMAL
        assert store.status().evicted_blobs > 0
        await store.close()
