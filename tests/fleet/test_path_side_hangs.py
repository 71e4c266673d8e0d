"""Homes that do not answer: one that waits is waited for, one that hangs is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.clients import Client, finish, paused
from rig.mounts import block_device, hung
from rig.world import KIB, MIB, content, eventually
from tests.fleet.nodes import Nodes, nodes


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes; a test that ends one brings it back."""
    with nodes(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def test_a_home_that_hangs(fleet: Nodes) -> None:
    """Rule: a hung home with open connections is waited for only until it fails to report being alive."""
    path = fleet.path(1, "hangs")
    body = fleet.origin.put(path, content(200 * KIB, path))
    with paused(fleet.running[1].process.pid):
        got = fleet.get(0, path)
    assert (got.status, got.body) == (200, body)
    fleet.await_home(1)


def test_a_home_that_hangs_after_hits(fleet: Nodes) -> None:
    """Rule: a hit that was relayed before is read elsewhere too, when its home hangs."""
    path = fleet.path(1, "hangs-after-hits")
    body = fleet.origin.put(path, content(110 * KIB, path))
    with Client(fleet.running[0].endpoint) as client:
        eventually(lambda: client.get(path).headers, lambda told: "x-larder-request-id" not in told, "the short path")
        with paused(fleet.running[1].process.pid):
            got = client.get(path)
    assert (got.status, got.body) == (200, body)
    fleet.await_home(1)


def test_a_home_that_hangs_half_way(fleet: Nodes) -> None:
    """Rule: within an answer too; the rest comes from the origin."""
    path = fleet.path(1, "hangs-half-way")
    body = fleet.origin.put(path, content(3 * MIB, path))
    hang = fleet.origin.hang(path, after=MIB)
    with Client(fleet.running[0].endpoint) as client:
        client.send("GET", path)
        response = client.begin()
        had = response.read(50_000)
        with paused(fleet.running[1].process.pid):
            got = finish(response, had)
    hang.gate.open()
    assert (got.whole, got.body) == (True, body)
    fleet.await_home(1)


def test_a_home_that_waits_for_its_origin_is_not_dead(fleet: Nodes) -> None:
    """Rule: a home that waits for a slow origin sends signs of life: the origin is not asked a second time."""
    path = fleet.path(1, "slow")
    body = fleet.origin.put(path, content(200 * KIB, path))
    hang = fleet.origin.hang(path)
    before = fleet.running[0].metric("larder_peer_requests_total", result="answered")
    with Client(fleet.running[0].endpoint) as client:
        client.send("GET", path)
        eventually(
            lambda: fleet.running[0].metric("larder_peer_requests_total", result="answered"),
            lambda answered: answered >= before + 2,
            "two questions whether the home is alive",
        )
        hang.gate.open()
        got = client.answer()
    assert (got.body, got.cache) == (body, "MISS; reason=cold")
    assert fleet.origin.count("GET", path) == 1


def test_a_home_whose_disk_is_frozen(tmp_path: Path) -> None:
    """Rule: a home that waits for its disk is left out before its breaker opens; other nodes read elsewhere."""
    cache = tmp_path / "node-0" / "cache"
    with block_device(cache), nodes(tmp_path) as fleet:
        path = fleet.path(0, "frozen")
        body = fleet.origin.put(path, content(110 * KIB, path))
        with hung(cache):
            got = fleet.get(1, path)
            state = fleet.running[0].metric("larder_disk_state")
        assert (got.status, got.body) == (200, body)
        assert state < 2, "the home's breaker had opened before"
