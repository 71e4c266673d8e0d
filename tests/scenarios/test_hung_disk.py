"""The cache disk, or its index, hangs. Health checks, reads and writes continue, and the cache recovers without a restart."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.clients import Client, client_of_each_worker, get
from rig.gateways import Running, Settings, gateway
from rig.mounts import block_device, hung, locked_index
from rig.v1 import ask
from rig.world import KIB, MIB, Origin, content, eventually

BOUND = 30.0
"""Seconds that a request may take while the disk hangs: the store's time limit for the disk, with room for a busy machine."""
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
    """The event loop does not block, reads and writes use the origin, and bytes overwritten meanwhile are never served again."""
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
    """Cold reads in progress when the disk hangs are completed from the origin, or broken; none waits for the disk."""
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
    """Writes wait for the lock once, for a short time; then the disk is bypassed until the lock is released."""
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


def test_a_start_while_the_disk_hangs(tmp_path: Path, origin: Origin) -> None:
    """Rule: a gateway starts without a disk that hangs, reads from the origin, says so, and uses the disk when it answers."""
    bodies = objects(origin, "hung-start")
    with block_device(tmp_path / "disk") as disk:
        settings = Settings(origin.endpoint, disk / "cache")
        with gateway(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
            assert {path: client.get(path).body for path in bodies} == bodies
        with ExitStack() as stack:
            with hung(disk):
                running = stack.enter_context(gateway(settings, tmp_path / "home", unready=True))
                assert b"disk-down" in get(running, "/-/readyz").body
                with Client(running.endpoint) as client:
                    assert {path: timed_get(client, path) for path in bodies} == bodies
                    bodies["/hung-start/0"] = content(50 * KIB, "new")
                    timed_put(client, "/hung-start/0", bodies["/hung-start/0"])
                    assert timed_get(client, "/hung-start/0") == bodies["/hung-start/0"]
            eventually(lambda: get(running, "/hung-start/1").cache, lambda cache: cache == "HIT", "a hit")
            assert {path: get(running, path).body for path in bodies} == bodies


@pytest.mark.parametrize("capacity", ["200MB", "2MB"])
def test_the_event_loop_asks_the_cache_disk_nothing(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, capacity: str
) -> None:
    """Rule: from start to end, in reads, writes, registrations, batches, jobs and evictions, threads make every call that may
    block on the cache directory."""
    report = tmp_path / "report"
    report.touch()
    monkeypatch.setenv("GUARDED", str(tmp_path / "cache"))
    monkeypatch.setenv("GUARD_REPORT", str(report))
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity=capacity)
    bodies = objects(origin, f"guarded-{capacity}")
    items = stock(origin.s3, tmp_path, f"guarded-{capacity}", bytes_of(40, 12 * KIB, capacity))
    for _ in range(2):
        with gateway(settings, tmp_path / "home", module="tests.scenarios.loop_guard") as running:
            use(running, bodies, items)
    assert report.read_text() == ""


def use(running: Running, bodies: dict[str, bytes], items: Stock) -> None:
    """A little of everything."""
    with Client(running.endpoint) as client:
        for _ in range(2):
            assert {path: client.get(path).body for path in bodies} == bodies
            for path in bodies:
                assert client.get(path, Range="bytes=100-199").body == bodies[path][100:200]
                assert client.ask("HEAD", path).status == 200
        new = f"{next(iter(bodies))}-new"
        assert client.put(new, b"new").status == 200
        assert client.get(new).body == b"new"
        assert client.ask("DELETE", new).status == 204
    items.register(running)
    assert ask(running, "GET", "/v1/datasets").status == 200
    job = {"job": "j", "dataset": items.id, "gpus": 1, "batch_size": 16}
    assert ask(running, "POST", "/v1/jobs", json.dumps(job).encode()).status in (200, 201)
    beat = {"rank": 0, "epoch": 0, "upcoming": [0, 1, 2], "epoch_left": 1}
    for start in (0, 16, 0, 16):
        indices = range(start, start + 16)
        assert items.read(running, indices, "mode=exact&job=j") == items.expected(indices)
        assert len(items.read(running, indices, "mode=substitute&take=8")) == 8
        assert items.ask(running, indices, "mode=prefetch").status == 202
        assert ask(running, "POST", "/v1/jobs/j/heartbeat", json.dumps(beat).encode()).status == 200
    assert ask(running, "DELETE", "/v1/jobs/j").status in (200, 204)
    for path in ("/-/readyz", "/-/metrics", "/-/healthz"):
        assert get(running, path).status == 200
