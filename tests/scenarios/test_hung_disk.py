"""The cache disk, or its index, stops answering. Health checks, reads and writes go on, and the cache comes back by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateways import Running, Settings, gateway
from tests.scenarios.clients import Client, client_of_each_worker, get
from tests.scenarios.mounts import block_device, hung, locked_index
from tests.scenarios.world import KIB, MIB, Origin, content, eventually

BOUND = 30.0
"""Seconds that a request may take while the disk hangs: what the store waits for a disk, with room for a busy machine."""
SIZES = (9 * KIB, 110 * KIB, 3 * MIB)


def objects(origin: Origin, bucket: str) -> dict[str, bytes]:
    """A few objects of all sizes at the origin, by path."""
    return {
        f"/{bucket}/{number}": origin.put(f"/{bucket}/{number}", content(size, (bucket, number)))
        for number, size in enumerate(SIZES)
    }


@contextmanager
def healthy(running: Running) -> Iterator[list[float]]:
    """Asks /-/healthz all the time; gives how long each answer took, in seconds."""
    took: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            began = time.monotonic()
            get(running, "/-/healthz")
            took.append(time.monotonic() - began)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield took
    finally:
        stop.set()
        asking.join(timeout=BOUND)
        assert not asking.is_alive(), "/-/healthz is not answered"


def timed_get(client: Client, path: str) -> bytes:
    """An object, within the bound."""
    began = time.monotonic()
    got = client.get(path)
    took = time.monotonic() - began
    assert (got.status, got.whole) == (200, True)
    assert took < BOUND, f"{path} took {took:.1f} s"
    return got.body


def timed_put(client: Client, path: str, body: bytes) -> None:
    """A write, within the bound."""
    began = time.monotonic()
    assert client.put(path, body).status == 200
    took = time.monotonic() - began
    assert took < BOUND, f"PUT {path} took {took:.1f} s"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_hangs(tmp_path: Path, origin: Origin, workers: int) -> None:
    """The loop goes on, reads and writes are done at the origin, and what was overwritten meanwhile is never served again."""
    bucket = f"hung-{workers}"
    bodies = objects(origin, bucket)
    cold = {f"/{bucket}/cold-{n}": origin.put(f"/{bucket}/cold-{n}", content(200 * KIB, n)) for n in range(6)}
    with block_device(tmp_path / "disk") as disk:
        settings = Settings(origin.endpoint, disk / "cache", workers=workers)
        with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:
            for client in clients.values():
                assert [client.get(path).body == body for path, body in bodies.items()] == [True] * len(bodies)
            with hung(disk), healthy(running) as took:
                for client in clients.values():
                    assert {path: timed_get(client, path) for path in bodies | cold} == bodies | cold
                new = content(50 * KIB, "new")
                for client in clients.values():
                    timed_put(client, f"/{bucket}/0", new)
                bodies[f"/{bucket}/0"] = new
                for client in clients.values():
                    assert {path: timed_get(client, path) for path in bodies} == bodies
                assert b"disk-down" in get(running, "/-/readyz").body
            assert max(took) < BOUND
            for client in clients.values():
                assert [client.get(path).body == body for path, body in bodies.items()] == [True] * len(bodies)
            eventually(lambda: get(running, f"/{bucket}/0").cache, lambda cache: cache == "HIT", "a hit")
            eventually(lambda: get(running, "/-/readyz").body, lambda body: b"disk-" not in body, "a healthy disk")
            for client in clients.values():
                assert client.get(f"/{bucket}/0").body == new


def test_a_disk_that_hangs_under_load(tmp_path: Path, origin: Origin) -> None:
    """Cold reads that are under way when the disk hangs are completed from the origin, or broken; none waits for the disk."""
    bodies = {f"/load/{n}": origin.put(f"/load/{n}", content(3 * MIB, ("load", n))) for n in range(24)}
    done: list[tuple[str, bool, float]] = []
    with block_device(tmp_path / "disk") as disk:
        settings = Settings(origin.endpoint, disk / "cache")
        with gateway(settings, tmp_path / "home") as running:

            def read(paths: list[str]) -> None:
                for path in paths:
                    began = time.monotonic()
                    got = get(running, path)
                    right = got.status == 200 and (not got.whole or got.body == bodies[path])
                    done.append((path, right, time.monotonic() - began))

            readers = [threading.Thread(target=read, args=(list(bodies)[n::6],), daemon=True) for n in range(6)]
            for reader in readers:
                reader.start()
            eventually(lambda: len(done), lambda count: count >= 3, "the first reads")
            with hung(disk), healthy(running):
                for reader in readers:
                    reader.join(timeout=4 * BOUND)
                assert not any(reader.is_alive() for reader in readers)
            assert [each for each in done if not each[1] or each[2] > BOUND] == []


def test_an_index_that_is_locked(tmp_path: Path, origin: Origin) -> None:
    """Writes wait for the lock once, for a short time; then the disk is given up until the lock is gone."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    bodies = objects(origin, "locked")
    with gateway(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
        assert {path: client.get(path).body for path in bodies} == bodies
        with locked_index(settings.cache), healthy(running):
            began = time.monotonic()
            for number in range(10):
                bodies["/locked/0"] = content(50 * KIB, number)
                timed_put(client, "/locked/0", bodies["/locked/0"])
            assert time.monotonic() - began < 2 * BOUND
            assert {path: timed_get(client, path) for path in bodies} == bodies
            assert b"disk-down" in get(running, "/-/readyz").body
        eventually(lambda: client.get("/locked/0"), lambda got: got.cache == "HIT", "a hit")
        assert {path: client.get(path).body for path in bodies} == bodies
