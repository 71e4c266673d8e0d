"""Three real gateways that are one fleet, whose nodes can be killed and started again; and paths by their homes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from gateway.policies.fleet.ring import Ring, path_key
from rig.clients import Got, get
from rig.gateways import Running, finish, fleet, fleet_node, members, start
from rig.redis_server import RedisServer
from rig.world import Origin, eventually

COUNT = 3

_OLDER = """
local til, since, rest = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^(%d+) (%d+) (.*)$')
redis.call('HSET', KEYS[1], ARGV[1], til .. ' ' .. string.format('%d', since - 3600000) .. ' ' .. rest)
redis.call('DEL', KEYS[1] .. ':version')
"""


class Nodes:
    """The nodes of a fleet by number.

    Args:
        running: all of them.
        home: the directory that they were started in.
        settings: that they were started with.
    """

    def __init__(
        self, origin: Origin, redis: RedisServer, running: Sequence[Running], home: Path, settings: dict[str, Any]
    ) -> None:
        self.origin = origin
        self.redis = redis
        self.running = list(running)
        self._home = home
        self._settings = settings
        self._revived: list[Running] = []

    def path(self, home: int, name: str) -> str:
        """A path whose home is node ``home`` while all nodes are up."""
        return next(path for serial in itertools.count() if self.home(path := f"/bucket/{name}/{serial}") == home)

    def home(self, path: str, without: Sequence[int] = ()) -> int:
        """The node that is home of a path when these are away."""
        ring = Ring({f"node-{number}": 1 for number in range(COUNT) if number not in without})
        bucket, _, key = path.removeprefix("/").partition("/")
        return int(ring.ranked(path_key(bucket, key), 1)[0].removeprefix("node-"))

    def get(self, number: int, path: str, **headers: str) -> Got:
        """Read through one node, over a new connection."""
        return get(self.running[number], path, **headers)

    def served(self, number: int) -> float:
        """The number of other nodes' reads that it has answered."""
        return self.running[number].metric("larder_peer_requests_served_total", what="object")

    def relayed(self, number: int, event: str) -> float:
        """The number of reads that it has sent to other nodes, by event."""
        return self.running[number].metric("larder_relayed_reads_total", event=event)

    def await_all(self, *, gone: Sequence[int] = ()) -> None:
        """Wait until every running node sees exactly the running nodes as READY; those that left are LEAVING for a while."""
        there = [number for number in range(COUNT) if number not in gone]
        wanted = {f"node-{number}" for number in there}
        for number in there:
            eventually(
                lambda number=number: {id for id, state in members(self.running[number]).items() if state == "READY"},
                lambda ready: ready == wanted,
                f"node {number} to see {wanted}",
            )

    def grow_older(self, *numbers: int) -> None:
        """Age these nodes' entries, so that their homes count as settled long ago."""
        with Redis.from_url(self.redis.url) as redis:
            for number in numbers:
                redis.eval(_OLDER, 1, "larder:default:nodes", f"node-{number}")

    def await_home(self, number: int) -> None:
        """Wait until all nodes are up and the others send this one requests for its keys, so no node suspects it any more."""
        self.await_all()
        path = self.path(number, "nothing")
        for other in range(COUNT):
            if other != number:
                before = self.served(number)
                eventually(
                    lambda other=other: (self.get(other, path), self.served(number))[1],
                    lambda served, before=before: served > before,
                    f"node {other} to ask node {number}",
                )

    def revive(self, number: int) -> None:
        """Start a node again that has ended, at its address and with the cache that it had."""
        chosen = {**self._settings, "server": {"port": self.running[number].port}}
        settings = fleet_node(self.origin.endpoint, self.redis.url, number, self._home, **chosen)
        self.running[number] = start(settings, self._home / f"node-{number}")
        self._revived.append(self.running[number])
        self.await_home(number)

    def close(self) -> None:
        """Stop everything that this object started."""
        for running in self._revived:
            finish(running)


@contextmanager
def nodes(home: Path, **settings: Any) -> Iterator[Nodes]:
    """A fleet with its own origin and Redis.

    Entries expire late, so that a busy machine does not move homes. A killed node is noticed at the first call to it, and
    rejoins at once, because it restarts at the same address.
    """
    settings = {"fleet": {"expire": "60s"}, **settings}
    with (
        Origin() as origin,
        RedisServer() as redis,
        fleet(origin.endpoint, redis.url, COUNT, home, **settings) as running,
    ):
        made = Nodes(origin, redis, running, home, settings)
        try:
            yield made
        finally:
            origin.heal()
            made.close()
