"""Importance over several homes: one gateway forwards scores to all of them, and the fleet keeps the items that one large
queue would keep."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rig.batches import bytes_of
from rig.gateways import Running
from rig.processes import wait_until
from rig.v1 import ask
from tests.fleet.digests import World, fleet_of
from tests.scored import Part, beat, join, planned, put

TOKEN = "operators-only"
SOON = 60.0
ITEMS = 100
FIT = 50


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes with 600 kB each and one catalog, without another test's scores: a node counts those of all jobs."""
    home = tmp_path_factory.mktemp("important")
    extra = f'[admin]\ntoken = "{TOKEN}"\n[database]\nurl = "sqlite:///{home}/catalog.db"\n'
    with fleet_of(home, capacity="600KB", extra=extra, fleet={"expire": "4s"}) as made:
        yield made


def scored(node: Running) -> float:
    """Items of which a node has a score."""
    return node.metric("larder_importance_scored_items")


def test_the_fleet_keeps_the_most_important_of_all_homes(world: World) -> None:
    """Rule: a gateway forwards scores and list to the items' homes, which load and keep the items above one common threshold;
    any gateway refuses a part with another base, and the next part may go to another gateway."""
    made = world.dataset(bytes_of(ITEMS, 10_000, "important"), caching="auto")
    node = world.nodes[0]
    join(node, "train", made)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    quota = json.dumps({"mode": None, "quota": FIT * 10_000}).encode()
    wait_until(lambda: bool(planned(node, made)), SOON, "the dataset in the plan")
    assert ask(node, "PUT", f"/admin/datasets/{made.id}/override", quota, None, headers).status == 200
    # Until the plan has the quota, all items fit: they would be loaded, and kept without a threshold.
    wait_until(
        lambda: all(0 < planned(each, made).get("granted", 0) <= FIT * 10_000 for each in world.nodes),
        SOON,
        "the quota at every node",
    )
    part = Part(1, 0, {index: 1 + index / 16 for index in range(ITEMS)}, dict.fromkeys(range(ITEMS), 1))
    assert put(node, "train", made.id, part).json == {"sequence": 1, "items": ITEMS}
    homes = world.homes(made)
    wait_until(
        lambda: [scored(each) for each in world.nodes[1:]] == [homes.count("node-1"), homes.count("node-2")],
        SOON,
        "the scores at their homes",
    )
    best = set(range(ITEMS - FIT, ITEMS))

    def divided() -> bool:
        beat(node, "train")
        shown = [planned(each, made) for each in world.nodes]
        found = {(each.get("order"), (each.get("importance") or {}).get("threshold")) for each in shown}
        return found == {("importance", 1 + (ITEMS - FIT) / 16)}

    def kept() -> bool:
        beat(node, "train")
        return not best & set(made.missing(node))

    wait_until(divided, SOON, "the threshold at every node")
    wait_until(kept, SOON, "the most important items in the caches")
    refused = put(world.nodes[1], "train", made.id, Part(9, 8, {1: 1.0}))
    assert (refused.status, refused.code) == (409, "UnknownBase")
    for sequence, at in ((2, 1), (3, 2), (4, 0)):
        changed = Part(sequence, sequence - 1, dict.fromkeys(range(30), 9.0), epoch=sequence)
        assert put(world.nodes[at], "train", made.id, changed).status == 200


def test_a_client_that_no_longer_reaches_the_nodes_leaves_nothing_old(world: World) -> None:
    """Rule: a whole part that one gateway forwards for all homes replaces earlier parts sent to a home directly."""
    made = world.dataset(bytes_of(ITEMS, 100, "unreachable"), caching="full")
    join(world.nodes[0], "cut-off", made)
    own = [index for index, home in enumerate(world.homes(made)) if home == "node-1"]
    direct = Part(1, 0, dict.fromkeys(own, 1.0), whole=True)
    assert put(world.nodes[1], "cut-off", made.id, direct).json == {"sequence": 1, "items": len(own)}
    passed_on = Part(2, 0, dict.fromkeys(own[:3], 2.0), whole=True, of_all=True)
    assert put(world.nodes[0], "cut-off", made.id, passed_on).status == 200
    assert put(world.nodes[1], "cut-off", made.id, Part(3, 2)).json == {"sequence": 3, "items": 3}
