"""Nodes as real processes: how they join, leave, die and come back."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from gateway.policies.fleet.ring import Ring, path_key
from rig.clients import Client, finish
from rig.gateways import (
    fleet,
    fleet_document,
    fleet_node,
    gateway,
    members,
    wait_for_fleet,
)
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import MIB, Origin, content
from tests.fleet.seen import WITHIN, await_problems, sees

BOTH = {"node-0": "READY", "node-1": "READY"}


def test_workers_of_nodes_are_no_nodes(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: two nodes of two and one workers are two nodes, each at the address on which it listens."""
    url = shared_redis.url
    settings = [fleet_node(store.endpoint, url, number, tmp_path, workers=(2, 1)[number]) for number in (0, 1)]
    with gateway(settings[0], tmp_path / "node-0") as one, gateway(settings[1], tmp_path / "node-1") as other:
        wait_for_fleet([one, other], BOTH)
        for node in (one, other):
            addresses = {each["id"]: each["address"] for each in fleet_document(node)["nodes"]}
            assert addresses == {"node-0": one.endpoint, "node-1": other.endpoint}
            await_problems(node)
        assert other.metric("larder_fleet_nodes", state="READY") == 2


def test_a_node_that_is_told_to_stop_leaves_before_it_has_finished(
    store: Origin, shared_redis: RedisServer, tmp_path: Path
) -> None:
    """Rule: after SIGTERM the others learn at once that the node leaves, while it finishes its requests."""
    ring = Ring(dict.fromkeys(BOTH, 1))
    path = next(f"/b/{number}" for number in range(1000) if ring.ranked(path_key("b", str(number)), 1) == ["node-1"])
    body = store.put(path, content(4 * MIB))
    hang = store.hang(path, after=2 * MIB)
    with fleet(store.endpoint, shared_redis.url, 2, tmp_path) as [stays, leaves], Client(leaves.endpoint) as client:
        client.send("GET", path)
        response = client.begin()
        leaves.process.send_signal(signal.SIGTERM)
        sees(stays, {"node-0": "READY", "node-1": "LEAVING"})
        assert leaves.process.poll() is None
        hang.gate.open()
        assert finish(response).body == body
        assert leaves.process.wait(WITHIN) == 0


def test_a_killed_node_is_gone_and_comes_back(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: a killed node is dropped after its expiry; restarted at its address, it rejoins under its name."""
    quick = {"expire": "1s"}
    with fleet(store.endpoint, shared_redis.url, 2, tmp_path, fleet=quick) as [stays, dies]:
        port = dies.port
        dies.kill()
        sees(stays, {"node-0": "READY"})
        again = fleet_node(store.endpoint, shared_redis.url, 1, tmp_path, fleet=quick, server={"port": port})
        with gateway(again, tmp_path / "node-1") as returned:
            wait_for_fleet([stays, returned], BOTH)
            await_problems(returned)


def test_a_fleet_outlives_its_redis(store: Origin, shared_redis: RedisServer, tmp_path: Path) -> None:
    """Rule: with Redis lost all nodes stay ready and known, for longer than an expiry, and name the problem."""
    with fleet(store.endpoint, shared_redis.url, 2, tmp_path, fleet={"expire": "3s"}) as nodes:
        shared_redis.kill()
        for node in nodes:
            await_problems(node, "redis")
        ended = time.monotonic() + 3.5
        wait_until(lambda: time.monotonic() > ended, WITHIN, "more than an expiry")
        assert [members(node) for node in nodes] == [BOTH, BOTH]
        shared_redis.start()
        for node in nodes:
            await_problems(node)
        assert [members(node) for node in nodes] == [BOTH, BOTH]
