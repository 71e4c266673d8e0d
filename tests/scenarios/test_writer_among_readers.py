"""One client overwrites an object again and again while others read it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from rig.clients import Client
from rig.gateways import Settings, gateway
from rig.world import KIB, content, md5

VERSIONS = 40
READERS = 4
_LENGTHS = (1 * KIB, 110 * KIB, 300 * KIB, 0, 700 * KIB)


@dataclass
class Log:
    """The writer's acknowledged version, and the readers' observations: (acknowledged before the read, version, matches)."""

    bodies: list[bytes]
    acknowledged: int = 0
    over: threading.Event = field(default_factory=threading.Event)


def versions() -> list[bytes]:
    """Bodies of several lengths: one block, several blocks, empty."""
    return [content(_LENGTHS[number % len(_LENGTHS)], number) for number in range(VERSIONS)]


def write(endpoint: str, path: str, log: Log) -> None:
    """Write one version after the other."""
    try:
        with Client(endpoint) as client:
            for number, body in enumerate(log.bodies[1:], 1):
                assert client.put(path, body).status == 200
                log.acknowledged = number
    finally:
        log.over.set()


def read(endpoint: str, path: str, log: Log) -> int:
    """Read until the writer is done and once more; how many answers were whole."""
    whole = 0
    last = False
    newest = {md5(body): number for number, body in enumerate(log.bodies)}
    while not last:
        last = log.over.is_set()
        acknowledged = log.acknowledged
        with Client(endpoint) as client:
            got = client.get(path)
        if not got.whole:
            continue  # overwritten in the middle of an object of several blocks: broken, and seen to be
        whole += 1
        assert got.status == 200
        assert int(got.headers["content-length"]) == len(got.body)
        assert md5(got.body) == got.etag
        assert newest[got.etag] >= acknowledged
    return whole


@pytest.mark.parametrize("workers", [1, 2])
def test_every_body_is_one_version_and_none_is_older_than_what_was_acknowledged(tmp_path, origin, workers):
    """Body, ETag and length belong together, and a read that begins after a write was acknowledged never gives older bytes.

    Empty versions differ by their place only: the newest of equal ones counts.
    """
    path = f"/bucket/loop-{workers}"
    log = Log(versions())
    origin.put(path, log.bodies[0])
    settings = Settings(origin.endpoint, tmp_path / "cache", block_size="256KiB", workers=workers)
    with gateway(settings, tmp_path / "home") as running, ThreadPoolExecutor(READERS + 1) as pool:
        readers = [pool.submit(read, running.endpoint, path, log) for _ in range(READERS)]
        writer = pool.submit(write, running.endpoint, path, log)
        writer.result(110)
        assert all(reader.result(110) > 0 for reader in readers)
