"""Warm-ups: loaded at their homes behind the readers, with progress; cancelled, resumed, and gone on with when a gateway dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.http.requests import cursor_of
from gateway.operate.warm.warmups import WarmupRequest
from rig.batches import bytes_of, stock
from rig.world import content, eventually
from tests.admin.operations_world import Zone, admin, get, post, zone

CREDENTIALS = (
    {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    {"access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "tenant": "p", "allow": ["bucket/allowed/**"]},
)
RULES = ({"match": "bucket/never/**", "cache": False},)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes."""
    home = tmp_path_factory.mktemp("warmups")
    with zone(home, credentials=CREDENTIALS, rules=RULES, capacity="20MB") as made:
        yield made


def filled(world: Zone, prefix: str, count: int, size: int = 1000) -> list[str]:
    """Objects at the origin."""
    paths = [f"/bucket/{prefix}{number:04}" for number in range(count)]
    for path in paths:
        world.origin.put(path, content(size, path))
    return paths


def begun(world: Zone, number: int = 0, status: int = 202, **wanted: Any) -> Any:
    """Request a warm-up."""
    return post(world.nodes[number], "/warmups", {"access_key_id": "GWA", **wanted}, status)


def ended(world: Zone, begun: Any, number: int = 0, state: str = "done") -> Any:
    """Wait until a warm-up has reached ``state`` and return its document."""
    return eventually(
        lambda: get(world.nodes[number], f"/warmups/{begun['id']}"),
        lambda found: found["state"] == state,
        f"the warm-up to be {state}",
    )


def reads_of(world: Zone, paths: list[str]) -> int:
    """The number of origin reads of these paths."""
    return sum(world.origin.count("GET", path) for path in paths)


def test_a_prefix_is_loaded_once_at_its_homes(world: Zone) -> None:
    """Rule: after it, every object is a hit through any gateway; each was read once; counts are exact; it is audited."""
    paths, others = filled(world, "loaded/", 30), filled(world, "loadedtoo/", 3)
    found = ended(world, begun(world, bucket="bucket", prefix="loaded/"), number=1)
    assert (found["total"], found["done"], found["failed"], found["there"]) == (30, 30, 0, 0)
    assert (found["total_bytes"], found["done_bytes"], found["failure"]) == (30_000, 30_000, "")
    assert reads_of(world, paths) == 30
    assert {world.read(number % 2, path) for number, path in enumerate(paths)} == {"HIT"}
    assert reads_of(world, [*paths, *others]) == 30
    again = ended(world, begun(world, number=1, bucket="bucket", prefix="loaded/"))
    assert (again["done"], again["there"]) == (30, 30)
    assert get(world.nodes[1], "/audit?action=warmups.start&limit=1")["items"][0]["target"] == again["id"]


def test_a_key_is_one_object(world: Zone) -> None:
    """Rule: the warm-up of a key loads that object alone, and lists nothing; what cannot be read is a failure with its reason."""
    paths = filled(world, "exact/0", 2) + filled(world, "exact/0000", 1)
    before = len(world.origin.s3.seen)
    found = ended(world, begun(world, bucket="bucket", key="exact/00000"), number=1)
    assert (found["bucket"], found["key"], found["prefix"]) == ("bucket", "exact/00000", None)
    assert (found["total"], found["done"], found["failed"], found["total_bytes"]) == (1, 1, 0, 1000)
    assert [world.origin.count("GET", path) for path in paths] == [1, 0, 0]
    assert "/bucket" not in {seen.raw_path.rstrip("/") for seen in world.origin.s3.seen[before:]}
    missing = ended(world, begun(world, bucket="bucket", key="exact/"))
    assert (missing["done"], missing["failed"], missing["examples"][0]["key"]) == (1, 1, "exact/")


def test_an_older_gateway_loads_no_more_than_what_begins_with_the_key() -> None:
    """Rule: the row of a warm-up of a key has the key as a prefix too: version 0.1, which knows no key, would load the bucket.
    The audit log has what was asked."""
    asked = WarmupRequest(access_key_id="GWA", bucket="bucket", key="k")
    assert asked.stored() == {"access_key_id": "GWA", "bucket": "bucket", "key": "k", "prefix": "k"}
    assert asked.wanted() == {"access_key_id": "GWA", "bucket": "bucket", "key": "k"}


@pytest.mark.parametrize(
    "wanted",
    [{"bucket": "b", "prefix": "k", "key": "k"}, {"dataset": "d", "key": "k"}, {"bucket": "b", "key": ""}],
)
def test_a_key_goes_with_a_bucket_alone(world: Zone, wanted: dict[str, str]) -> None:
    """Rule: a key stands in place of a prefix."""
    reply = admin(world.nodes[0], "POST", "/warmups", {"access_key_id": "GWA", **wanted})
    assert (reply.status, reply.code) == (400, "InvalidRequest")


def test_more_than_a_page_is_loaded(world: Zone) -> None:
    """Rule: prefixes of several of the origin's pages are loaded whole, odd names included."""
    names = [f"many/{number:04}" for number in range(20)] + ["many/ä +%&\U0001f600/\u2028", "many//", "many/../x"]
    for name in names:
        world.origin.s3.put("pages", name, b"x")
    world.origin.s3.buckets.page = 7
    try:
        found = ended(world, begun(world, bucket="pages", prefix="many/"))
    finally:
        world.origin.s3.buckets.page = 1000
    assert (found["done"], found["failed"]) == (len(names), 0)
    assert sum(seen.raw_path.rstrip("/") == "/pages" for seen in world.origin.s3.seen) >= 4


def test_a_dataset_is_loaded_at_its_homes(world: Zone, tmp_path: Path) -> None:
    """Rule: after the warm-up every gateway reports all items as cached; each was read from the origin once."""
    made = stock(world.origin.s3, tmp_path, "warmed", bytes_of(700, 500, "warmed"))
    made.register(world.nodes[0])
    found = ended(world, begun(world, number=1, dataset="warmed"))
    assert (found["total"], found["done"], found["failed"]) == (700, 700, 0)
    assert found["done_bytes"] == found["total_bytes"] == sum(map(len, made.bodies))
    assert [made.missing(node) for node in world.nodes] == [[], []]
    assert [world.origin.count("GET", made.path(index)) for index in range(700)] == [1] * 700
    short = ended(world, begun(world, dataset=made.id[:12]))
    assert (short["dataset"], short["there"]) == (made.id, 700)


def test_a_warm_up_may_accept_charges(world: Zone) -> None:
    """Rule: with request_payer the listing and the reads carry the payer, at every home; without, none does."""

    def payers(prefix: str) -> set[str]:
        seen = [each for each in world.origin.s3.seen if prefix in each.raw_path + each.query]
        return {each.header("x-amz-request-payer") for each in seen}

    for prefix, wanted, expected in (("paid/", {"request_payer": True}, "requester"), ("free/", {}, "")):
        filled(world, prefix, 20)
        assert ended(world, begun(world, bucket="bucket", prefix=prefix, **wanted))["failed"] == 0
        assert payers(prefix.strip("/")) == {expected}


def test_what_cannot_be_had_is_counted_with_reasons(world: Zone, tmp_path: Path) -> None:
    """Rule: items missing at the origin count as failures with a reason; the others are loaded."""
    made = stock(world.origin.s3, tmp_path, "holes", bytes_of(20, 500, "holes"))
    made.register(world.nodes[0])
    for index in (3, 4):
        world.origin.s3.delete(made.rows[index].bucket, made.rows[index].key)
    found = ended(world, begun(world, dataset="holes"))
    assert (found["done"], found["failed"]) == (20, 2)
    assert sorted(each["key"] for each in found["examples"]) == ["item 3", "item 4"]
    assert all(each["why"] for each in found["examples"])


def test_rights_and_rules_hold(world: Zone) -> None:
    """Rule: objects that the key's allow-list or a rule forbids are not loaded; each is a failure with its reason."""
    allowed, forbidden, never = filled(world, "allowed/", 3), filled(world, "allowe", 2), filled(world, "never/", 2)
    found = ended(world, begun(world, bucket="bucket", prefix="allowe", access_key_id="GWP"))
    assert (found["done"], found["failed"]) == (5, 2)
    assert all("allow-list" in each["why"] for each in found["examples"])
    assert reads_of(world, allowed) == 3
    ruled = ended(world, begun(world, bucket="bucket", prefix="never/"))
    assert (ruled["done"], ruled["failed"]) == (2, 2)
    assert reads_of(world, [*forbidden, *never]) == 0


def test_what_is_larger_than_the_cache_is_refused(world: Zone, tmp_path: Path) -> None:
    """Rule: a prefix is refused when it is counted, a dataset at once, with both sizes in the message; nothing was read."""
    paths = filled(world, "huge/", 40, 1_000_000)
    found = ended(world, begun(world, bucket="bucket", prefix="huge/"), state="refused")
    assert "36.0 MB" in found["failure"]
    assert reads_of(world, paths) == 0
    made = stock(world.origin.s3, tmp_path, "huge", bytes_of(40, 1_000_000, "huge"))
    made.register(world.nodes[0])
    reply = admin(world.nodes[0], "POST", "/warmups", {"access_key_id": "GWA", "dataset": "huge"})
    assert (reply.status, reply.code) == (409, "Conflict")
    assert "40.0 MB" in reply.json["detail"]


def test_a_cancelled_warm_up_stops_and_can_go_on(world: Zone) -> None:
    """Rule: a cancelled warm-up stops, and resume continues from there; no object is read twice."""
    paths = filled(world, "slow/", 40)
    hang = world.origin.hang(paths[20])
    made = begun(world, bucket="bucket", prefix="slow/")
    hang.gate.arrival.result(60)
    cancelled = post(world.nodes[1], f"/warmups/{made['id']}/cancel")
    assert (cancelled["state"], cancelled["node"]) == ("cancelled", None)
    assert admin(world.nodes[0], "POST", f"/warmups/{made['id']}/cancel", {}).code == "Conflict"
    hang.gate.open()
    assert get(world.nodes[0], f"/warmups/{made['id']}")["failure"] == "cancelled"
    post(world.nodes[0], f"/warmups/{made['id']}/resume")
    found = ended(world, made)
    assert (found["done"], found["failed"]) == (40, 0)
    assert {world.origin.count("GET", path) for path in paths} == {1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "access_key_id"),
        ({"access_key_id": "GWA"}, "bucket"),
        ({"access_key_id": "NOBODY", "bucket": "b"}, "access_key_id"),
        ({"access_key_id": "GWA", "bucket": "b", "dataset": "d"}, "bucket"),
        ({"access_key_id": "GWA", "bucket": "/"}, "bucket"),
        ({"access_key_id": "GWA", "dataset": "d", "prefix": "p"}, "prefix"),
        ({"access_key_id": "GWA", "bucket": "b", "speed": 3}, "speed"),
    ],
)
def test_what_is_wrong_is_named(world: Zone, body: dict[str, object], field: str) -> None:
    """Rule: an invalid warm-up is refused with the field's name, and none is started."""
    before = [one["id"] for one in get(world.nodes[0], "/warmups")["items"]]
    reply = admin(world.nodes[0], "POST", "/warmups", body)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert field in reply.json["detail"]
    assert "body" not in reply.json["detail"], "no word of the page or the command line"
    assert [one["id"] for one in get(world.nodes[0], "/warmups")["items"]] == before


def test_a_request_that_is_sent_twice_starts_one(world: Zone) -> None:
    """Rule: with an Idempotency-Key the second POST answers as the first."""
    filled(world, "once/", 1)
    body = {"access_key_id": "GWA", "bucket": "bucket", "prefix": "once/"}
    answers = [
        admin(node, "POST", "/warmups", body, headers={"Idempotency-Key": "once"}).json["id"] for node in world.nodes
    ]
    assert answers[0] == answers[1]


def test_lists_are_paged_newest_first(world: Zone) -> None:
    """Rule: each warm-up is on exactly one page, in the order of the whole list."""
    for _ in range(3):
        begun(world, bucket="bucket", prefix="nothing-is-here")
    everything = [one["id"] for one in get(world.nodes[0], "/warmups?limit=1000")["items"]]
    page, found = get(world.nodes[0], "/warmups?limit=2"), []
    while page["next"]:
        found += [one["id"] for one in page["items"]]
        page = get(world.nodes[0], f"/warmups?limit=2&cursor={page['next']}")
    found += [one["id"] for one in page["items"]]
    assert found == everything


@pytest.mark.parametrize(
    "place",
    [[10**400, "ab"], [1, "ab"], [True, "ab"], [1.0, "\ud800"], [1.0, "a\0"], [1.0, 2], [1.0], {}],
)
def test_a_cursor_that_is_none_is_refused(world: Zone, place: object) -> None:
    """Rule: an invalid cursor is an error of the caller, not of the gateway."""
    reply = admin(world.nodes[0], "GET", f"/warmups?cursor={cursor_of(place)}")
    assert (reply.status, reply.code) == (400, "InvalidRequest")


def test_another_gateway_goes_on_when_the_one_that_runs_it_dies(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: of a warm-up that was half done when its gateway was killed, the other does the rest; each is named."""
    with zone(tmp_path_factory.mktemp("dies"), fleet={"expire": "1s"}) as world:
        paths = filled(world, "long/", 60)
        hang = world.origin.hang(paths[30])
        made = begun(world, bucket="bucket", prefix="long/")
        hang.gate.arrival.result(60)
        running = eventually(
            lambda: [node.metric("larder_warmups_running") for node in world.nodes],
            any,
            "the node that runs it to be known",
        )
        victim = running.index(1)
        assert get(world.nodes[1 - victim], f"/warmups/{made['id']}")["node"] == f"node-{victim}"
        world.nodes[victim].kill()
        hang.gate.open()
        survivor = 1 - victim
        found = ended(world, made, number=survivor)
        assert (found["done"], found["failed"], found["node"]) == (60, 0, f"node-{survivor}")
        assert {world.read(survivor, path) for path in paths} == {"HIT"}
