"""Troubles of a node: bounds, severities, remedies."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from gateway.model.counters import Counters
from gateway.policies.health.breaker import BreakerState
from gateway.policies.health.troubles import COUNTED, KINDS, NodeFacts, Trouble, disk_troubles, troubles, worst_first

FINE = {"capacity": 1000}


def kinds(**facts: Any) -> list[str]:
    """The kinds of troubles that are found."""
    return [trouble.kind for trouble in troubles(NodeFacts(**{**FINE, **facts}))]


def test_a_node_that_is_well_has_no_troubles() -> None:
    """Rule: a working node has no troubles, however little or much it does."""
    assert kinds() == []
    busy = Counters(requests=1e9, origin_requests=1e6, origin_failures=1000, evicted_bytes=1e12)
    assert kinds(minute=Counters(origin_requests=1000, origin_failures=4), since_start=busy) == []


@pytest.mark.parametrize(
    ("facts", "kind", "severity"),
    [
        ({"minute": Counters(origin_requests=10, origin_failures=5)}, "origin", "error"),
        ({"minute": Counters(origin_requests=100, origin_failures=5)}, "origin", "warning"),
        ({"since_start": Counters(corrupt_blobs=1)}, "corrupt", "warning"),
        ({"turnover": Counters(evicted_bytes=200)}, "churn", "warning"),
        ({"skew": -6.0}, "clock", "warning"),
        ({"skew": 700.0}, "clock", "error"),
    ],
)
def test_each_trouble_has_a_severity_and_a_remedy(facts: dict[str, Any], kind: str, severity: str) -> None:
    """Rule: each trouble is found alone, with its severity and remedy."""
    [found] = troubles(NodeFacts(**{**FINE, **facts}))
    assert (found.kind, found.severity) == (kind, severity)
    assert found.what.endswith(".")
    assert found.remedy.endswith(".")


@pytest.mark.parametrize(
    "facts",
    [
        {"minute": Counters(origin_requests=4, origin_failures=4)},
        {"minute": Counters(origin_requests=1000, origin_failures=49)},
        {"turnover": Counters(evicted_bytes=199)},
        {"skew": 4.9},
    ],
)
def test_what_is_below_the_bound_is_no_trouble(facts: dict[str, Any]) -> None:
    """Rule: few failures, some evictions and clocks that nearly agree are everyday."""
    assert kinds(**facts) == []


@pytest.mark.parametrize(
    ("given", "kind", "severity"),
    [
        ((BreakerState.DOWN, "io", "too little free"), "disk-down", "error"),
        ((BreakerState.UNSTABLE, "", ""), "disk-unstable", "warning"),
        ((BreakerState.NORMAL, "", "too little free"), "disk-space", "warning"),
    ],
)
def test_of_a_disk_the_worst_is_said(given: tuple[BreakerState, str, str], kind: str, severity: str) -> None:
    """Rule: only the worst problem of a disk is reported, and none while it works and has room."""
    [found] = disk_troubles(*given)
    assert (found.kind, found.severity) == (kind, severity)
    assert disk_troubles(BreakerState.NORMAL, "", "") == []


def test_errors_come_first() -> None:
    """Rule: errors are listed before warnings."""
    found = [Trouble.of("clock", "a"), Trouble.of("gone", "b"), Trouble.of("redis", "c")]
    assert [each.kind for each in worst_first(found)] == ["gone", "clock", "redis"]


def test_the_list_names_every_kind_with_a_remedy() -> None:
    """Rule: a kind that the list does not have cannot be reported; each has a remedy in whole sentences."""
    with pytest.raises(KeyError):
        Trouble.of("unheard-of", "what")
    assert [name for name, kind in KINDS.items() if not kind.remedy.endswith(".")] == []
    assert set(KINDS) >= COUNTED
    assert [name for name, kind in KINDS.items() if kind.unready] == ["overload-whole", "catalog-unread"]


def test_a_trouble_survives_its_way_through_redis() -> None:
    """Rule: a trouble survives its text form; other texts are refused."""
    trouble = Trouble("churn", "warning", "What.", "Remedy.")
    assert Trouble.from_json(asdict(trouble)) == trouble
    with pytest.raises(KeyError):
        Trouble.from_json({"kind": "churn"})
