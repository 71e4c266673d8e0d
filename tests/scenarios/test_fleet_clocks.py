"""Nodes whose clocks differ by five minutes, either way, form a working fleet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime

import pytest

from rig.batches import bytes_of, stock
from rig.clients import Client, get
from rig.gateways import Running, fleet_document, fleet_node, gateway, members, wait_for_fleet
from rig.redis_server import RedisServer
from rig.world import KIB, Origin, content
from tests.scenarios.fleets import doubted

ITEMS = 60
SKEWS = (0.0, 300.0, -300.0)
WHOLE = {"node-0": "READY", "node-1": "READY", "node-2": "READY"}

SHIFT = '''\
"""Imported by Python before anything else: this process has a clock that is wrong."""
import os, time

shift, now, now_ns = float(os.environ["CLOCK_SHIFT"]), time.time, time.time_ns
time.time = lambda: now() + shift
time.time_ns = lambda: now_ns() + int(shift * 1e9)
'''


@pytest.fixture(scope="module")
def skewed(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Three gateways whose clocks are right, fast and slow."""
    home, patches = tmp_path_factory.mktemp("skewed"), tmp_path_factory.mktemp("clock")
    (patches / "sitecustomize.py").write_text(SHIFT)
    with RedisServer() as redis, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(patches), os.environ.get("PYTHONPATH", "")])))
        gateways = []
        for number, skew in enumerate(SKEWS):
            patch.setenv("CLOCK_SHIFT", str(skew))
            table = {"heartbeat": "200ms", "expire": "2s"}
            node = fleet_node(origin.endpoint, redis.url, number, home, fleet=table)
            gateways.append(stack.enter_context(gateway(node, home / str(number))))
        wait_for_fleet(gateways, WHOLE)
        yield gateways


def test_the_clocks_are_wrong(skewed):
    """Rule: (of these tests) each gateway's clock is off by the requested offset, as its log shows."""
    shown = [json.loads(running.log.read_text().splitlines()[0])["time"] for running in skewed]
    times = [datetime.fromisoformat(text).timestamp() for text in shown]
    assert [round((time - times[0]) / 300) * 300.0 for time in times] == list(SKEWS)


def test_nobody_expires(skewed):
    """Rule: expiry is by Redis's clock alone: while heartbeats go on, no node leaves any fleet."""
    version = [fleet_document(running)["version"] for running in skewed]
    beats = [running.metric("larder_fleet_nodes", state="READY") for running in skewed]
    assert beats == [3.0] * 3
    assert [members(running) for _ in range(20) for running in skewed] == [WHOLE] * 60
    assert [fleet_document(running)["version"] for running in skewed] == version


def test_items_and_objects_come_through_every_gateway(origin, skewed, tmp_path):
    """Rule: nodes admit each other's requests, and each item is read from the origin once for all of them."""
    made = stock(origin.s3, tmp_path, "clocks", bytes_of(ITEMS, 4 * KIB, "clocks"))
    made.register(skewed[0])
    for running in skewed:
        assert made.read(running, range(ITEMS)) == made.expected(range(ITEMS))
    assert origin.count("GET", "/data/clocks/") <= ITEMS * (1 + len(doubted(skewed)))
    for running in skewed:
        assert [get(running, made.path(index)).body for index in range(ITEMS)] == made.bodies
    assert sum(running.metric("larder_peer_refused_total") for running in skewed) == 0


def test_writes_through_each_are_seen_through_all(origin, skewed):
    """Rule: no clock decides the last writer: every gateway returns a write from its acknowledgement on."""
    origin.put("/clock/written", content(KIB, "old"))
    for running in skewed:
        get(running, "/clock/written")
    for number in range(6):
        new = content(KIB, number)
        with Client(skewed[number % 3].endpoint) as writer:
            assert writer.put("/clock/written", new).status == 200
        assert [get(running, "/clock/written").body for running in skewed] == [new] * 3
