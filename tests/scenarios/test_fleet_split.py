"""The link between two gateways breaks, while both still reach Redis and the origin: two caches for a while, and no error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rig.batches import bytes_of, stock
from rig.clients import Client, get
from rig.gateways import Running, fleet_node, gateway, wait_for_fleet
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.world import KIB, Origin, content
from tests.scenarios.fleets import batches, objects, reading

ITEMS = 60
WHOLE = {"node-0": "READY", "node-1": "READY"}


@pytest.fixture(scope="module")
def links() -> Iterator[list[Proxy]]:
    """The ways by which the gateways reach each other."""
    with Proxy() as first, Proxy() as second:
        yield [first, second]


@pytest.fixture(scope="module")
def two(origin: Origin, links: list[Proxy], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Two gateways, which other nodes reach by these ways, and clients directly."""
    home = tmp_path_factory.mktemp("two")
    with RedisServer() as redis, ExitStack() as stack:
        running = []
        for number, link in enumerate(links):
            table = {"heartbeat": "200ms", "expire": "2s", "advertise": link.url}
            node = fleet_node(origin.endpoint, redis.url, number, home, fleet=table)
            running.append(stack.enter_context(gateway(node, home / str(number))))
            link.lead_to(running[-1].port)
        wait_for_fleet(running, WHOLE)
        yield running


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_the_link_between_two_gateways_breaks(origin, two, links, tmp_path, how):
    """Rule: with the link refused, or swallowing everything, every read of either gateway succeeds, and each item and each
    object is read at most once more; with the link mended they are one cache again."""
    made = stock(origin.s3, tmp_path, how, bytes_of(ITEMS, 4 * KIB, how))
    made.register(two[0])
    for running in two:
        batches(running, made, ITEMS)(0)
    for index in range(ITEMS):
        objects(two[0], made)(index)
    before = origin.count("GET", f"/data/{how}/")
    kinds = {"batches": batches, "objects": objects}
    readers = {f"{name} at {at}": kind(running, made) for at, running in enumerate(two) for name, kind in kinds.items()}
    with reading(readers) as load:
        load.await_more(3)
        with ExitStack() as broken:
            for link in links:
                broken.enter_context(getattr(link, how)())
            load.await_more(10)
        load.await_more(10)
    assert origin.count("GET", f"/data/{how}/") - before <= 2 * ITEMS
    wait_for_fleet(two, WHOLE)


def test_a_write_on_one_side_is_seen_on_the_other(origin, two, links):
    """Rule: writes are announced through Redis, so a split between gateways makes no read old."""
    one, other = two
    origin.put("/split/object", content(KIB, "old"))
    for running in two:
        get(running, "/split/object")
    with ExitStack() as broken:
        for link in links:
            broken.enter_context(link.cut())
        for number in range(5):
            new = content(KIB, number)
            with Client(one.endpoint) as writer:
                assert writer.put("/split/object", new).status == 200
            assert [get(running, "/split/object").body for running in (other, one)] == [new, new]
    assert [get(running, "/split/object").body for running in (other, one)] == [new, new]
