"""Taking a node out of the ring while it serves on, and bringing it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.gateways import finish, fleet_node, members, start, wait_for_fleet
from rig.world import content, eventually
from tests.admin.operations_world import Zone, admin, get, path_at, post, zone

BOTH = {"node-0": "READY", "node-1": "READY"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("drain"), fleet={"expire": "60s"}) as made:
        yield made


def test_a_drained_node_is_home_of_nothing_and_serves_on(world: Zone) -> None:
    """Rule: all nodes see it LEAVING, its objects are read elsewhere, it still answers, and undrain brings it back.

    The audit log has the same field before and after both changes.
    """
    path = path_at(1, "drained")
    world.origin.put(path, content(1000, path))
    assert post(world.nodes[0], "/nodes/node-1/drain")["state"] == "LEAVING"
    wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
    assert world.read(0, path) == "MISS; reason=cold"
    served = world.nodes[1].metric("larder_peer_requests_served_total", what="object")
    assert world.read(1, path) == "HIT"
    assert world.nodes[1].metric("larder_peer_requests_served_total", what="object") == served
    assert {node["id"]: node["state"] for node in get(world.nodes[1], "/nodes")["items"]} == members(world.nodes[0])
    assert post(world.nodes[1], "/nodes/node-1/undrain")["state"] == "READY"
    changes = [(each["before"], each["after"]) for each in get(world.nodes[0], "/audit?target=node-1&limit=2")["items"]]
    assert changes == [({"drained": True}, {"drained": False}), ({"drained": False}, {"drained": True})]
    wait_for_fleet(world.nodes, BOTH)
    world.read(0, path)
    assert world.origin.count("GET", path) == 1, "it is taken over from the node that was home meanwhile"


def test_what_a_drained_node_has_is_taken_over(world: Zone) -> None:
    """Rule: the new home gets objects from the drained node, not from the origin; the read counts as a hit, marked ``moved``."""
    path = path_at(1, "moved")
    key = path.removeprefix("/bucket/")
    world.origin.put(path, content(1000, path))
    world.read(0, path)
    assert world.read(1, path) == "HIT"
    post(world.nodes[0], "/nodes/node-1/drain")
    wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
    asked = f"/explain?bucket=bucket&key={key}&access_key_id=GWA"
    assert "node-1, is asked first" in get(world.nodes[0], asked)["explanation"]
    hits = world.metric("larder_requests_total", outcome="HIT")
    assert world.read(0, path) == "HIT; reason=moved"
    assert world.metric("larder_requests_total", outcome="HIT") == hits + 1
    assert world.origin.count("GET", path) == 1
    post(world.nodes[0], "/nodes/node-1/undrain")
    wait_for_fleet(world.nodes, BOTH)


def test_a_redis_that_forgets_brings_no_drained_node_back(world: Zone) -> None:
    """Rule: an operator's drain survives an emptied Redis: the node remembers it."""
    post(world.nodes[0], "/nodes/node-1/drain")
    wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
    world.redis.flush()
    eventually(
        lambda: world.redis.ask("HGET", "larder:default:nodes:drained", "node-1"),
        lambda told: told is not None and told.endswith(" 1"),
        "the node to say again that it is drained",
    )
    wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
    post(world.nodes[0], "/nodes/node-1/undrain")
    wait_for_fleet(world.nodes, BOTH)


def test_two_who_drain_leave_a_node(world: Zone) -> None:
    """Rule: a drain counts before heartbeats announce it, so a loop over all nodes does not empty the ring."""
    post(world.nodes[0], "/nodes/node-1/drain")
    reply = admin(world.nodes[1], "POST", "/nodes/node-0/drain", {})
    assert (reply.status, reply.code) == (409, "Conflict")
    post(world.nodes[1], "/nodes/node-1/undrain")
    wait_for_fleet(world.nodes, BOTH)


def test_the_last_ready_node_stays_unless_forced(world: Zone) -> None:
    """Rule: draining the only READY node is refused with the remedy; with force it is drained, and reads continue."""
    post(world.nodes[0], "/nodes/node-1/drain")
    wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
    reply = admin(world.nodes[0], "POST", "/nodes/node-0/drain", {})
    assert (reply.status, reply.code) == (409, "Conflict")
    assert "force" in reply.json["detail"]
    post(world.nodes[0], "/nodes/node-0/drain", {"force": True})
    wait_for_fleet(world.nodes, {"node-0": "LEAVING", "node-1": "LEAVING"})
    world.origin.put("/bucket/alone", content(1000, "alone"))
    assert [world.read(0, "/bucket/alone"), world.read(0, "/bucket/alone")] == ["MISS; reason=cold", "HIT"]
    for name in BOTH:
        post(world.nodes[0], f"/nodes/{name}/undrain")
    wait_for_fleet(world.nodes, BOTH)


def test_what_there_is_not_cannot_be_drained(world: Zone) -> None:
    """Rule: an unknown node is 404, an unknown field is refused by its name, and neither is audited."""
    before = get(world.nodes[0], "/audit?action=nodes.drain")["items"]
    assert admin(world.nodes[0], "POST", "/nodes/nobody/drain", {}).code == "NotFound"
    reply = admin(world.nodes[0], "POST", "/nodes/node-0/drain", {"forced": True})
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert get(world.nodes[0], "/audit?action=nodes.drain")["items"] == before


def test_a_restart_brings_a_drained_node_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: draining is for this start of the node only."""
    home = tmp_path_factory.mktemp("again")
    with zone(home, fleet={"expire": "60s"}) as world:
        post(world.nodes[0], "/nodes/node-1/drain")
        wait_for_fleet(world.nodes, {"node-0": "READY", "node-1": "LEAVING"})
        old = world.nodes[1]
        settings = fleet_node(world.origin.endpoint, world.redis.url, 1, home, fleet={"expire": "60s"})
        finish(old)
        again = start(settings, home / "node-1")
        try:
            wait_for_fleet([world.nodes[0], again], BOTH)
        finally:
            finish(again)
