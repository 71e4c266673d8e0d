"""A running gateway is really out of descriptors. It answers 503, names the shortage, and recovers."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rig.clients import Client, get
from rig.gateways import Running, Settings, gateway
from rig.world import KIB, MIB, Origin, content, eventually

SIZES = (9 * KIB, 110 * KIB, 3 * MIB)


@contextmanager
def limited(process: int, kind: int, limit: int) -> Iterator[None]:
    """A lower limit of a running process, until the block ends."""
    before = resource.prlimit(process, kind)
    resource.prlimit(process, kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, kind, before)


def stored(origin: Origin, name: str, count: int) -> dict[str, bytes]:
    """Objects at the origin that nobody has read."""
    paths = {f"/scarce/{name}/{number}": SIZES[number % 3] for number in range(count)}
    return {path: origin.put(path, content(size, path)) for path, size in paths.items()}


@pytest.fixture
def running(origin: Origin, tmp_path: Path) -> Iterator[Running]:
    """A gateway that has done nothing yet: what it needs for its work is not there from before."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as made:
        yield made


def answers(clients: Sequence[Client], bodies: dict[str, bytes]) -> Counter[int]:
    """Read everything through connections that are open, all at once; the statuses, none of them with wrong bytes."""

    def read(number: int) -> Counter[int]:
        seen = Counter[int]()
        for path in list(bodies)[number :: len(clients)]:
            got = clients[number].get(path)
            assert got.status != 200 or (got.whole and got.body == bodies[path])
            assert got.status == 200 or b"SlowDown" in got.body
            seen[got.status] += 1
        return seen

    with ThreadPoolExecutor(len(clients)) as pool:
        return sum(pool.map(read, range(len(clients))), Counter[int]())


def test_a_gateway_without_descriptors_recovers(running: Running, origin: Origin) -> None:
    """Rule: what is cached is served on, anything else is served or refused 503 SlowDown, never wrong or cut; the log and the
    problems name the shortage and nothing else; afterwards everything is served and kept, to new clients too."""
    process = running.process.pid
    warm, cold = stored(origin, "warm", 3), stored(origin, "cold", 48)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(running.endpoint)) for _ in range(16)]
        assert answers(clients[:1], warm) == {200: len(warm)}
        assert {client.get(next(iter(warm))).cache for client in clients} == {"HIT"}
        with limited(process, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{process}/fd"))):
            seen = answers(clients, cold)
            assert set(seen) <= {200, 503}
            assert seen[503]
            assert answers(clients, warm) == {200: len(warm)}
            assert json.loads(clients[0].ask("GET", "/-/readyz").body)["problems"].keys() <= {"resources"}
        assert answers(clients, cold) == {200: len(cold)}
    path, body = next(iter(cold.items()))
    eventually(lambda: get(running, path), lambda got: (got.cache, got.body) == ("HIT", body), "a hit")
    log = running.log.read_text()
    assert "out of file descriptors (its limit is" in log
    assert "Traceback" not in log
    assert running.process.poll() is None
