"""The cache disk fills up, turns read-only, or vanishes. No read or write fails, and the cache recovers without a restart."""

from __future__ import annotations

import shutil

import pytest

from rig.clients import Client, client_of_each_worker, get
from rig.gateways import Running, Settings, gateway
from rig.mounts import filled, mounted
from rig.world import KIB, MIB, Origin, await_index_equals_disk, content, eventually, files_of

SIZES = (9 * KIB, 110 * KIB, 300 * KIB, 3 * MIB)


def objects(origin: Origin, bucket: str) -> dict[str, bytes]:
    """A few objects of all sizes at the origin, by path."""
    paths = {f"/{bucket}/{number}": content(size, (bucket, number)) for number, size in enumerate(SIZES)}
    for path, body in paths.items():
        origin.put(path, body)
    return paths


def assert_readable(running: Running, bodies: dict[str, bytes]) -> None:
    """Every object is read right, twice, and its header too."""
    with Client(running.endpoint) as client:
        for path, body in bodies.items():
            for _ in range(2):
                got = client.get(path)
                assert (got.status, got.whole, got.body == body) == (200, True, True)
            assert client.ask("HEAD", path).status == 200


def assert_writable(running: Running, path: str, seed: object) -> None:
    """Write an object and assert that the next read returns it."""
    body = content(50 * KIB, seed)
    with Client(running.endpoint) as client:
        assert client.put(path, body).status == 200
        assert client.get(path).body == body


def assert_caching_again(running: Running, path: str, body: bytes) -> None:
    """Wait until the object is cached and hits, and no part is reported as impaired."""
    got = eventually(lambda: get(running, path), lambda got: got.cache == "HIT", "a hit")
    assert got.body == body
    eventually(lambda: get(running, "/-/readyz").body, lambda body: b'"disk"' not in body, "a healthy disk")


def test_more_is_read_than_fits_the_disk(tmp_path, origin):
    """A file system smaller than the capacity: everything is read right, and the file system is used as far as it goes."""
    with mounted(tmp_path / "small", "size=8m") as small:
        settings = Settings(origin.endpoint, small / "cache", capacity="200MB")
        bodies = objects(origin, "fits")
        bodies |= {f"/fits/more-{n}": origin.put(f"/fits/more-{n}", content(900 * KIB, n)) for n in range(12)}
        with gateway(settings, tmp_path / "home") as running:
            assert_readable(running, bodies)
            assert_writable(running, "/fits/0", "written")
            last = "/fits/more-11"
            assert_caching_again(running, last, bodies[last])
            await_index_equals_disk(settings.cache)
            assert b"of cache.capacity (200.0 MB) can be used" in get(running, "/-/readyz").body
            assert 0 < running.metric("larder_cache_usable_bytes") < 9 * MIB
            told = "of cache.capacity (200.0 MB) can be used"
            lines = lambda: [line for line in running.log.read_text().splitlines() if told in line]  # noqa: E731
            eventually(lines, lambda found: len(found) == 1, "one warning")


def test_the_disk_is_filled_by_somebody_else(tmp_path, origin):
    """With no byte left nothing can be stored and everything can be read and written; with space again, it is cached."""
    with mounted(tmp_path / "small", "size=20m") as small:
        settings = Settings(origin.endpoint, small / "cache")
        bodies = objects(origin, "filled")
        warm = {"/filled/warm": origin.put("/filled/warm", content(100 * KIB, "warm"))}
        with gateway(settings, tmp_path / "home") as running:
            assert_readable(running, warm)
            with filled(small):
                assert_readable(running, bodies | warm)
                assert_writable(running, "/filled/warm", "written")
                # Refused at once for want of space, or because the disk has been given up meanwhile.
                assert get(running, "/filled/1").cache in ("MISS; reason=no-space", "MISS; reason=disk")
            assert_caching_again(running, "/filled/1", bodies["/filled/1"])
            assert_writable(running, "/filled/1", "written again")
            await_index_equals_disk(settings.cache)


def test_started_on_a_full_disk(tmp_path, origin):
    """A gateway starts on a disk without space, and uses it when there is some."""
    with mounted(tmp_path / "small", "size=20m") as small:
        settings = Settings(origin.endpoint, small / "cache")
        bodies = objects(origin, "full")
        with filled(small), gateway(settings, tmp_path / "home") as running:
            assert_readable(running, bodies)
            (small / "ballast").unlink()
            assert_caching_again(running, "/full/1", bodies["/full/1"])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_disk_turns_read_only(tmp_path, origin, workers):
    """Reads and writes bypass a read-only disk; once it is writable, its objects are served again, except overwritten ones."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=workers)
    bodies = objects(origin, f"ro-{workers}")
    old, kept = f"/ro-{workers}/0", f"/ro-{workers}/1"
    with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:
        assert_readable(running, bodies)
        with mounted(settings.cache, "size=1m", "ro"):
            for client in clients.values():
                assert [client.get(path).body == body for path, body in bodies.items()] == [True] * len(bodies)
            new = content(50 * KIB, "new")
            assert next(iter(clients.values())).put(old, new).status == 200
            assert [client.get(old).body == new for client in clients.values()] == [True] * workers
        assert_caching_again(running, kept, bodies[kept])
        for client in clients.values():
            assert [client.get(old).body == new for _ in range(3)] == [True] * 3
        eventually(
            lambda: [client.get(old).cache for client in clients.values()],
            lambda states: states == ["HIT"] * workers,
            "hits of the new object",
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_cache_directory_is_deleted(tmp_path, origin, workers):
    """Deleting the directory under a running gateway loses the cached objects and nothing else."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=workers)
    bodies = objects(origin, f"deleted-{workers}")
    path = f"/deleted-{workers}/1"
    with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:
        assert_readable(running, bodies)
        # Renamed first, so that files created meanwhile by the gateway are not deleted too.
        shutil.rmtree(settings.cache.rename(tmp_path / "deleted"))
        for client in clients.values():
            assert [client.get(path).body == body for path, body in bodies.items()] == [True] * len(bodies)
        new = content(50 * KIB, "new")
        assert next(iter(clients.values())).put(path, new).status == 200
        assert [client.get(path).body == new for client in clients.values()] == [True] * workers
        eventually(
            lambda: [client.get(path).cache for client in clients.values()],
            lambda states: states == ["HIT"] * workers,
            "hits in the new directory",
        )
        assert_readable(running, bodies | {path: new})
        assert files_of(settings.cache)
        await_index_equals_disk(settings.cache)
