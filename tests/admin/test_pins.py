"""Pinned prefixes as operators see and set them, with real gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.admin.operations_world import Zone, admin, get, zone
from tests.scenarios.world import eventually

SIZE = 100_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("pins")) as made:
        yield made


def pins(world: Zone, number: int = 0) -> dict[str, Any]:
    """The pinned prefixes that a gateway lists, with their pools."""
    return {one["name"]: one["pool"] for one in get(world.nodes[number], "/streams")["items"] if one["pinned"]}


def test_a_pinned_prefix_has_a_pool_and_survives_redis(world: Zone) -> None:
    """Rule: objects below a pinned prefix are charged to its pool, read before or after, also once Redis forgot the pin."""
    world.origin.put("/bucket/val/before", b"b" * SIZE)
    world.origin.put("/bucket/val/after", b"a" * SIZE)
    world.read(0, "/bucket/val/before")
    reply = admin(world.nodes[1], "PUT", "/streams/bucket%2Fval%2F/pin", {"bytes": 10 * SIZE})
    assert (reply.status, reply.json["pinned"]) == (200, 10 * SIZE)
    world.read(0, "/bucket/val/after")
    pool = eventually(
        lambda: pins(world)["bucket/val/"],
        lambda pool: pool is not None and pool["bytes"] == 2 * SIZE,
        "both objects to be in the pool",
    )
    assert (pool["name"], pool["target"]) == ("stream:bucket/val/", 10 * SIZE)
    found = get(world.nodes[0], "/explain?bucket=bucket&key=val/after&access_key_id=GWA")
    assert found["pool"] == "stream:bucket/val/"
    world.redis.flush()
    eventually(lambda: set(pins(world, 1)), lambda names: names == {"bucket/val/"}, "the pin to be back")
    assert get(world.nodes[0], "/datasets")["items"] == []
    assert admin(world.nodes[0], "PUT", "/streams/bucket%2Fval%2F/pin", {"bytes": None}).json["pinned"] is None
    eventually(lambda: pins(world), lambda found: found == {}, "no pin")
    actions = [entry["action"] for entry in get(world.nodes[0], "/audit?limit=2")["items"]]
    assert actions == ["streams.pin", "streams.pin"]


@pytest.mark.parametrize(("name", "size"), [("bucket", 1), ("%2Fval%2F", 1), ("bucket%2Fval%2F", 0)])
def test_a_pin_that_could_hold_nothing_is_refused(world: Zone, name: str, size: int) -> None:
    """Rule: a pin names a bucket with a prefix or key, and at least one byte."""
    before = set(pins(world))
    assert admin(world.nodes[0], "PUT", f"/streams/{name}/pin", {"bytes": size}).status in (400, 422)
    assert set(pins(world)) == before
