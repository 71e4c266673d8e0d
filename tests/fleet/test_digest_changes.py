"""Reads of items while homes die, hang, join and leave: no error, no item twice; blobs move on demand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.model.frames import ItemFlag
from rig.batches import bytes_of, decoded, taken
from rig.clients import paused
from rig.origin_faults import Hang
from tests.fleet.digests import World, flags_of, fleet_of


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes."""
    # A node that only waits for the processor must not count as gone: its items would move, and be read again.
    with fleet_of(tmp_path_factory.mktemp("changes"), fleet={"expire": "10s"}) as made:
        yield made


@pytest.fixture
def world(fleet: World) -> World:
    """Returns the fleet with all of its nodes up."""
    for number, node in enumerate(fleet.nodes):
        if node.process.poll() is not None:
            fleet.revive(number)
    fleet.await_nodes(0, 1, 2)
    return fleet


def test_a_dead_home_is_a_miss(world: World) -> None:
    """Rule: items of a killed home come from the next home or the origin, within the same batch."""
    made = world.dataset(bytes_of(90, 2000, "dead"))
    made.read(world.nodes[0], range(90))
    lost = sum(home == "node-2" for home in world.homes(made))
    world.kill(2)
    for query in ("mode=exact", "mode=substitute&take=90", "mode=exact&ordered=1"):
        for node in world.nodes[:2]:
            assert made.read(node, range(90), query) == made.expected(range(90))
    reads = world.reads(made)
    assert sum(reads) - 90 <= 2 * lost
    assert max(reads) <= 3


def test_a_home_that_hangs_is_given_up(world: World) -> None:
    """Rule: a home whose processes are stopped only delays a batch; no item is lost or delivered twice."""
    made = world.dataset(bytes_of(60, 2000, "hang"))
    made.read(world.nodes[0], range(60))
    with paused(world.nodes[2].process.pid):
        received = decoded(range(60), made.ask(world.nodes[0], range(60), "mode=exact").body)
        assert sorted(received.positions) == list(range(60))
        assert taken(received) == made.expected(range(60))


def test_a_home_that_dies_half_way(world: World) -> None:
    """Rule: complete items of a broken answer count, and only the rest is requested again."""
    made = world.dataset(bytes_of(90, 2000, "half"))
    world.known(made)
    far = [index for index, home in enumerate(world.homes(made)) if home == "node-2"]
    made.read(world.nodes[0], [index for index in range(90) if index not in far[10:]])
    hang = world.origin.inject(Hang(path=made.path(far[20]), times=1))
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(made.ask, world.nodes[0], range(90), "mode=exact")
        hang.gate.arrival.result(30)
        world.kill(2)
        hang.gate.open()
        received = decoded(range(90), batch.result().body)
    assert sorted(received.positions) == list(range(90))
    assert taken(received) == made.expected(range(90))


def test_what_a_node_that_joins_is_home_of_moves_when_it_is_wanted(world: World) -> None:
    """Rule: a join moves nothing; a requested item moves to its new home without a read of the origin."""
    world.kill(2, cache=False)
    world.await_nodes(0, 1)
    made = world.dataset(bytes_of(120, 2000, "join"))
    made.read(world.nodes[0], range(120))
    world.revive(2)
    mine = [index for index, home in enumerate(world.homes(made)) if home == "node-2"]
    assert len(mine) > 5
    assert made.read(world.nodes[2], mine[:5]) == {place: made.bodies[index] for place, index in enumerate(mine[:5])}
    assert world.nodes[2].metric("larder_moved_items_total") == 5
    for node in world.nodes:
        assert flags_of(node, made, range(120)) == [ItemFlag.HIT] * 120
    assert world.nodes[2].metric("larder_moved_items_total") == len(mine)
    assert world.reads(made) == [1] * 120


def test_a_node_that_leaves_is_asked_for_nothing_more(world: World) -> None:
    """Rule: a stopping node hands its part to the others; batches in flight and after it are complete."""
    made = world.dataset(bytes_of(90, 2000, "leave"))
    made.read(world.nodes[0], range(90))
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(made.read, world.nodes[number % 2], range(90)) for number in range(4)]
        assert world.nodes[2].stop() == 0
        jobs += [pool.submit(made.read, world.nodes[number % 2], range(90)) for number in range(4)]
        assert all(job.result() == made.expected(range(90)) for job in jobs)
    assert max(world.reads(made)) <= 3
