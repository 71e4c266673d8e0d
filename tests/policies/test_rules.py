"""Matching of rules to objects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model.keys import glob_matches
from gateway.policies.reads.rules import Caching, Rules
from tests.effort import examples


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("b/train/**", "b/train/a", True),
        ("b/train/**", "b/train/a/b/c", True),
        ("b/train/**", "b/trainer/a", False),
        ("b/*", "b/a", True),
        ("b/*", "b/a/c", False),
        ("*/x", "b/x", True),
        ("b/**/z", "b/1/2/z", True),
        ("b/[ab].png", "b/a.png", True),
        ("b/[ab].png", "b/c.png", False),
        ("b/a.b", "b/axb", False),
        ("b/?.png", "b/ä.png", True),
        ("**", "any/thing at\nall", True),
    ],
)
def test_globs_read_like_a_shell(pattern: str, path: str, matches: bool) -> None:
    """One star stays inside a path segment, two cross them, and nothing else is special but ? and [...]."""
    assert glob_matches(pattern, path) is matches


@pytest.mark.parametrize(
    ("pattern", "inside", "across"),
    [
        ("b/?c", "b/ac", "b//c"),
        ("b/x?y/z", "b/x.y/z", "b/x/y/z"),
        ("b/x[!a]y", "b/xby", "b/x/y"),
        ("b/x[^a]y", "b/x^y", "b/x/y"),
        ("b/x[+-9]y", "b/x5y", "b/x/y"),
        ("b/x[/a]y", "b/xay", "b/x/y"),
        ("b/x[]/a]y", "b/x]y", "b/x/y"),
        ("b/x[!]a]y", "b/xby", "b/x/y"),
        ("**/x?y", "b/c/xay", "b/c/x/y"),
        ("b/**x[!a]y", "b/c/xby", "b/c/x/y"),
        ("bucke?/**", "bucket/k", "bucke/t/k"),
        ("tenant[!z]/**", "tenanta/k", "tenant//k"),
    ],
)
def test_only_two_stars_cross_a_slash(pattern: str, inside: str, across: str) -> None:
    """Rule: no question mark and no class, negated or a range, matches a slash: an allow-list would cover other folders."""
    assert glob_matches(pattern, inside)
    assert not glob_matches(pattern, across)


def test_a_bracket_that_begins_no_class_is_a_bracket() -> None:
    """Rule: keys may have brackets, as in shells."""
    assert glob_matches("b/a[1", "b/a[1")
    assert glob_matches("b/[", "b/[")
    assert not glob_matches("b/a[1", "b/a1")


def test_the_first_matching_rule_counts() -> None:
    """Order in the file decides, not length."""
    rules = Rules([Caching("b/**", freshness=1), Caching("b/train/**", freshness=2)])
    assert rules.for_path("b/train/a").freshness == 1


def test_defaults_hold_where_no_rule_matches() -> None:
    """Ten minutes of freshness and grant, per object, cached."""
    rule = Rules([Caching("other/**", cache=False)]).for_path("b/k")
    assert (rule.freshness, rule.grant, rule.cache, rule.by_prefix) == (600.0, 600.0, True, False)


def test_the_memo_does_not_grow_without_bound() -> None:
    """A scan over many keys leaves a bounded memo behind."""
    rules = Rules()
    for number in range(Rules._MEMO + 10):
        rules.for_path(f"b/{number}")
    assert len(rules._memo) <= Rules._MEMO


def _matches(pattern: str, path: str) -> bool:
    """A reference matcher for globs of letters, "/", "*" and "**" that tries every split."""
    if not pattern:
        return not path
    if pattern.startswith("**"):
        return any(_matches(pattern[2:], path[start:]) for start in range(len(path) + 1))
    if pattern[0] == "*":
        end = path.find("/")
        within = len(path) if end < 0 else end
        return any(_matches(pattern[1:], path[start:]) for start in range(within + 1))
    return path[:1] == pattern[0] and _matches(pattern[1:], path[1:])


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(["a", "b", "/", "*", "**", "**/", "a*"]), min_size=1, max_size=7).map("".join),
    st.text("ab/", max_size=8),
)
def test_a_glob_means_what_it_says(pattern: str, path: str) -> None:
    """Rule: "*" is anything within a segment, "**" anything at all, however many of them there are."""
    assert glob_matches(pattern, path) is _matches(pattern.replace("***", "**"), path)


def test_no_key_makes_a_glob_think_for_long() -> None:
    """Rule: a caller chooses the key; tried in every way, this one would take longer than there is time."""
    assert not glob_matches("bucket/" + "**a" * 60 + "z", "bucket/" + "a" * 1000)
    assert not glob_matches("bucket/**/x/**/x/**/x/**/x/**.jpg", "bucket/" + "x/" * 500)
