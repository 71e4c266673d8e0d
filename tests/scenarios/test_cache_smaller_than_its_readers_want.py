"""More is read than the cache can hold."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rig.clients import Client, client_of_each_worker, finish, get
from rig.gateways import Settings, gateway
from rig.processes import wait_until
from rig.world import (
    KIB,
    MIB,
    SOON,
    Origin,
    await_index_equals_disk,
    blob_path,
    content,
    files_of,
)
from tests.stores import query

CAPACITY = 40_000_000
BLOCK = 8 * MIB


@pytest.fixture(scope="module")
def settings(origin: Origin, tmp_path_factory) -> Settings:
    """Forty megabytes, blocks of eight."""
    cache = tmp_path_factory.mktemp("cache")
    return Settings(origin.endpoint, cache, capacity=str(CAPACITY), block_size=str(BLOCK))


class SlowClient(Client):
    """A client with a small receive buffer, so that the kernel accepts little more than it reads."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)


def at_one_moment(cache: Path) -> int:
    """Bytes on disk: files come and go while one looks, so only two looks that are the same count."""
    before = None
    while (now := files_of(cache)) != before:
        before = now
    return sum(now.values())


@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK], ids=["one-blob", "two-blocks"])
def test_evicted_while_it_is_read(running, origin, settings, size):
    """A reader whose object is evicted under his eyes finishes with the right bytes: from the open file, or fetched again."""
    path = f"/bucket/victim-{size}"
    body = origin.put(path, content(size, path))
    assert get(running, path).body == body
    blobs = [blob_path(settings.cache, body[at : at + BLOCK]) for at in range(0, size, BLOCK)]
    with SlowClient(running.endpoint) as reader:
        reader.send("GET", path)
        response = reader.begin()
        before = response.read(64 * KIB)
        for number in range(60):
            scan = f"/bucket/scan-{size}-{number}"
            origin.put(scan, content(MIB, scan))
            assert get(running, scan).status == 200
        wait_until(lambda: not any(blob.exists() for blob in blobs), SOON, "the eviction of the object")
        got = finish(response, before)
    assert (got.whole, got.body == body) == (True, True)
    assert get(running, path).body == body


def test_a_scan_larger_than_the_cache(running, origin, settings):
    """Blobs and fills in progress never exceed the capacity, and every body is correct."""
    bodies = {f"/scan/{number}": content(700 * KIB + number, number) for number in range(100)}
    for path, body in bodies.items():
        origin.put(path, body)
    used, completed = [], []

    def read(paths: list[str]) -> None:
        with Client(running.endpoint) as client:
            for path in paths:
                assert client.get(path).body == bodies[path]
                completed.append(path)
                used.append(at_one_moment(settings.cache))

    paths = list(bodies)
    with ThreadPoolExecutor(4) as pool:
        for reading in [pool.submit(read, paths[start::4]) for start in range(4)]:
            reading.result(100)
    assert max(used) <= CAPACITY
    assert running.metric("larder_evicted_blobs_total") > 0
    # The most recently read objects are the cached ones. The four readers do not end together.
    assert get(running, completed[-1]).cache == "HIT"
    await_index_equals_disk(settings.cache)


def test_a_scan_through_two_workers(tmp_path, origin):
    """The capacity applies to the node: the index never exceeds it, nor do the files once all fills have ended."""
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity="4MB", block_size="64KiB", workers=2)
    bodies = {f"/two/{number}": content(60 * KIB, ("two", number)) for number in range(160)}
    for path, body in bodies.items():
        origin.put(path, body)
    used = []
    with gateway(settings, tmp_path / "home") as running, client_of_each_worker(running) as clients:

        def read(client: Client, paths: list[str]) -> None:
            for path in paths:
                assert client.get(path).body == bodies[path]
                used.append(query(settings.cache, "SELECT bytes FROM pools WHERE id = 0")[0][0])

        paths = list(bodies)
        with ThreadPoolExecutor(2) as pool:
            readings = [pool.submit(read, client, paths[n::2]) for n, client in enumerate(clients.values())]
            for reading in readings:
                reading.result(100)
        assert max(used) <= 4_000_000
        assert max(used) > 3_000_000
        await_index_equals_disk(settings.cache)
        assert at_one_moment(settings.cache) <= 4_000_000
