"""A joining node takes over cached objects of its share on demand, with the grants and freshness that they had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rig.clients import Client, get
from rig.world import KIB, MIB, content, credentials, eventually
from tests.fleet.nodes import Nodes, nodes

SIZES = {"empty": 0, "small": 100 * KIB, "blocks": 3 * MIB + 7}
NAMES = {**SIZES, "written": 1000, "secret": 1000, "brief": 1000, "forced": 1000}


@dataclass
class Object:
    """An object whose home is node 1, and which ``substitute`` has kept while that was away."""

    path: str
    body: bytes
    substitute: int


@dataclass
class Joined:
    """A fleet whose node 1 has come back with nothing in its cache."""

    fleet: Nodes
    objects: dict[str, Object]

    def moved(self) -> float:
        """The number of objects that it has taken over."""
        return self.fleet.relayed(1, "moved")


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    """Such a fleet."""
    rules = ({"match": "bucket/brief/**", "freshness": 2.0},)
    with nodes(tmp_path_factory.mktemp("fleet"), rules=rules, credentials=credentials("a", "b")) as fleet:
        assert fleet.running[1].stop() == 0
        fleet.await_all(gone=[1])
        objects = {}
        for name, size in NAMES.items():
            path = fleet.path(1, name)
            substitute = fleet.home(path, without=[1])
            body = fleet.origin.put(path, content(size, path))
            eventually(
                lambda substitute=substitute, path=path: fleet.get(substitute, path).cache,
                lambda cache: cache.startswith("HIT"),
                "a copy at the substitute",
            )
            objects[name] = Object(path, body, substitute)
        fleet.grow_older(0, 2)
        fleet.revive(1)
        yield Joined(fleet, objects)


@pytest.mark.parametrize("name", SIZES)
def test_what_has_moved_is_not_read_from_the_origin_again(joined: Joined, name: str) -> None:
    """Rule: the new home gets the bytes from the previous one, and answers as if it had always cached them."""
    fleet, wanted, before = joined.fleet, joined.objects[name], joined.moved()
    moved = fleet.get(1, wanted.path)
    assert (moved.status, moved.body) == (200, wanted.body)
    assert joined.moved() == before + 1
    eventually(lambda: fleet.get(1, wanted.path).cache, lambda cache: cache == "HIT", "a copy at the new home")
    there = fleet.get(wanted.substitute, wanted.path)
    assert (there.body, there.headers["etag"]) == (wanted.body, moved.headers["etag"])
    assert fleet.origin.count("GET", wanted.path) == 1


def test_what_was_written_meanwhile_is_not_taken_over(joined: Joined) -> None:
    """Rule: the previous home has applied the write and hands over nothing."""
    fleet, written = joined.fleet, joined.objects["written"]
    new = content(1000, "new")
    with Client(fleet.running[written.substitute].endpoint) as writer:
        assert writer.put(written.path, new).status == 200
    assert [fleet.get(number, written.path).body for number in (1, 0, 2)] == [new] * 3


def test_who_may_not_read_gets_nothing_that_has_moved(joined: Joined) -> None:
    """Rule: the previous home hands over only objects that this reader may read; the origin decides about other readers."""
    fleet, secret, before = joined.fleet, joined.objects["secret"], joined.moved()
    fleet.origin.s3.deny("origin-key-b", "bucket/secret/*")
    assert get(fleet.running[1], secret.path, "GWB", "gateway-secret-b").status == 403
    assert joined.moved() == before
    assert fleet.get(1, secret.path).body == secret.body
    assert joined.moved() == before + 1
    assert get(fleet.running[1], secret.path, "GWB", "gateway-secret-b").status == 403
    fleet.origin.s3.allow_again()


def test_what_has_moved_is_no_fresher_than_it_was(joined: Joined) -> None:
    """Rule: moving to a new home does not reset the time since the origin confirmed an object."""
    fleet, brief = joined.fleet, joined.objects["brief"]
    new = fleet.origin.put(brief.path, content(1000, "changed behind everybody's back"))
    eventually(lambda: fleet.get(1, brief.path).body, lambda body: body == new, "the end of its freshness")
    assert [fleet.get(number, brief.path).body for number in range(3)] == [new] * 3


def test_a_client_that_wants_the_origin_asked_has_it_asked(joined: Joined) -> None:
    """Rule: no-cache is about the origin, not about another node's cache."""
    fleet, forced, before = joined.fleet, joined.objects["forced"], joined.moved()
    new = fleet.origin.put(forced.path, content(1000, "changed"))
    assert fleet.get(1, forced.path, cache_control="no-cache").body == new
    assert joined.moved() == before
