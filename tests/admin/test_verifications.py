"""Nodes verify their caches while they serve on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.world import blob_path, content, eventually
from tests.admin.operations_world import Zone, admin, get, post, zone


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of the nodes."""
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="module")
def world(home: Path) -> Iterator[Zone]:
    """Two nodes, each of two workers."""
    with zone(home, workers=2) as made:
        yield made


def ended(world: Zone, begun: Any) -> Any:
    """Wait for the end of a verification and return its document from the other gateway."""
    return eventually(
        lambda: get(world.nodes[1], f"/verifications/{begun['id']}"),
        lambda found: found["state"] in ("done", "failed"),
        "the verification's end",
    )


def filled(world: Zone, name: str, count: int = 12) -> list[bytes]:
    """Objects that are in the caches."""
    bodies = []
    for number in range(count):
        path = f"/bucket/{name}/{number}"
        bodies.append(world.origin.put(path, content(2000, path)))
        world.read(number % 2, path)
    return bodies


def test_sound_caches_are_said_to_be_sound(tmp_path: Path) -> None:
    """Rule: every node reads every blob once, with any number of workers, and any gateway has the result."""
    with zone(tmp_path, workers=2) as world:
        bodies = filled(world, "sound")
        paths = [blob_path(tmp_path / f"node-{number}" / "cache", body) for number in range(2) for body in bodies]
        eventually(lambda: sum(path.exists() for path in paths), lambda there: there == len(bodies), "the blobs")
        found = ended(world, post(world.nodes[0], "/verifications", status=202))
        assert (found["state"], found["sound"]) == ("done", True)
        assert [node["node"] for node in found["nodes"]] == ["node-0", "node-1"]
        assert sum(node["blobs"] for node in found["nodes"]) == len(bodies)
        assert all(node["share"] == 1 for node in found["nodes"])


def test_a_wrong_blob_is_found_and_never_sent(world: Zone, home: Path) -> None:
    """Rule: a blob that does not match its name is reported with its node; readers still get the correct bytes."""
    body = filled(world, "wrong", 1)[0]
    path = next(found for number in range(2) if (found := blob_path(home / f"node-{number}" / "cache", body)).exists())
    path.write_bytes(body[:-1] + b"?")
    victim = next(name for name in ("node-0", "node-1") if name in str(path))
    begun = post(world.nodes[0], "/verifications", {"nodes": [victim]}, status=202)
    found = ended(world, begun)
    assert found["sound"] is False
    assert [(node["node"], node["corrupt"]) for node in found["nodes"]] == [(victim, 1)]
    digest = hashlib.sha256(body).hexdigest()
    assert found["nodes"][0]["examples"] == [f"{digest[:2]}/{digest[2:]}"]
    answer = world.nodes[0].client().get_object(Bucket="bucket", Key="wrong/0")
    assert answer["Body"].read() == body
    assert begun["id"] in [one["id"] for one in get(world.nodes[1], "/verifications")["items"]]


def test_what_is_wrong_is_refused(world: Zone) -> None:
    """Rule: an unknown node or verification is named; a POST that is sent twice with a key starts one."""
    assert "nobody" in admin(world.nodes[0], "POST", "/verifications", {"nodes": ["nobody"]}).json["detail"]
    assert admin(world.nodes[0], "GET", f"/verifications/{'0' * 32}").code == "NotFound"
    twice = [
        admin(node, "POST", "/verifications", {}, headers={"Idempotency-Key": "verify"}).json["id"]
        for node in world.nodes
    ]
    assert twice[0] == twice[1]


def test_the_overview_adds_up_over_workers(world: Zone) -> None:
    """Rule: the overview's totals include all workers of every node."""
    filled(world, "workers", 20)
    for node in world.nodes:
        eventually(
            lambda node=node: (get(node, "/overview")["total"]["requests"], world.metric("larder_requests_total")),
            lambda seen: seen[0] == seen[1],
            "all requests in the overview",
        )
