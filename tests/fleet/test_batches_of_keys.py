"""Batches of keys through a fleet: each entry is read at its home, once from the origin, whichever node is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import larder
from rig.world import KIB, content, credentials
from tests.fleet.nodes import COUNT, Nodes, nodes

KEY = larder.Credentials("GWA", "gateway-secret-a")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes."""
    with nodes(tmp_path_factory.mktemp("fleet"), credentials=credentials("a")) as made:
        yield made


def reader(fleet: Nodes, number: int) -> larder.ManyReader:
    """A reader of one node."""
    return larder.ManyReader(fleet.running[number].endpoint, credentials=KEY)


def objects(fleet: Nodes, name: str) -> dict[str, bytes]:
    """Objects of several sizes at every home, by entry."""
    made = {}
    for number in range(12):
        path = fleet.path(number % COUNT, f"{name}-{number}")
        made[path.removeprefix("/")] = fleet.origin.put(path, content((1, 40, 400)[number % 3] * KIB, path))
    return made


def test_misses_go_to_the_homes(fleet: Nodes) -> None:
    """Rule: entries that are cold are read by their homes; asked at any other node later, none is read again."""
    bodies = objects(fleet, "cold")
    served = [fleet.served(number) for number in range(COUNT)]
    assert reader(fleet, 0).get(bodies) == list(bodies.values())
    assert fleet.served(1) >= served[1] + 4
    assert fleet.served(2) >= served[2] + 4
    for number in (1, 2, 0):
        assert reader(fleet, number).get(bodies) == list(bodies.values())
    assert [fleet.origin.count("GET", f"/{path}") for path in bodies] == [1] * len(bodies)


def test_a_dead_home_is_a_miss(fleet: Nodes) -> None:
    """Rule: with a node killed, its entries are read by others; the batch has all bytes."""
    bodies = objects(fleet, "dead")
    assert reader(fleet, 0).get(bodies) == list(bodies.values())
    fleet.running[2].kill()
    assert reader(fleet, 0).get(bodies) == list(bodies.values())
