"""The owner's word: what Cache-Control of an object leaves of its rule."""

from __future__ import annotations

import pytest

from gateway.policies.reads.owner import obeyed
from gateway.policies.reads.rules import IMMUTABLE, Caching

RULE = Caching(freshness=600, stale_if_error=3600)


def times(*lines: str, rule: Caching = RULE) -> tuple[float, float]:
    """Freshness and time of stale bytes of an object with these Cache-Control lines."""
    caching = obeyed(rule, [("Content-Type", "text/plain"), *(("cache-CONTROL", line) for line in lines)])
    return caching.freshness, caching.stale_if_error


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], (600, 3600)),
        (["public"], (600, 3600)),
        (["no-cache"], (0, 0)),
        (["No-Cache"], (0, 0)),
        (['no-cache="set-cookie"'], (0, 0)),
        (["max-age=5"], (5, 3600)),
        (['max-age="5"'], (5, 3600)),
        (["max-age=3600"], (600, 3600)),
        (["s-maxage=5, max-age=600"], (5, 0)),
        (["s-maxage=500, max-age=5"], (500, 0)),
        (["public", "MAX-AGE=7"], (7, 3600)),
        (["max-age=500, max-age=5"], (5, 3600)),
        (["max-age=abc"], (0, 3600)),
        (["max-age"], (0, 3600)),
        (["max-age=-1"], (0, 3600)),
        (["max-age=1.5"], (0, 3600)),
        (["max-age=" + "9" * 5000], (600, 3600)),
        (["max-age=0, must-revalidate"], (0, 0)),
        (["must-revalidate"], (600, 0)),
        (["proxy-revalidate"], (600, 0)),
        (["stale-if-error=60"], (600, 60)),
        (["stale-if-error=86400"], (600, 3600)),
        (["stale-if-error=60, must-revalidate"], (600, 0)),
        (["immutable, max-age=31536000"], (600, 3600)),
        (["max-age=5, immutable"], (5, 3600)),
        (['ext="a, no-cache", max-age=9'], (9, 3600)),
        (['ext="a, no-cache'], (0, 0)),
        ([",,; =,"], (600, 3600)),
    ],
)
def test_what_the_owner_says_shortens_the_rule(lines: list[str], expected: tuple[float, float]) -> None:
    """Rule: Cache-Control shortens freshness and the time of stale bytes, and never lengthens them (RFC 9111, RFC 5861)."""
    assert times(*lines) == expected


def test_an_immutable_rule_overrides_the_owner() -> None:
    """Rule: an operator who says immutable vouches for the objects, whatever they say of themselves."""
    assert times("no-cache, max-age=0", rule=Caching(freshness=IMMUTABLE)) == (IMMUTABLE, 3600)


def test_grants_are_the_rules_alone() -> None:
    """Rule: Cache-Control is about bytes; how long a reader is trusted is not the owner's to say."""
    assert obeyed(RULE, [("Cache-Control", "max-age=1")]).grant == RULE.grant
