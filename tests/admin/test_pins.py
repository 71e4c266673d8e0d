"""Pinned prefixes as operators see and set them, with real gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rig.world import eventually
from tests.admin.operations_world import Zone, admin, get, zone

SIZE = 100_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("pins")) as made:
        yield made


def pin(size: int) -> dict[str, Any]:
    """A request to pin so many bytes."""
    return {"mode": "pin", "bytes": size}


def pins(world: Zone, number: int = 0) -> dict[str, Any]:
    """The pinned prefixes that a gateway lists, with their pools."""
    return {one["name"]: one["pool"] for one in get(world.nodes[number], "/streams")["items"] if one["pinned"]}


def test_a_pinned_prefix_has_a_pool_and_survives_redis(world: Zone) -> None:
    """Rule: objects below a pinned prefix are charged to its pool, read before or after, also once Redis forgot the pin."""
    world.origin.put("/bucket/val/before", b"b" * SIZE)
    world.origin.put("/bucket/val/after", b"a" * SIZE)
    world.read(0, "/bucket/val/before")
    reply = admin(world.nodes[1], "PUT", "/streams/bucket%2Fval%2F/override", pin(10 * SIZE))
    assert (reply.status, reply.json["pinned"]) == (200, 10 * SIZE)
    world.read(0, "/bucket/val/after")
    pool = eventually(
        lambda: pins(world).get("bucket/val/"),
        lambda pool: pool is not None and pool["bytes"] == 2 * SIZE,
        "both objects to be in the pool",
    )
    assert (pool["name"], pool["target"]) == ("stream:bucket/val/", 10 * SIZE)
    found = get(world.nodes[0], "/explain?bucket=bucket&key=val/after&access_key_id=GWA")
    assert found["pool"] == "stream:bucket/val/"
    world.redis.flush()
    eventually(lambda: set(pins(world, 1)), lambda names: names == {"bucket/val/"}, "the pin to be back")
    assert get(world.nodes[0], "/datasets")["items"] == []
    assert admin(world.nodes[0], "PUT", "/streams/bucket%2Fval%2F/override", {"mode": None}).json["pinned"] is None
    eventually(lambda: pins(world), lambda found: found == {}, "no pin")
    actions = [entry["action"] for entry in get(world.nodes[0], "/audit?limit=2")["items"]]
    assert actions == ["streams.override", "streams.override"]


def test_a_prefix_without_space_holds_nothing_against_others(world: Zone) -> None:
    """Rule: objects below a prefix that is denied space are in a pool with the target 0, read before or after, and are served."""
    world.origin.put("/bucket/logs/before", b"b" * SIZE)
    world.origin.put("/bucket/logs/after", b"a" * SIZE)
    world.read(0, "/bucket/logs/before")
    reply = admin(world.nodes[1], "PUT", "/streams/bucket%2Flogs%2F/override", {"mode": "never"})
    assert (reply.status, reply.json["override"], reply.json["pinned"]) == (200, "never", None)
    world.read(0, "/bucket/logs/after")

    pool = eventually(
        lambda: {one["name"]: one["pool"] for one in get(world.nodes[0], "/streams")["items"]}.get("bucket/logs/"),
        lambda pool: pool is not None and pool["bytes"] == 2 * SIZE,
        "both objects to be in the pool",
    )
    assert pool["target"] == 0
    assert world.read(0, "/bucket/logs/after") == "HIT"
    admin(world.nodes[0], "PUT", "/streams/bucket%2Flogs%2F/override", {"mode": None})
    eventually(
        lambda: [one["name"] for one in get(world.nodes[0], "/streams")["items"]],
        lambda names: "bucket/logs/" not in names,
        "the plan to decide again",
    )


@pytest.mark.parametrize(("name", "size"), [("bucket", 1), ("%2Fval%2F", 1), ("bucket%2Fval%2F", 0)])
def test_a_pin_that_could_hold_nothing_is_refused(world: Zone, name: str, size: int) -> None:
    """Rule: a pin names a bucket with a prefix or key, and at least one byte."""
    before = set(pins(world))
    assert admin(world.nodes[0], "PUT", f"/streams/{name}/override", pin(size)).status in (400, 422)
    assert set(pins(world)) == before


@pytest.mark.parametrize("asked", [{"mode": "pin"}, {"mode": "never", "bytes": 1}, {"bytes": 1}])
def test_bytes_go_with_a_pin_and_a_pin_with_bytes(world: Zone, asked: dict[str, Any]) -> None:
    """Rule: the refusal names the field."""
    reply = admin(world.nodes[0], "PUT", "/streams/bucket%2Fval%2F/override", asked)
    assert reply.status in (400, 422)
    assert reply.json["detail"] in (
        "The field bytes is required to pin, and goes with no other mode.",
        "The field mode is required.",
    )
