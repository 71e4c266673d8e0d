"""One node loses its connection to the origin while the others keep theirs: no read fails, and none waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.model.frames import ItemFlag
from gateway.policies.fleet.ring import Ring, path_key
from rig.batches import Stock, bytes_of, decoded, taken
from rig.clients import get
from rig.gateways import fleet
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.v1 import ask
from rig.world import Origin, content, eventually
from tests.fleet.digests import NODES, World, flags_of
from tests.fleet.seen import problems

LOST = 1
"""The node whose link goes through a proxy."""
WITHIN = 20.0
"""Seconds: far from the 60 s of the origin's read_timeout, and long for a busy machine."""


@dataclass
class Cutting:
    """A fleet with the link between one of its nodes and the origin."""

    world: World
    origin: Origin
    link: Proxy

    @contextmanager
    def lost(self, how: str) -> Iterator[None]:
        """Break that link for the block; afterwards wait until the node has noticed its return."""
        ways: dict[str, Callable[[], AbstractContextManager[None]]] = {"cut": self.link.cut, "silent": self.link.silent}
        with ways[how]():
            yield
        eventually(
            lambda: problems(self.world.nodes[LOST]), lambda said: "origin-lost" not in said, "the link's return"
        )

    def dataset(self, count: int, seed: str) -> Stock:
        """A dataset that every node knows."""
        made = self.world.dataset(bytes_of(count, 2000, seed))
        self.world.known(made)
        return made

    def object(self, name: str) -> tuple[str, bytes]:
        """The path of an object whose home is the lost node, and its bytes."""
        ring = Ring(dict.fromkeys(NODES, 1))
        key = next(
            key
            for serial in itertools.count()
            if ring.ranked(path_key("bucket", key := f"{name}/{serial}"), 1)[0] == NODES[LOST]
        )
        return f"/bucket/{key}", self.origin.put(f"/bucket/{key}", content(50_000, name))


@pytest.fixture(scope="module")
def cutting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cutting]:
    """Three nodes."""
    home: Path = tmp_path_factory.mktemp("lost")
    settings = {"fleet": {"expire": "60s"}, "rules": ({"match": "bucket/always/**", "freshness": "always"},)}
    with (
        Origin() as origin,
        RedisServer() as redis,
        Proxy(urlsplit(origin.endpoint).port or 0) as link,
        fleet(origin.endpoint, redis.url, 3, home, endpoints={LOST: link.url}, **settings) as nodes,
    ):
        yield Cutting(World(origin.s3, redis, list(nodes), home, settings), origin, link)


@contextmanager
def soon() -> Iterator[None]:
    """Assert that the block ends before a time-out of the origin would."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < WITHIN


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_batches_are_read_by_others(cutting: Cutting, how: str) -> None:
    """Rule: cold items whose home has lost its origin come from the next node, each read once; exact and substitute, and through
    the lost node itself."""
    exact, substitute, own = (cutting.dataset(60, f"{how}-{kind}") for kind in ("exact", "substitute", "own"))
    nodes = cutting.world.nodes
    with cutting.lost(how):
        with soon():
            assert exact.read(nodes[0], range(60)) == exact.expected(range(60))
        with soon():
            reply = substitute.ask(nodes[2], range(60), "mode=substitute&take=60")
            received = decoded(range(60), reply.body)
            assert taken(received) == substitute.expected(range(60))
        with soon():
            assert own.read(nodes[LOST], range(60)) == own.expected(range(60))
        # Requests that stand in a silent link arrive when it is whole again.
        assert cutting.world.reads(exact) == [1] * 60
        assert max(cutting.world.reads(substitute)) == 1


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_what_the_lost_node_has_is_still_a_hit(cutting: Cutting, how: str) -> None:
    """Rule: a home that has lost the origin keeps its cached items: none is read again."""
    made = cutting.dataset(60, f"{how}-warm")
    made.read(cutting.world.nodes[0], range(60))
    path, body = cutting.object(f"{how}-warm")
    get(cutting.world.nodes[0], path)
    with cutting.lost(how):
        assert flags_of(cutting.world.nodes[0], made, range(60)) == [ItemFlag.HIT] * 60
        got = get(cutting.world.nodes[2], path)
    assert (got.status, got.body, got.cache) == (200, body, "HIT")
    assert cutting.world.reads(made) == [1] * 60


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_cold_objects_are_read_by_the_next_node(cutting: Cutting, how: str) -> None:
    """Rule: a cold object whose home has lost its origin is read by the next node, also for the lost node's clients."""
    objects = [cutting.object(f"{how}-cold-{number}") for number in range(3)]
    with cutting.lost(how):
        for path, body in objects:
            for node in cutting.world.nodes:
                with soon():
                    got = get(node, path)
                assert (got.status, got.body) == (200, body)
        assert [cutting.origin.count("GET", path) for path, _ in objects] == [1, 1, 1]


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_no_stale_bytes_while_another_node_reaches_the_origin(cutting: Cutting, how: str) -> None:
    """Rule: an object whose home has lost its origin is checked through another node, so that a change is seen."""
    path, _ = cutting.object(f"always/{how}")
    get(cutting.world.nodes[0], path)
    changed = cutting.origin.put(path, content(40_000, "changed"))
    with cutting.lost(how), soon():
        got = get(cutting.world.nodes[0], path)
    assert (got.status, got.body) == (200, changed)


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_the_lost_node_says_so(cutting: Cutting, how: str) -> None:
    """Rule: while its origin is lost a node is ready, with the possible reads in /-/readyz; afterwards it has no problem."""
    path, _ = cutting.object(f"{how}-said")
    node = cutting.world.nodes[LOST]
    with cutting.lost(how):
        get(cutting.world.nodes[0], path)
        said = eventually(lambda: problems(node).get("origin-lost"), bool, "the problem")
        verb = {"cut": "cannot be reached from", "silent": "does not answer"}[how]
        assert said == (
            f"The origin 'default' {verb} this node; cached objects are served, stale ones within stale_if_error, and other "
            "nodes read the rest."
        )
        assert problems(cutting.world.nodes[0]) == {}
    assert ask(node, "GET", "/readyz", key=None).status == 200
