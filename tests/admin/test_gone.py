"""A dead node is listed until it is dismissed or returns, and its counters still count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.gateways import Settings, fleet_node, gateway
from rig.world import content, eventually
from tests.admin.operations_world import READ_TOKEN, Zone, admin, get, zone

STATES = {"node-0": "READY", "node-1": "GONE"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path) as made:
        made.heard()
        yield made


def states(world: Zone) -> dict[str, str]:
    """The nodes that the first one lists."""
    return {each["id"]: each["state"] for each in get(world.nodes[0], "/nodes")["items"]}


def test_a_node_that_died_is_listed_until_it_is_dismissed(world: Zone) -> None:
    """Rule: it is GONE and an error until an operator takes it off the list, which the audit log notes; totals keep its part."""
    one, other = world.nodes
    for number in range(4):
        path = f"/bucket/gone/{number}"
        world.origin.put(path, content(1000, path))
        world.read(1, path)
    total = eventually(
        lambda: get(one, "/overview")["total"], lambda found: found["sent_bytes"] >= 4000, "what was read"
    )
    assert admin(one, "DELETE", "/nodes/node-1").code == "Conflict"
    other.kill()
    eventually(lambda: states(world), lambda found: found == STATES, "the node to be gone")
    page = get(one, "/overview")
    assert [(each["kind"], each["severity"], each["node"]) for each in page["problems"]] == [
        ("gone", "error", "node-1")
    ]
    assert all(page["total"][name] >= counted for name, counted in total.items())
    assert admin(one, "DELETE", "/nodes/node-1", token=READ_TOKEN).code == "ReadOnlyToken"
    assert admin(one, "DELETE", "/nodes/nobody").code == "NotFound"
    assert admin(one, "DELETE", "/nodes/node-1").status == 204
    page = get(one, "/overview")
    assert ([each["id"] for each in page["nodes"]], page["problems"]) == (["node-0"], [])
    assert all(page["total"][name] >= counted for name, counted in total.items())
    [line] = get(one, "/audit?action=nodes.dismiss")["items"]
    assert (line["target"], line["before"]) == ("node-1", {"state": "GONE"})


def test_a_node_that_comes_back_is_not_gone_and_counts_on(world: Zone, tmp_path: Path) -> None:
    """Rule: with its id it is the node that it was, and its new counters are added to the old ones."""
    path = "/bucket/back/0"
    world.origin.put(path, content(1000, path))
    world.read(1, path)
    total = eventually(
        lambda: get(world.nodes[0], "/overview")["total"], lambda found: found["requests"] >= 1, "a read"
    )
    world.nodes[1].kill()
    eventually(lambda: states(world), lambda found: found == STATES, "the node to be gone")
    with gateway(_again(world, tmp_path), tmp_path / "again") as back:
        eventually(lambda: states(world), lambda found: found == dict.fromkeys(STATES, "READY"), "the node to be back")
        back.client().get_object(Bucket="bucket", Key="back/0")["Body"].read()
        eventually(
            lambda: get(world.nodes[0], "/overview")["total"],
            lambda found: (
                found["requests"] >= total["requests"] + 1 and found["sent_bytes"] >= total["sent_bytes"] + 1000
            ),
            "both starts to be counted",
        )
        assert get(world.nodes[0], "/problems")["items"] == []


def _again(world: Zone, home: Path) -> Settings:
    """The second node's configuration."""
    return fleet_node(world.origin.endpoint, world.redis.url, 1, home, extra=world.extra)
