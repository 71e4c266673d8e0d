"""Rules set by operators: order, hidden rules, number of matching objects."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from gateway.admin.configuration.rule_probe import probe_rule
from gateway.base.config import Origin, Rule
from gateway.model.errors import OriginUnavailable
from gateway.origin.client import OriginClient
from gateway.origin.listing import Listings
from gateway.policies.reads import covering
from gateway.policies.reads.covering import hidden_by
from gateway.policies.reads.rules import IMMUTABLE
from rig.origin import OriginThread
from rig.origin_auth import User
from tests.admin.admin_world import AdminWorld, settings

OF_FILE = Rule(match="data/**", freshness=10.0)


@pytest.fixture
async def world(begun: str) -> AsyncIterator[AdminWorld]:
    """A gateway whose file has a rule."""
    async with AdminWorld.opened(begun, "", settings(rules=(OF_FILE,))) as opened:
        yield opened


async def test_the_catalogs_rules_come_first(world: AdminWorld) -> None:
    """Rule: the catalog's rules precede the file's, and are in force when the change is answered."""
    before = await world.ask("GET", "/rules", 200)
    assert [(item["match"], item["source"]) for item in before["items"]] == [("data/**", "file")]
    asked = {"items": [{"match": "data/fixed/**", "freshness": "immutable"}]}
    after = await world.ask("PUT", "/rules", 200, asked, If_Match=before["etag"])
    assert [(item["match"], item["source"]) for item in after["items"]] == [
        ("data/fixed/**", "catalog"),
        ("data/**", "file"),
    ]
    assert world.services.rules.for_path("data/fixed/a").freshness == IMMUTABLE
    assert world.services.rules.for_path("data/other").freshness == 10.0
    await world.ask("PUT", "/rules", 200, {"items": []})
    assert world.services.rules.for_path("data/fixed/a").freshness == 10.0


async def test_two_people_do_not_overwrite_each_others_rules(world: AdminWorld) -> None:
    """Rule: the etag is of the whole list, also of an empty one, and never that of an earlier list."""
    read = await world.ask("GET", "/rules", 200)
    changed = await world.ask("PUT", "/rules", 200, {"items": [{"match": "a/**"}]}, If_Match=read["etag"])
    await world.ask("PUT", "/rules", 412, {"items": []}, If_Match=read["etag"])
    emptied = await world.ask("PUT", "/rules", 200, {"items": []}, If_Match=changed["etag"])
    assert len({read["etag"], changed["etag"], emptied["etag"]}) == 3


@pytest.mark.parametrize(
    "rule",
    [
        {"match": ""},
        {"match": "a/**", "freshness": "sometimes"},
        {"match": "a/**", "grant": -1},
        {"match": "a/**", "stale_if_error": 1e300},
        {"match": "a/**", "authorization": "all"},
        {"match": "a/**", "cashe": True},
        {"match": "nul\0"},
        {"freshness": "immutable"},
    ],
)
async def test_wrong_rules_are_refused(world: AdminWorld, rule: dict[str, object]) -> None:
    """Rule: an invalid rule is refused with its name and field, and no rule is changed."""
    refused = await world.ask("PUT", "/rules", 400, {"items": [{"match": "good/**"}, rule]})
    assert refused["errors"][0]["field"].startswith("items.1")
    assert len((await world.ask("GET", "/rules", 200))["items"]) == 1


async def test_a_rule_that_never_counts_is_reported(world: AdminWorld) -> None:
    """Rule: a hidden rule is reported with the place of the first rule that covers it."""
    rules = ["data/**", "data/train/*.jpg", "other/**"]
    listed = await world.ask("PUT", "/rules", 200, {"items": [{"match": match} for match in rules]})
    problems = [item["problem"] for item in listed["items"]]
    assert problems == ["", "rule 0 covers it and comes first", "", "rule 0 covers it and comes first"]


async def test_which_rule_counts_for_an_object(world: AdminWorld) -> None:
    """Rule: the first matching rule counts, of the catalog's or of the rules under trial; without a match, the defaults."""
    asked = {"bucket": "data", "key": "train/1", "reach": False}
    assert (await world.ask("POST", "/rules/check", 200, asked))["position"] == 0
    tried = {**asked, "items": [{"match": "other/**"}, {"match": "data/train/*"}]}
    assert (await world.ask("POST", "/rules/check", 200, tried))["position"] == 1
    assert (await world.ask("POST", "/rules/check", 200, {**asked, "bucket": "elsewhere"}))["position"] is None
    await world.ask("POST", "/rules/check", 400, {"bucket": "data"})
    assert (await world.ask("GET", "/audit", 200))["items"] == []


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("**", "any/*.jpg", True),
        ("a/**", "a/b/*.jpg", True),
        ("a/**", "a/b", True),
        ("a/**", "a/**", True),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "ab/c", False),
        ("a/b/**", "a/**", False),
        ("a/*.jpg", "a/x*.jpg", False),
        ("a/b**", "a/bc/*", True),
        ("a/[x]**", "a/x", True),
    ],
)
def test_when_a_glob_covers_another(wide: str, narrow: str, covered: bool) -> None:
    """Rule: coverage is reported only if it is certain."""
    assert hidden_by([wide, narrow]) == ({1: 0} if covered else {})


def test_hidden_rules_are_those_behind_what_covers_them() -> None:
    """Rule: the earliest covering rule is named; a rule does not hide earlier ones."""
    assert hidden_by(["a/b", "a/**", "a/b", "**", "c/**"]) == {2: 0, 4: 3}


def test_rules_of_other_folders_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a thousand rules are listed in the event loop, which must not match each with each; that took a second."""
    matched: list[str] = []

    def matches(_wide: str, narrow: str) -> bool:
        matched.append(narrow)
        return True

    monkeypatch.setattr(covering, "glob_matches", matches)
    folders = [f"bucket/team-{number}/{name}" for number in range(500) for name in ("*.jpg", "one.jpg")]
    assert hidden_by(folders) == {place: place - 1 for place in range(1, 1000, 2)}
    assert len(matched) == 500


async def test_what_rules_match_at_the_origin() -> None:
    """Rule: rules with objects, rules without, and rules with an unknown result are distinct."""
    thread = OriginThread([User("OK", "origin-secret")])
    with thread as origin:
        for key in ("train/1.jpg", "train/a b&c/2.jpg"):
            origin.put("data", key, b"x")
        named = Origin(endpoint=origin.endpoint, access_key_id="OK", secret_access_key="origin-secret")
        client = OriginClient((named,), (), now=time.time)
        reach = partial(probe_rule, Listings(client))
        try:
            verdicts = {
                glob: (await reach(glob, named)).verdict
                for glob in (
                    "data/**",
                    "data/train/a b&c/*",
                    "data/test/**",
                    "data/train/*.png",
                    "none/**",
                    "*/train/**",
                    "data",
                    "<b>/**",
                )
            }
            assert (await reach("<b>/**", named)).why == "'<b>' is not a valid bucket name"
            assert (await reach("data", named)).why.startswith("it has no key part")
            assert (await reach("data/train/a b&c/*", named)).example == "data/train/a b&c/2.jpg"
        finally:
            await client.close()
    assert verdicts == {
        "data/**": "matches",
        "data/train/a b&c/*": "matches",
        "data/test/**": "nothing",
        "data/train/*.png": "nothing",
        "none/**": "nothing",
        "*/train/**": "unknown",
        "data": "nothing",
        "<b>/**": "nothing",
    }


async def test_an_origin_that_is_away_leaves_it_open(world: AdminWorld) -> None:
    """Rule: an unreachable origin leaves the result open, and hidden rules are not probed."""

    class Away:
        async def list_page(self, *_: object) -> None:
            """Fail."""
            raise OriginUnavailable("refused")

    world.app.state.listings = Away()
    checked = await world.ask("POST", "/rules/check", 200, {"items": [{"match": "data/x/**"}, {"match": "data/x/y"}]})
    assert [item["verdict"] for item in checked["items"]] == ["unknown", "hidden", "unknown"]
    assert "cannot be reached" in checked["items"][0]["why"]
