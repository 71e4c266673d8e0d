"""Gateways join, leave and die while clients read: no client of a living gateway notices, and little is read again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, fleet, fleet_node, gateway, wait_for_fleet
from rig.proxy import Proxy
from rig.world import KIB, Origin
from tests.scenarios.fleets import Reading, batches, doubted, downloads, objects, reading, share

ITEMS = 60
NODES = ("node-0", "node-1", "node-2")
QUICK = {"heartbeat": "200ms", "expire": "2s"}


def warmed(origin: Origin, gateways: list[Running], home: Path, name: str) -> Stock:
    """A dataset of which the fleet has every item, and every object."""
    made = stock(origin.s3, home, name, bytes_of(ITEMS, 8 * KIB, name))
    made.register(gateways[0])
    for running in gateways:
        batches(running, made, ITEMS)(0)
    for index in range(ITEMS):
        objects(gateways[0], made)(index)
    return made


def clients(gateways: list[Running], made: Stock) -> dict[str, Reading]:
    """Two clients of each gateway: one of batches, one of objects; neither repeats anything."""
    both = ((batches, "batches"), (objects, "objects"))
    return {f"{name} at {at}": kind(running, made) for at, running in enumerate(gateways) for kind, name in both}


def state(names: tuple[str, ...]) -> dict[str, str]:
    """The state in which exactly these nodes are ready."""
    return dict.fromkeys(names, "READY")


def test_a_gateway_joins_under_load(origin, redis, tmp_path):
    """Rule: while a gateway joins no request fails, and only objects with a new home are read again, at most once."""
    table = {**QUICK, "zone": "join"}
    with fleet(origin.endpoint, redis.url, 2, tmp_path, fleet=table) as two, ExitStack() as stack:
        made = warmed(origin, two, tmp_path, "join")
        before = origin.count("GET", "/data/join/")
        with reading(clients(two, made)) as load:
            load.await_more(3)
            third = stack.enter_context(
                gateway(fleet_node(origin.endpoint, redis.url, 2, tmp_path, fleet=table), tmp_path / "third")
            )
            wait_for_fleet([*two, third], state(NODES))
            load.await_more(6)
            with reading(clients([third], made)) as more:
                more.await_more(6)
        changed = {"node-2"} | doubted([*two, third])
        assert origin.count("GET", "/data/join/") - before <= share(made, NODES, changed)


@pytest.mark.parametrize("how", ["drained", "killed"])
def test_a_gateway_goes_under_load(origin, redis, tmp_path, how):
    """Rule: when a gateway is stopped or killed, no client of another gateway sees an error, nor does boto3 behind a load
    balancer; only keys whose home it was are read again, at most once."""
    table = {**QUICK, "zone": how}
    with fleet(origin.endpoint, redis.url, 3, tmp_path, fleet=table) as three, Proxy(three[2].port) as balancer:
        made = warmed(origin, three, tmp_path, how)
        before = origin.count("GET", f"/data/{how}/")
        running = clients(three[:2], made) | {"boto3": downloads(balancer.url, made)}
        with reading(running) as load:
            load.await_more(3)
            if how == "killed":
                three[2].kill()
                balancer.lead_to(three[1].port)
            else:
                balancer.lead_to(three[1].port, drop=False)
                assert three[2].stop() == 0
            load.await_more(6)
            wait_for_fleet(three[:2], state(NODES[:2]))
            load.await_more(6)
        # Each client may have been in the middle of one object, whose rest is one read more.
        changed = {"node-2"} | doubted(three[:2])
        assert origin.count("GET", f"/data/{how}/") - before <= share(made, NODES, changed) + len(running)
