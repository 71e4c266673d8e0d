"""The object browser at a fleet of two: buckets, folders, and what the caches have of each object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.admin.catalog.roles import TokenRole
from rig.world import content, eventually
from tests.admin.operations_world import Zone, admin, get, post, zone

CREDENTIALS = (
    {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    {
        "access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "tenant": "p",
        "allow": ["odd/a b/**", "odd/x/y/*.jpg", "**/readme"],
    },
    {
        "access_key_id": "GWB", "secret_access_key": "gateway-secret-b", "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
)  # fmt: skip
ODD = ("#hash", "100%25", "a b/c d", "double//slash", "q?mark&x=1", "x/y/1.jpg", "x/z", "ключ/🙂", "zeile\n2")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Two nodes, and a bucket of odd keys, of which both have read some."""
    with zone(tmp_path_factory.mktemp("browse"), credentials=CREDENTIALS) as made:
        for key in ODD:
            made.origin.put(f"/odd/{key}", content(1000, key))
        for number in range(12):
            made.origin.put(f"/many/{number:02}/x", b"x")
            made.origin.put(f"/many/object-{number:02}", b"xy")
        for number, key in enumerate(ODD):
            made.read(number % 2, f"/odd/{key}")
        yield made


def page(world: Zone, number: int = 0, **query: Any) -> dict[str, Any]:
    """A page of a gateway."""
    listed: dict[str, Any] = get(world.nodes[number], f"/objects?{urlencode({'access_key_id': 'GWA', **query})}")
    return listed


def names(listed: dict[str, Any]) -> list[str]:
    """The names of a page, which must be of the origin unless something was in its way."""
    return [item["name"] for item in listed["items"]]


def cached(world: Zone, number: int = 0, **query: Any) -> list[str]:
    """The names of what is cached."""
    return names(page(world, number, cached="true", **query))


TOP = ["#hash", "100%25", "a b/", "double/", "q?mark&x=1", "x/", "zeile\n2", "ключ/"]


@pytest.mark.parametrize(
    ("prefix", "below"),
    [
        ("", TOP),
        ("a b/", ["a b/c d"]),
        ("double/", ["double//"]),
        ("double//", ["double//slash"]),
        ("q?", ["q?mark&x=1"]),
        ("ключ/", ["ключ/🙂"]),
        ("nothing/", []),
    ],
)
def test_a_prefix_has_its_folders_and_objects(world: Zone, prefix: str, below: list[str]) -> None:
    """Rule: names end at the next slash and come back unchanged, whatever characters they have; the indices of the nodes name the
    same as the origin, where all is cached."""
    listed = page(world, bucket="odd", prefix=prefix)
    assert (names(listed), listed["source"], listed["failure"]) == (below, "origin", "")
    for number in range(2):
        # A reader has its last byte before the object is written down.
        eventually(
            lambda number=number: cached(world, number, bucket="odd", prefix=prefix),
            lambda shown: shown == below,
            "all to be in the indices",
        )


def test_each_object_has_its_state(world: Zone) -> None:
    """Rule: an object says how much of it is cached, whether it is fresh and granted to this key, and what the next read is; at
    each gateway."""
    world.origin.put("/states/cold", b"cold")
    world.origin.put("/states/warm", b"warm")
    world.read(0, "/states/warm")
    hit = {"blocks": 1, "resident_blocks": 1, "fresh": True, "granted": True, "outcome": "HIT", "reason": None}
    cold = {"blocks": 0, "resident_blocks": 0, "fresh": False, "granted": False, "outcome": "MISS", "reason": "cold"}
    for number in range(2):
        eventually(
            lambda number=number: [item["state"] for item in page(world, number, bucket="states")["items"]],
            lambda states: states == [cold, hit],
            "the object to be kept",
        )
    other = page(world, bucket="states", access_key_id="GWB")["items"][1]["state"]
    assert (other["resident_blocks"], other["granted"], other["reason"]) == (1, False, "revalidated")


def test_a_page_costs_one_page_of_the_origin(world: Zone) -> None:
    """Rule: each page of the browser is one listing of so many names; the pages together name everything once."""
    before = world.origin.count("GET", "/many")
    shown, cursor, pages = [], "", 0
    while cursor is not None:
        listed = page(world, bucket="many", limit=5, cursor=cursor)
        shown += names(listed)
        cursor, pages = listed["next"], pages + 1
    assert shown == sorted(
        [*(f"{number:02}/" for number in range(12)), *(f"object-{number:02}" for number in range(12))]
    )
    assert world.origin.count("GET", "/many") - before == pages == 5


def test_buckets_are_listed(world: Zone) -> None:
    """Rule: without a bucket, the buckets of the key's origin are listed, page by page."""
    listed = page(world, limit=1)
    assert [(item["kind"], item["name"], item["state"]) for item in listed["items"]] == [("bucket", "many", None)]
    assert names(page(world, cursor=listed["next"]))[0] == "odd"
    assert "odd" in cached(world)


def test_an_origin_that_is_away_leaves_what_is_cached(world: Zone) -> None:
    """Rule: while the origin does not answer, the cached objects are listed and the page says why; a listing that it began
    goes on after its last name."""
    first = page(world, bucket="odd", limit=3)
    with world.origin.away():
        gone = page(world, 1, bucket="odd")
        assert (names(gone), gone["source"]) == (TOP, "cache")
        assert gone["failure"] != ""
        assert {item["state"]["outcome"] for item in gone["items"] if item["state"]} == {"HIT"}
        assert names(page(world, bucket="odd", cursor=first["next"])) == TOP[3:]
        assert "odd" in names(page(world))
    eventually(lambda: page(world, bucket="odd")["source"], lambda source: source == "origin", "the origin to be asked")


def test_a_refused_listing_leaves_what_is_cached(world: Zone) -> None:
    """Rule: if the origin refuses the listing to the key, the page says so and has the cached objects."""
    refused = page(world, bucket="no-such-bucket")
    assert (refused["items"], refused["source"]) == ([], "cache")
    assert "404" in refused["failure"]


@pytest.mark.parametrize(
    ("query", "source", "shown"),
    [
        ({}, "allow-list", ["odd"]),
        ({"bucket": "odd"}, "allow-list", ["a b/", "x/"]),
        ({"bucket": "odd", "prefix": "x/"}, "allow-list", ["x/y/"]),
        ({"bucket": "odd", "prefix": "x/y/"}, "allow-list", []),
        ({"bucket": "odd", "prefix": "a b/"}, "origin", ["a b/c d"]),
        ({"bucket": "odd", "prefix": "a b/", "cached": "true"}, "cache", ["a b/c d"]),
    ],
)
def test_an_allow_list_bounds_what_is_shown(world: Zone, query: dict[str, str], source: str, shown: list[str]) -> None:
    """Rule: a key sees the names that its allow-list covers, and otherwise only the folders that lead there."""
    listed = page(world, access_key_id="GWP", **query)
    assert (listed["source"], names(listed)) == (source, shown)


@pytest.mark.parametrize(
    "query",
    [
        "bucket=odd",
        "access_key_id=NOBODY",
        "access_key_id=GWA&prefix=x/",
        "access_key_id=GWA&bucket=odd&cursor=nonsense",
    ],
)
def test_a_wrong_question_is_refused(world: Zone, query: str) -> None:
    """Rule: the key must be valid, a prefix needs its bucket, and a cursor is one that the gateway gave."""
    assert admin(world.nodes[0], "GET", f"/objects?{query}").code == "InvalidRequest"


@pytest.mark.parametrize("role", TokenRole)
def test_only_an_operator_lists_the_store(world: Zone, role: TokenRole) -> None:
    """Rule: an operator uses the rights of an access key to list the store. A viewer sees what the caches have, which is what
    the gateway knows, and is told so; the store is not asked."""
    world.origin.put("/roles/cold", b"x")
    world.origin.put("/roles/read", b"x")
    world.read(0, "/roles/read")
    eventually(lambda: cached(world, bucket="roles"), lambda shown: shown == ["read"], "it in the index")
    token = post(world.nodes[0], "/tokens", {"name": f"as-{role.value}", "role": role.value}, 201)["token"]
    before = world.origin.count("GET", "/roles")
    query = urlencode({"access_key_id": "GWA", "bucket": "roles"})
    listed = eventually(
        lambda: admin(world.nodes[0], "GET", f"/objects?{query}", token=token),
        lambda reply: reply.status == 200,
        "the token to be known",
    ).json
    looks = role is TokenRole.VIEWER
    assert (listed["source"], names(listed)) == (("cache", ["read"]) if looks else ("origin", ["cold", "read"]))
    assert ("needs the role operator" in listed["failure"]) == looks
    assert world.origin.count("GET", "/roles") - before == (not looks)
