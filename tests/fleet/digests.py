"""Datasets of a fleet of real gateways, whose nodes can be killed and started again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.model.frames import ItemFlag
from gateway.policies.fleet.ring import Ring, item_key
from rig.batches import Stock, decoded, stock
from rig.consistency import files_of
from rig.gateways import Running, finish, fleet, fleet_node, start, wait_for_fleet
from rig.origin import FakeOrigin, OriginThread
from rig.processes import wait_until
from rig.redis_server import RedisServer

NODES = ("node-0", "node-1", "node-2")


@dataclass
class World:
    """An origin, a Redis, three gateways."""

    origin: FakeOrigin
    redis: RedisServer
    nodes: list[Running]
    home: Path
    settings: dict[str, Any]
    stocks: list[str] = field(default_factory=list)
    revived: list[Running] = field(default_factory=list)

    def dataset(self, bodies: Sequence[bytes], at: int = 0, caching: str = "full") -> Stock:
        """A dataset that is registered at one gateway."""
        self.stocks.append(f"{self.home.name.strip('0123456789')}-{len(self.stocks)}")
        made = stock(self.origin, self.home / "files", self.stocks[-1], bodies)
        made.register(self.nodes[at], caching)
        return made

    def reads(self, made: Stock) -> list[int]:
        """The number of origin reads of each item."""
        return [self.origin.count("GET", made.path(index)) for index in range(len(made.rows))]

    def homes(self, made: Stock, nodes: Sequence[str] = NODES) -> list[str]:
        """The home of each item."""
        ring = Ring(dict.fromkeys(nodes, 1))
        return [ring.ranked(item_key(row.digest), 1)[0] for row in made.rows]

    def files(self) -> int:
        """The number of blobs in all caches, on disk: a blob is there before its reader has the last byte."""
        return sum(len(files_of(self.home / node / "cache")) for node in NODES)

    def known(self, made: Stock) -> None:
        """Have every gateway know a dataset, so that nothing but its items is asked for from then on.

        A gateway copies it from another, which may not answer in time on a busy machine.
        """
        for node in self.nodes:
            wait_until(lambda node=node: made.ask(node, [0], what="lookup").status == 200, 60, "a copy of the dataset")

    def kill(self, number: int, *, cache: bool = True) -> None:
        """Kill a node with SIGKILL; without ``cache``, delete its cache too. Its old process is cleaned up at the end."""
        self.nodes[number].kill()
        if not cache:
            shutil.rmtree(self.home / f"node-{number}" / "cache")

    def await_nodes(self, *numbers: int) -> None:
        """Wait until these nodes see each other and no other node."""
        wait_for_fleet([self.nodes[number] for number in numbers], {f"node-{number}": "READY" for number in numbers})

    def revive(self, number: int) -> None:
        """Start a node again, and wait until everybody knows it."""
        settings = fleet_node(self.origin.endpoint, self.redis.url, number, self.home, **self.settings)
        self.nodes[number] = start(settings, self.home / f"node-{number}")
        self.revived.append(self.nodes[number])
        self.await_nodes(*range(len(self.nodes)))


@contextmanager
def fleet_of(home: Path, count: int = 3, **settings: Any) -> Iterator[World]:
    """A fleet with its origin and Redis; further settings are those of ``rig.gateways.Settings``."""
    settings = {"fleet": {"expire": "1s"}, **settings}
    with (
        OriginThread() as origin,
        RedisServer() as redis,
        fleet(origin.endpoint, redis.url, count, home, **settings) as nodes,
    ):
        world = World(origin, redis, list(nodes), home, settings)
        try:
            yield world
        finally:
            origin.heal()
            for node in world.revived:
                finish(node)


def flags_of(running: Running, made: Stock, indices: Sequence[int], query: str = "mode=exact") -> list[ItemFlag]:
    """Read a batch, assert that every item was delivered, and return the flags by position."""
    reply = made.ask(running, indices, query)
    assert reply.status == 200, reply.body
    received = decoded(indices, reply.body)
    assert not received.failures
    found = dict(zip(received.positions, received.flags, strict=True))
    return [ItemFlag(found[position]) for position in range(len(indices))]
