"""Homes that die or move: no client sees an error, a wrong byte or an old one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rig.clients import Client, finish, get
from rig.world import KIB, MIB, content, eventually
from tests.fleet.nodes import Nodes, nodes


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes; a test that ends one brings it back."""
    with nodes(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@contextmanager
def killed(fleet: Nodes, number: int) -> Iterator[None]:
    """A node that is dead for a while, as the others do not know yet."""
    fleet.running[number].kill()
    try:
        yield
    finally:
        fleet.revive(number)


def ranges_asked(fleet: Nodes, path: str) -> list[tuple[str, str]]:
    """Range and If-Match of every GET of an object that the origin has seen."""
    seen = [request for request in fleet.origin.s3.seen if (request.method, request.raw_path) == ("GET", path)]
    return [(request.header("range"), request.header("if-match")) for request in seen]


def test_a_dead_home_is_a_miss(fleet: Nodes) -> None:
    """Rule: a reader of a dead home's object gets it from the origin, which is asked once."""
    path = fleet.path(1, "dead")
    body = fleet.origin.put(path, content(200 * KIB, path))
    assert fleet.get(0, path).body == body
    with killed(fleet, 1):
        first = fleet.get(0, path)
        assert (first.status, first.body, first.cache) == (200, body, "MISS; reason=cold")
        eventually(lambda: fleet.get(0, path).cache, lambda cache: cache == "HIT", "what was read to be kept")
        assert [(got.body, got.cache) for got in (fleet.get(2, path), fleet.get(0, path))] == [(body, "HIT")] * 2
    assert fleet.origin.count("GET", path) == 2
    assert fleet.get(0, path).body == body


def test_a_home_that_dies_after_hits(fleet: Nodes) -> None:
    """Rule: a hit that was relayed before is read elsewhere when its home is dead, over the client's same connection."""
    path = fleet.path(1, "dead-after-hits")
    body = fleet.origin.put(path, content(110 * KIB, path))
    with Client(fleet.running[0].endpoint) as client:
        eventually(lambda: client.get(path).headers, lambda told: "x-larder-request-id" not in told, "the short path")
        with killed(fleet, 1):
            got = client.get(path)
            assert (got.status, got.body, got.cache) == (200, body, "MISS; reason=cold")


@pytest.mark.parametrize("span", [(0, 3 * MIB), (100_000, 3 * MIB - 5)], ids=["whole", "range"])
def test_a_home_that_dies_half_way(fleet: Nodes, span: tuple[int, int]) -> None:
    """Rule: the rest of a dead home's answer comes from the origin, of the same version, from the first missing byte on."""
    start, stop = span
    path = fleet.path(1, f"half-{start}")
    body = fleet.origin.put(path, content(3 * MIB, path))
    hang = fleet.origin.hang(path, after=MIB)
    with Client(fleet.running[0].endpoint) as client:
        client.send("GET", path, {"range": f"bytes={start}-{stop - 1}"} if start else None)
        response = client.begin()
        had = response.read(50_000)
        with killed(fleet, 1):
            got = finish(response, had)
            assert (got.whole, got.body) == (True, body[start:stop])
        hang.gate.open()
    span_asked, version = ranges_asked(fleet, path)[-1]
    first = int(span_asked.removeprefix("bytes=").partition("-")[0])
    assert start + len(had) <= first <= start + MIB + 100_000
    assert (span_asked, version) == (f"bytes={first}-{stop - 1}", got.headers["etag"])


def test_an_object_that_changed_while_its_home_died(fleet: Nodes) -> None:
    """Rule: no client gets parts of two versions: if the rest of the first version is lost, the connection is broken."""
    path = fleet.path(1, "changed")
    old = fleet.origin.put(path, content(3 * MIB, path))
    hang = fleet.origin.hang(path, after=MIB)
    with Client(fleet.running[0].endpoint) as client:
        client.send("GET", path)
        response = client.begin()
        had = response.read(50_000)
        fleet.origin.put(path, content(3 * MIB, "another"))
        with killed(fleet, 1):
            got = finish(response, had)
        hang.gate.open()
    assert not got.whole
    assert old.startswith(got.body)


def test_a_former_home_does_not_give_what_it_held(fleet: Nodes) -> None:
    """Rule: a node that was home for a while learns of writes too; home again, it returns the new object."""
    path = fleet.path(1, "moves")
    substitute = fleet.home(path, without=[1])
    other = 2 - substitute
    old = fleet.origin.put(path, content(1000, "old"))
    with killed(fleet, 1):
        assert fleet.get(other, path).body == old
        eventually(lambda: fleet.get(substitute, path).cache, lambda cache: cache == "HIT", "a copy at the substitute")
    new = content(1000, "new")
    with Client(fleet.running[other].endpoint) as writer:
        assert writer.put(path, new).status == 200
    with killed(fleet, 1):
        assert [fleet.get(number, path).body for number in (0, 2, 0, 2)] == [new] * 4


def test_reads_after_writes_while_the_home_dies_and_returns(fleet: Nodes) -> None:
    """Rule: with readers at every node, the next read returns the last write, while the home is killed and comes back."""
    path = fleet.path(1, "contended")
    written = {fleet.origin.put(path, content(1000, "first"))}
    enough, seen = threading.Event(), []

    def read(number: int) -> None:
        while not enough.is_set():
            seen.append(get(fleet.running[number], path))

    def write_and_look(turns: range) -> None:
        for turn in turns:
            body = content(1000 + turn, (path, turn))
            written.add(body)
            with Client(fleet.running[turn % 2 * 2].endpoint) as writer:
                assert writer.put(path, body).status == 200
            assert [fleet.get(number, path).body for number in (0, 2)] == [body, body]

    readers = [threading.Thread(target=read, args=(number,)) for number in (0, 2)]
    for reader in readers:
        reader.start()
    try:
        write_and_look(range(10))
        with killed(fleet, 1):
            write_and_look(range(10, 20))
        write_and_look(range(20, 30))
        assert fleet.get(1, path).body == content(1029, (path, 29))
    finally:
        enough.set()
        for reader in readers:
            reader.join()
    # An object overwritten while it is sent may have no rest: then the connection breaks, or the answer is a 503.
    assert {got.status for got in seen} <= {0, 200, 503}
    assert {got.body for got in seen if got.status == 200 and got.whole} <= written
