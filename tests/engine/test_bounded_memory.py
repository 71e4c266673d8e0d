"""A worker's memory for names that clients choose is bounded, and only useful names are remembered."""

from __future__ import annotations

from gateway.policies.reads.rules import Caching, Rules


def test_rules_remember_a_bounded_number_of_paths() -> None:
    """Rule: however many objects are read, the memo of their rules stays small."""
    rules = Rules([Caching("b/**", freshness=1), Caching("c/**")])
    for number in range(3 * Rules._MEMO):
        rules.for_path(f"b/{number}")
    assert len(rules._memo) <= Rules._MEMO <= 8192


def test_one_rule_for_all_remembers_nothing() -> None:
    """Rule: where one rule holds for every object, no path is remembered."""
    rules = Rules([Caching("**", freshness=1)])
    assert rules.for_path("b/k").freshness == 1
    assert rules._memo == {}
