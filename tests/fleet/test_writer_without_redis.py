"""One gateway alone loses Redis: it serves every object written through it correctly, whichever node is its home."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gateway.policies.fleet.ring import Ring, path_key
from rig.clients import Client, Got, get
from rig.gateways import Running, fleet_node, gateway, wait_for_fleet
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.world import Origin, eventually

COUNT = 3
WORKERS = 2
NAMES = [f"node-{number}" for number in range(COUNT)]
EACH = 3
"""Objects at each home."""


@dataclass
class Split:
    """Three gateways; the way of the first to Redis, and the ways by which other nodes reach each."""

    origin: Origin
    running: list[Running]
    redis: Proxy
    links: list[Proxy]

    @property
    def writer(self) -> Running:
        """The one that loses Redis."""
        return self.running[0]

    def fill(self, name: str) -> list[str]:
        """Have old objects in the cache, some at each home; their paths."""
        paths = [path for home in NAMES for path in itertools.islice(_at(home, name), EACH)]
        for path in paths:
            self.origin.put(path, b"old")
            for running in self.running:
                eventually(lambda running=running, path=path: get(running, path), _is_hit, "a hit of the old object")
        return paths

    def write(self, method: str, paths: Sequence[str]) -> None:
        """Replace or delete all objects through the writer."""
        with Client(self.writer.endpoint) as client:
            for path in paths:
                got = client.put(path, b"new") if method == "PUT" else client.ask("DELETE", path)
                assert got.status in (200, 204), got

    def relayed(self) -> float:
        """The number of reads that the writer has sent to other nodes."""
        return self.writer.metric("larder_relayed_reads_total", event="answered") + self.writer.metric(
            "larder_relayed_reads_total", event="forwarded"
        )

    def through(self, gateways: Sequence[Running], paths: Sequence[str], turns: int = 1) -> set[tuple[int, bytes]]:
        """Distinct answers of the gateways for all paths: the status, with the body if it is 200."""
        answers = [get(running, path) for _ in range(turns) for running in gateways for path in paths]
        return {(got.status, got.body if got.status == 200 else b"") for got in answers}


def _at(home: str, name: str) -> Iterator[str]:
    """Paths with this home."""
    ring = Ring(dict.fromkeys(NAMES, 1))
    keys = (f"{name}/{number}" for number in itertools.count())
    return (f"/bucket/{key}" for key in keys if ring.ranked(path_key("bucket", key), 1)[0] == home)


def _is_hit(got: Got) -> bool:
    return got.cache == "HIT" and got.body == b"old"


NOW = {"PUT": {(200, b"new")}, "DELETE": {(404, b"")}}
"""The correct answers after each method."""


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """The gateways, each with two workers."""
    home = tmp_path_factory.mktemp("split")
    with Origin() as origin, RedisServer() as server, ExitStack() as stack:
        redis = stack.enter_context(Proxy(server.port))
        links = [stack.enter_context(Proxy()) for _ in NAMES]
        running = []
        for number, link in enumerate(links):
            url = f"redis://127.0.0.1:{redis.port}" if number == 0 else server.url
            table = {"expire": "60s", "advertise": link.url}
            node = fleet_node(origin.endpoint, url, number, home, workers=WORKERS, fleet=table)
            running.append(stack.enter_context(gateway(node, home / str(number))))
            link.lead_to(running[-1].port)
        wait_for_fleet(running, dict.fromkeys(NAMES, "READY"))
        yield Split(origin, running, redis, links)


def await_redis(split: Split) -> None:
    """Wait until all workers of the writer receive the fleet's announcements again."""
    for _ in range(8 * WORKERS):
        eventually(lambda: get(split.writer, "/-/readyz").body, lambda body: b'"redis"' not in body, "Redis")


@pytest.mark.parametrize(("method", "how"), [("PUT", "silent"), ("DELETE", "cut")])
def test_a_write_is_announced_by_another_node(split: Split, method: str, how: str) -> None:
    """Rule: every node returns a write of a node without Redis once it is answered, and after Redis is back."""
    paths = split.fill(f"{method}-{how}")
    with getattr(split.redis, how)():
        split.write(method, paths)
        assert split.through(split.running, paths, 2) == NOW[method]
    await_redis(split)
    assert split.through(split.running, paths, 2) == NOW[method]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_what_nobody_announced_is_checked_through_the_writer(split: Split, method: str) -> None:
    """Rule: a write announced to no other node is served correctly by all workers of its own node, even when homes answer again
    before they receive the announcement; once they have it, all nodes serve it correctly."""
    paths = split.fill(f"{method}-debt")
    with split.redis.cut():
        with ExitStack() as apart:
            for link in split.links:
                apart.enter_context(link.cut())
            split.write(method, paths)
            assert split.through([split.writer], paths, 2) == NOW[method]
        seen: set[tuple[int, bytes]] = set()
        before = split.relayed()
        eventually(
            lambda: (seen.update(split.through([split.writer], paths)), split.relayed())[1],
            lambda relayed: relayed > before + WORKERS * EACH,
            "the writer to ask the homes again",
        )
        assert seen == NOW[method]
    await_redis(split)
    eventually(lambda: split.through(split.running, paths), lambda seen: seen == NOW[method], "everybody to be told")
