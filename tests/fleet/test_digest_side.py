"""Items read through a fleet: whichever gateway is asked, what comes is right, and the origin is read once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gateway.model.frames import ItemFlag
from gateway.policies.ring import Ring, item_key
from gateway.testing.origin import FakeOrigin, OriginThread
from larder.frames import Decoder
from tests.batches import Stock, bytes_of, decoded, packed, stock, taken
from tests.gateways import Running, fleet, fleet_node, start, wait_for_fleet
from tests.origins.processes import wait_until
from tests.scenarios.redis_server import RedisServer
from tests.v1 import ask

NODES = ("node-0", "node-1", "node-2")


@dataclass
class World:
    """An origin, a Redis, three gateways."""

    origin: FakeOrigin
    redis: RedisServer
    nodes: list[Running]
    home: Path
    stocks: list[str] = field(default_factory=list)

    def dataset(self, bodies: Sequence[bytes], at: int = 0, caching: str = "full") -> Stock:
        """A dataset that is registered at one gateway."""
        self.stocks.append(f"{self.home.name.strip('0123456789')}-{len(self.stocks)}")
        made = stock(self.origin, self.home / "files", self.stocks[-1], bodies)
        made.register(self.nodes[at], caching)
        return made

    def reads(self, made: Stock) -> list[int]:
        """How often the origin was read, by item."""
        return [self.origin.count("GET", made.path(index)) for index in range(len(made.rows))]

    def homes(self, made: Stock, nodes: Sequence[str] = NODES) -> list[str]:
        """The home of each item."""
        ring = Ring(dict.fromkeys(nodes, 1))
        return [ring.ranked(item_key(row.digest), 1)[0] for row in made.rows]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A fleet that stays as it is."""
    home = tmp_path_factory.mktemp("digests")
    with ExitStack() as stack:
        origin = stack.enter_context(OriginThread())
        redis = stack.enter_context(RedisServer())
        nodes = stack.enter_context(fleet(origin.endpoint, redis.url, 3, home))
        yield World(origin, redis, nodes, home)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[World]:
    """A fleet of a test's own."""
    with ExitStack() as stack:
        origin = stack.enter_context(OriginThread())
        redis = stack.enter_context(RedisServer())
        nodes = stack.enter_context(fleet(origin.endpoint, redis.url, 3, tmp_path))
        yield World(origin, redis, nodes, tmp_path)


def flags_of(running: Running, made: Stock, indices: Sequence[int], query: str = "mode=exact") -> list[ItemFlag]:
    """How each item of a batch came to be delivered, by position; all of them were."""
    reply = made.ask(running, indices, query)
    assert reply.status == 200, reply.body
    received = decoded(indices, reply.body)
    assert not received.failures
    found = dict(zip(received.positions, received.flags, strict=True))
    return [ItemFlag(found[position]) for position in range(len(indices))]


def test_each_item_is_read_once_for_the_fleet(world: World) -> None:
    """Rule: batches for the same cold items at all gateways at once cause one read of each item at the origin."""
    made = world.dataset(bytes_of(120, 3000, "once"))
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(made.read, node, range(120)) for node in world.nodes * 2]
        assert all(job.result() == made.expected(range(120)) for job in jobs)
    assert world.reads(made) == [1] * 120


def test_what_a_home_has_is_a_hit_everywhere(world: World) -> None:
    """Rule: an item says how its home had it: fetched the first time, a hit the second, at whichever gateway; each is kept once."""
    made = world.dataset(bytes_of(60, 2000, "hits"))
    assert flags_of(world.nodes[0], made, range(60)) == [ItemFlag.NONE] * 60
    kept = sum(node.metric("larder_cache_blobs") for node in world.nodes)
    for node in world.nodes:
        assert flags_of(node, made, range(60)) == [ItemFlag.HIT] * 60
    assert sum(node.metric("larder_cache_blobs") for node in world.nodes) == kept
    assert world.reads(made) == [1] * 60


def test_items_at_home_cause_no_traffic(world: World) -> None:
    """Rule: a gateway all of whose items are at home and resident asks no other node anything."""
    made = world.dataset(bytes_of(60, 1000, "local"))
    mine = [index for index, home in enumerate(world.homes(made)) if home == "node-0"]
    assert len(mine) > 5
    made.read(world.nodes[0], mine)
    before = world.nodes[0].metric("larder_peer_requests_total")
    for query in ("mode=exact", f"mode=substitute&take={len(mine)}"):
        assert flags_of(world.nodes[0], made, mine, query) == [ItemFlag.HIT] * len(mine)
    assert world.nodes[0].metric("larder_peer_requests_total") == before
