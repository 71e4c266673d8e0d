"""Items read through a fleet: correct bytes from every gateway, and one read of the origin."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.model.frames import ItemFlag
from rig.batches import bytes_of, decoded, taken
from rig.processes import wait_until
from rig.v1 import ask
from tests.fleet.digests import World, flags_of, fleet_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Returns a fleet whose members do not expire, even if heartbeats are late on a busy machine."""
    with fleet_of(tmp_path_factory.mktemp("digests"), fleet={"expire": "60s"}) as made:
        yield made


def test_each_item_is_read_once_for_the_fleet(world: World) -> None:
    """Rule: batches for the same cold items at all gateways at once cause one read of each item at the origin."""
    made = world.dataset(bytes_of(120, 3000, "once"))
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(made.read, node, range(120)) for node in world.nodes * 2]
        assert all(job.result() == made.expected(range(120)) for job in jobs)
    assert world.reads(made) == [1] * 120


def test_what_a_home_has_is_a_hit_everywhere(world: World) -> None:
    """Rule: an item's flag is its state at the home: fetched at first, then a hit at every gateway; it is cached once."""
    made = world.dataset(bytes_of(60, 2000, "hits"))
    assert flags_of(world.nodes[0], made, range(60)) == [ItemFlag.NONE] * 60
    kept = world.files()
    for node in world.nodes:
        assert flags_of(node, made, range(60)) == [ItemFlag.HIT] * 60
    assert world.files() == kept
    assert world.reads(made) == [1] * 60


def test_digests_are_looked_up_at_their_homes(world: World) -> None:
    """Rule: any gateway says which digests the fleet has, without a registration."""
    made = world.dataset(bytes_of(40, 500, "digests"))
    made.read(world.nodes[0], range(30))
    digests = b"".join(row.digest for row in made.rows)
    for node in world.nodes:
        reply = ask(node, "POST", "/v1/blobs/lookup", digests)
        assert (reply.status, list(reply.body)) == (200, [255, 255, 255, 63, 0])


def test_items_at_home_cause_no_traffic(world: World) -> None:
    """Rule: a gateway that is home of all items of a batch sends no request to another node."""
    made = world.dataset(bytes_of(60, 1000, "local"))
    mine = [index for index, home in enumerate(world.homes(made)) if home == "node-0"]
    assert len(mine) > 5
    made.read(world.nodes[0], mine)
    before = world.nodes[0].metric("larder_peer_requests_total")
    for query in ("mode=exact", f"mode=substitute&take={len(mine)}"):
        assert flags_of(world.nodes[0], made, mine, query) == [ItemFlag.HIT] * len(mine)
    assert world.nodes[0].metric("larder_peer_requests_total") == before


def test_substitutes_come_out_of_the_caches_of_the_fleet(world: World) -> None:
    """Rule: candidates cached by their homes are hits on every node; none is read from the origin."""
    made = world.dataset(bytes_of(200, 1500, "substitutes"))
    warm = list(range(0, 200, 2))
    made.read(world.nodes[1], warm)
    reads = sum(world.reads(made))
    for node in world.nodes:
        reply = made.ask(node, range(200), "mode=substitute&take=100")
        received = decoded(range(200), reply.body)
        assert sorted(received.positions) == warm
        assert taken(received) == {position: made.bodies[position] for position in warm}
        assert set(received.flags) == {ItemFlag.HIT}
    assert sum(world.reads(made)) == reads


def test_a_substitutable_batch_is_made_up_from_the_origin(world: World) -> None:
    """Rule: uncached candidates are fetched by their homes, as many as are needed, each once; cached ones come first."""
    made = world.dataset(bytes_of(150, 1500, "made up"))
    made.read(world.nodes[2], range(40))
    received = decoded(range(150), made.ask(world.nodes[0], range(150), "mode=substitute&take=90").body)
    assert len(received.positions) == 90
    assert set(range(40)) <= set(received.positions)
    assert max(world.reads(made)) == 1
    assert taken(received) == {position: made.bodies[position] for position in received.positions}


def test_a_lookup_speaks_for_the_fleet(world: World) -> None:
    """Rule: an item that is resident at its home counts as resident at every gateway."""
    made = world.dataset(bytes_of(50, 900, "lookup"))
    made.read(world.nodes[0], range(20))
    assert [made.missing(node) for node in world.nodes] == [list(range(20, 50))] * 3


def test_each_home_prefetches_its_part(world: World) -> None:
    """Rule: items announced at one gateway are read ahead by their homes, once, and are hits everywhere."""
    made = world.dataset(bytes_of(90, 1000, "prefetch"))
    made.read(world.nodes[0], range(10))
    reply = made.ask(world.nodes[0], range(90), "mode=prefetch")
    assert (reply.status, reply.json) == (202, {"resident": 10, "fetching": 80, "refused": 0})
    wait_until(lambda: not made.missing(world.nodes[1]), 30, "the announced items")
    assert flags_of(world.nodes[2], made, range(90)) == [ItemFlag.HIT] * 90
    assert world.reads(made) == [1] * 90


def test_without_caching_there_are_no_homes(world: World) -> None:
    """Rule: an uncached dataset is read from the origin by the requested gateway alone."""
    made = world.dataset(bytes_of(30, 1000, "none"), caching="none")
    before = world.nodes[0].metric("larder_peer_requests_total")
    for _ in range(2):
        assert made.read(world.nodes[0], range(30)) == made.expected(range(30))
    assert world.reads(made) == [2] * 30
    assert world.nodes[0].metric("larder_peer_requests_total") == before


def test_an_ordered_batch_keeps_its_order(world: World) -> None:
    """Rule: with ordered=1 items come in the order of the request, whichever node each comes from."""
    made = world.dataset(bytes_of(300, 700, "ordered"))
    order = [(index * 7) % 300 for index in range(300)]
    for _ in range(2):
        received = decoded(order, made.ask(world.nodes[1], order, "mode=exact&ordered=1").body)
        assert list(received.positions) == list(range(300))
        assert taken(received) == made.expected(order)
    assert world.reads(made) == [1] * 300


def test_equal_items_in_one_batch(world: World) -> None:
    """Rule: an item requested twice, or equal to another, is delivered at each position and read once."""
    made = world.dataset([b"same" * 500, *bytes_of(5, 800, "twice"), b"same" * 500])
    wanted = [0, 6, 0, 3, 3, 5, 6]
    assert made.read(world.nodes[1], wanted) == made.expected(wanted)
    reads = world.reads(made)
    assert reads[0] + reads[6] == 1
    assert (reads[3], reads[5]) == (1, 1)


def test_items_larger_than_memory_allows_are_streamed_from_their_home(world: World) -> None:
    """Rule: an item of more than 8 MiB is read from the origin once too, kept at its home, and streamed through the others."""
    made = world.dataset([*bytes_of(3, 9 * 1024 * 1024, "large"), *bytes_of(3, 1000, "small")])
    for node in world.nodes:
        assert made.read(node, range(6)) == made.expected(range(6))
    assert world.reads(made) == [1] * 6


def test_items_count_once_for_clients_and_apart_for_nodes(world: World) -> None:
    """Rule: the fleet's sum of larder_batch_items_total counts each item of a client once; nodes' requests count apart."""
    made = world.dataset(bytes_of(60, 1000, "counted"))
    far = sum(home != "node-0" for home in world.homes(made))

    def count(name: str) -> float:
        return sum(node.metric(name) for node in world.nodes)

    clients, nodes = count("larder_batch_items_total"), count("larder_peer_items_total")
    for _ in range(2):
        made.read(world.nodes[0], range(60))
    assert count("larder_batch_items_total") - clients == 120
    assert count("larder_peer_items_total") - nodes == 2 * far


def test_an_object_that_was_read_by_its_path_is_not_read_again(world: World) -> None:
    """Rule: the home of an item asks the home of its path before the origin, and takes over an object read by its path."""
    made = world.dataset(bytes_of(40, 5000, "by path"))
    client = world.nodes[0].client()
    for row, body in zip(made.rows, made.bodies, strict=True):
        assert client.get_object(Bucket=row.bucket, Key=row.key)["Body"].read() == body
    assert world.reads(made) == [1] * 40
    moved = sum(node.metric("larder_moved_items_total") for node in world.nodes)
    assert set(flags_of(world.nodes[1], made, range(40))) == {ItemFlag.HIT}
    assert world.reads(made) == [1] * 40
    assert sum(node.metric("larder_moved_items_total") for node in world.nodes) > moved


def test_failures_of_the_origin_are_told_as_by_one_gateway(world: World) -> None:
    """Rule: every gateway reports an item deleted or changed at the origin as such, and delivers the others."""
    made = world.dataset(bytes_of(30, 1000, "failures"))
    world.origin.delete("data", made.rows[3].key)
    world.origin.put("data", made.rows[4].key, b"something else")
    for node in world.nodes:
        received = decoded(range(30), made.ask(node, range(30), "mode=exact").body)
        assert {position: failure.status for position, failure in received.failures.items()} == {3: 1, 4: 2}
        assert len(received.positions) == 28
