"""Blob files are changed behind the gateway's back, while it runs and while it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.clients import get
from rig.gateways import Running, Settings, gateway
from rig.world import KIB, MIB, Origin, await_index_equals_disk, blob_path, content, eventually

SIZES = pytest.mark.parametrize("size", [110 * KIB, 3 * MIB])


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def flip_unseen(path: Path) -> None:
    """Change one bit as a failing disk does: size and times stay."""
    status = path.stat()
    flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(path: Path) -> None:
    """Cut the second half off."""
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    """Add what does not belong there."""
    with path.open("ab") as file:
        file.write(b"more")


def delete(path: Path) -> None:
    """Remove the file."""
    path.unlink()


def replace(path: Path) -> None:
    """Put another file of the same size in its place."""
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


DAMAGES = pytest.mark.parametrize("damage", [flip, truncate, lengthen, delete, replace])


@pytest.fixture(scope="module")
def settings(origin: Origin, tmp_path_factory) -> Settings:
    """One worker, blocks of 1 MiB; blobs are read from the disk, as memory does not notice damage to it."""
    return Settings(origin.endpoint, tmp_path_factory.mktemp("cache"), memory="0")


def cached(running: Running, origin: Origin, path: str, size: int) -> bytes:
    """An object that hits."""
    body = origin.put(path, content(size, path))
    assert get(running, path).body == body
    eventually(lambda: get(running, path), lambda got: (got.cache, got.body) == ("HIT", body), "a hit")
    return body


def last_blob(cache: Path, body: bytes) -> Path:
    """The file of the object's last block."""
    return blob_path(cache, body[-MIB:])


def assert_healed(running: Running, path: str, body: bytes, before: float) -> None:
    """Two reads are right, then the object hits again, and the damage was counted."""
    assert [get(running, path).body == body for _ in range(2)] == [True, True]
    eventually(lambda: get(running, path).cache, lambda status: status == "HIT", "a hit")
    eventually(
        lambda: running.metric("larder_corrupt_blobs_total"), lambda count: count > before, "the count of the damage"
    )


@SIZES
@DAMAGES
def test_damaged_while_running(running, origin, settings, damage: Callable[[Path], None], size):
    """A blob whose file was changed is not served: the next read is correct, and fetches it again."""
    path = f"/bucket/{damage.__name__}-{size}"
    body = cached(running, origin, path, size)
    # A hit may come before the index has the block, and a missing file without a row is not counted.
    await_index_equals_disk(settings.cache)
    before = running.metric("larder_corrupt_blobs_total")
    damage(last_blob(settings.cache, body))
    assert_healed(running, path, body, before)
    await_index_equals_disk(settings.cache)


def test_a_range_over_a_damaged_block(running, origin, settings):
    """A range is right too, and a range beside the damage does not need the origin."""
    path = "/bucket/range"
    body = cached(running, origin, path, 4 * MIB)
    flip(blob_path(settings.cache, body[MIB : 2 * MIB]))
    reads = origin.count("GET", path)
    beside = get(running, path, Range=f"bytes={2 * MIB + 7}-{3 * MIB}")
    assert (beside.cache, beside.body) == ("HIT", body[2 * MIB + 7 : 3 * MIB + 1])
    assert origin.count("GET", path) == reads
    across = get(running, path, Range=f"bytes={MIB - 7}-{2 * MIB + 7}")
    assert (across.status, across.body) == (206, body[MIB - 7 : 2 * MIB + 8])


def test_damaged_while_not_running(tmp_path, origin):
    """Every blob is verified when it is first read after a start, so even damage that changes no size and no time is found."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    damages = [flip_unseen, flip, truncate, lengthen, delete, replace]
    paths = {f"/restart/{damage.__name__}-{size}": (damage, size) for damage in damages for size in (9 * KIB, 2 * MIB)}
    with gateway(settings, tmp_path / "home") as running:
        bodies = {path: cached(running, origin, path, size) for path, (_, size) in paths.items()}
        sound = cached(running, origin, "/restart/sound", 2 * MIB)
    for path, (damage, _) in paths.items():
        damage(last_blob(settings.cache, bodies[path]))
    with gateway(settings, tmp_path / "home") as running:
        for path, body in bodies.items():
            assert [get(running, path).body == body for _ in range(2)] == [True, True], path
            eventually(lambda path=path: get(running, path).cache, lambda status: status == "HIT", "a hit")
        eventually(lambda: running.metric("larder_corrupt_blobs_total"), lambda count: count >= 4, "the counts")
        reads = origin.count("GET", "/restart/sound")
        assert (get(running, "/restart/sound").body, origin.count("GET", "/restart/sound")) == (sound, reads)
        await_index_equals_disk(settings.cache)
