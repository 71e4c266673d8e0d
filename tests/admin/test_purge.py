"""Purge of a prefix or a key: every node forgets the objects, the origin does not change, and the answer has the counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rig.gateways import finish, fleet_node, start, wait_for_fleet
from rig.world import content, eventually
from tests.admin.operations_world import Zone, admin, get, path_at, post, zone


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    with zone(tmp_path_factory.mktemp("purge")) as made:
        yield made


def filled(world: Zone, prefix: str, count: int = 8) -> list[str]:
    """Objects that are in the caches of their homes, and in the indexes, which hear of a read a moment after its answer."""
    paths = [f"/bucket/{prefix}{number}" for number in range(count)]
    for path in paths:
        world.origin.put(path, content(1000, path))
        world.read(0, path)
    asked = {"bucket": "bucket", "prefix": prefix, "dry_run": True}
    eventually(
        lambda: post(world.nodes[0], "/purge", asked)["objects"], lambda found: found == count, "all in the indexes"
    )
    return paths


def test_a_purge_is_felt_on_every_node(world: Zone) -> None:
    """Rule: after a purge through any gateway, objects changed behind the gateway are read from the origin again; other keys
    stay."""
    paths, others = filled(world, "val/"), filled(world, "valve/")
    assert {world.read(1, path) for path in [*paths, *others]} == {"HIT"}
    for path in paths:
        world.origin.put(path, content(1000, path + " anew"))
    done = post(world.nodes[1], "/purge", {"bucket": "bucket", "prefix": "val/"})
    assert (done["objects"], done["bytes"], done["complete"]) == (8, 8000, True)
    assert [node["node"] for node in done["nodes"]] == ["node-0", "node-1"]
    assert all(node["objects"] for node in done["nodes"])
    puts = world.origin.count("PUT")
    assert {world.read(0, path) for path in paths} == {"MISS; reason=cold"}
    assert {world.read(0, path) for path in others} == {"HIT"}
    assert world.origin.count("PUT") == puts
    assert world.origin.count("DELETE") == 0


def test_a_purge_of_a_key_is_of_one_object(world: Zone) -> None:
    """Rule: a key names one object, on every node; objects whose keys begin with it are neither counted nor forgotten."""
    paths = filled(world, "one/", 12)
    for dry in (True, False):
        done = post(world.nodes[1], "/purge", {"bucket": "bucket", "key": "one/1", "dry_run": dry})
        assert (done["objects"], done["bytes"], done["key"], done["prefix"]) == (1, 1000, "one/1", None)
    assert {path for path in paths if world.read(0, path) != "HIT"} == {"/bucket/one/1"}
    entry = get(world.nodes[0], "/audit?action=purge&limit=1")["items"][0]
    assert (entry["target"], entry["after"]) == ("bucket/one/1", {"bucket": "bucket", "key": "one/1"})


def test_a_dry_run_only_counts(world: Zone) -> None:
    """Rule: a dry run counts the matches, forgets nothing, and is not in the audit log."""
    paths = filled(world, "dry/")
    before = len(get(world.nodes[0], "/audit?action=purge")["items"])
    done = post(world.nodes[0], "/purge", {"bucket": "bucket", "prefix": "dry/", "dry_run": True})
    assert (done["objects"], done["bytes"], done["dry_run"]) == (8, 8000, True)
    assert {world.read(1, path) for path in paths} == {"HIT"}
    assert len(get(world.nodes[0], "/audit?action=purge")["items"]) == before


def test_a_purge_is_audited(world: Zone) -> None:
    """Rule: the audit log has the purge and its token."""
    post(world.nodes[0], "/purge", {"bucket": "bucket", "prefix": "audited/"})
    entry = get(world.nodes[1], "/audit?action=purge&limit=1")["items"][0]
    assert (entry["actor"], entry["target"]) == ("admin", "bucket/audited/")


@pytest.mark.parametrize("prefix", ["", "ä/\u4e2d\U0001f600", "100%_/", "a\nb", "<b>", "\U0010ffff"])
def test_any_text_is_a_prefix(world: Zone, prefix: str) -> None:
    """Rule: prefixes are compared character by character; characters of SQL, XML, HTML or a shell are ordinary."""
    key = f"{prefix}key"
    world.origin.s3.put("strange", key, b"x" * 100)
    world.origin.s3.put("strange", "zother", b"x" * 100)
    for name in (key, "zother"):
        world.nodes[0].client().get_object(Bucket="strange", Key=name)["Body"].read()
    done = post(world.nodes[0], "/purge", {"bucket": "strange", "prefix": prefix})
    assert done["objects"] == (2 if prefix == "" else 1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prefix": "x"}, "bucket"),
        ({"bucket": "b"}, "Name either a prefix or a key."),
        ({"bucket": "b", "prefix": "a", "key": "a"}, "Name either a prefix or a key."),
        ({"bucket": "b", "key": ""}, "key"),
        ({"bucket": "../b", "prefix": ""}, "bucket"),
        ({"bucket": 7, "prefix": ""}, "bucket"),
        ({"bucket": "b", "prefix": "x" * 1025}, "prefix"),
        ({"bucket": "b", "prefix": "", "dryrun": True}, "dryrun"),
    ],
)
def test_what_is_wrong_is_named(world: Zone, body: dict[str, object], field: str) -> None:
    """Rule: an invalid purge is refused by the field, and nothing is forgotten."""
    reply = admin(world.nodes[0], "POST", "/purge", body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]


def test_a_node_that_is_away_is_named_and_forgets_when_it_is_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: the answer names absent nodes, also expired ones; a node that returns on its old cache serves no old bytes."""
    home = tmp_path_factory.mktemp("away")
    # Of other objects it would ask the origin after its start.
    rules = ({"match": "bucket/**", "freshness": "immutable"},)
    with zone(home, rules=rules) as world:
        world.heard()
        path = path_at(1, "away")
        world.origin.put(path, b"old")
        world.read(1, path)
        asked = {"bucket": "bucket", "prefix": "away/", "dry_run": True}
        eventually(
            lambda: post(world.nodes[0], "/purge", asked)["objects"], lambda count: count == 1, "it in the index"
        )
        world.nodes[1].kill()
        new = world.origin.put(path, content(1000, "new"))
        named(post(world.nodes[0], "/purge", {"bucket": "bucket", "prefix": "away/"}))
        wait_for_fleet(world.nodes[:1], {"node-0": "READY"})
        named(post(world.nodes[0], "/purge", {"bucket": "bucket", "prefix": "elsewhere/"}))
        finish(world.nodes[1])
        settings = fleet_node(world.origin.endpoint, world.redis.url, 1, home, extra=world.extra, rules=rules)
        again = start(settings, home / "node-1")
        try:
            wait_for_fleet([world.nodes[0], again], {"node-0": "READY", "node-1": "READY"})
            assert again.client().get_object(Bucket="bucket", Key=path.removeprefix("/bucket/"))["Body"].read() == new
        finally:
            finish(again)


def named(done: dict[str, Any]) -> None:
    """The second node has not forgotten, and the answer says so, and what becomes of it."""
    assert done["complete"] is False
    assert [bool(node["failure"]) for node in done["nodes"]] == [False, True]
    assert "applies the purge when it returns" in done["nodes"][1]["failure"]
