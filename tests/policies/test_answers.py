"""Percentiles of seconds in buckets, over one node and several."""

from __future__ import annotations

from math import inf

import pytest

from gateway.policies.health.answers import TRAFFIC, Answers, percentile, together


@pytest.mark.parametrize(
    ("share", "seconds"),
    [
        (0.5, 0.1),  # 50 of 100 requests took up to 0.1 s
        (0.7, 0.3),  # 20 of the 40 between 0.1 s and 0.5 s
        (0.9, 0.5),
        (0.99, 0.5),  # beyond the last bound only that is known
    ],
)
def test_a_percentile_lies_within_its_bucket(share: float, seconds: float) -> None:
    """Rule: requests of a bucket are spread evenly over it."""
    assert percentile({0.1: 50, 0.5: 90, inf: 100}, share) == pytest.approx(seconds)


@pytest.mark.parametrize("buckets", [{}, {0.1: 0, inf: 0}])
def test_without_requests_there_is_no_percentile(buckets: dict[float, float]) -> None:
    """Rule: without requests a percentile is None, not zero seconds."""
    assert percentile(buckets, 0.5) is None


def test_percentiles_are_of_all_nodes_requests() -> None:
    """Rule: buckets are added, so one busy slow node outweighs an idle fast one."""
    fast, slow = {0.1: 1, 1.0: 1, inf: 1}, {0.1: 0, 1.0: 99, inf: 99}
    assert percentile(together([fast, slow]), 0.5) == pytest.approx(0.1 + 0.9 * 49 / 99)


def test_answers_are_told_and_added() -> None:
    """Rule: a node's counts of a minute are differences, survive JSON, and add to those of others."""
    before = Answers({"2xx": 5}, {"HIT": {0.1: 5, inf: 5}})
    after = Answers({"2xx": 8, "5xx": 1}, {"HIT": {0.1: 7, inf: 8}, "MISS": {0.1: 0, inf: 1}})
    gained = Answers.from_json(after.since(before).to_json())
    assert gained == Answers({"2xx": 3, "5xx": 1}, {"HIT": {0.1: 2, inf: 3}, "MISS": {0.1: 0, inf: 1}})
    both = gained.plus(Answers({"4xx": 2}, {"HIT": {0.1: 1, inf: 1}}))
    assert both == Answers({"2xx": 3, "5xx": 1, "4xx": 2}, {"HIT": {0.1: 3, inf: 4}, "MISS": {0.1: 0, inf: 1}})


def test_traffic_is_told_and_added() -> None:
    """Rule: only buckets with requests in the minute are listed, and rates of several nodes are added."""
    before = Answers(traffic={"a/t": dict.fromkeys(TRAFFIC, 1.0), "idle/t": dict.fromkeys(TRAFFIC, 9.0)})
    after = Answers(traffic={"a/t": dict.fromkeys(TRAFFIC, 5.0), "idle/t": dict.fromkeys(TRAFFIC, 9.0)})
    gained = Answers.from_json(after.since(before).to_json())
    assert gained == Answers(traffic={"a/t": dict.fromkeys(TRAFFIC, 4.0)})
    both = gained.times(0.5).plus(Answers(traffic={"a/t": dict.fromkeys(TRAFFIC, 1.0)}))
    assert both.traffic == {"a/t": dict.fromkeys(TRAFFIC, 3.0)}


def test_seconds_of_origins_are_told_and_added() -> None:
    """Rule: seconds of origins are summed and encoded like those of requests, by the origin's name."""
    one, two = Answers(origins={"default": {0.1: 1, inf: 3}}), Answers(origins={"archive": {0.1: 0, inf: 2}})
    assert Answers.from_json(one.plus(two).to_json()) == Answers(origins={**one.origins, **two.origins})


@pytest.mark.parametrize(
    "told", [None, {}, {"statuses": [], "seconds": {}}, {"statuses": {}, "seconds": {"HIT": {"x": 1}}}]
)
def test_an_unknown_form_is_no_answers(told: object) -> None:
    """Rule: the report of a node of another version does not break the overview."""
    assert Answers.from_json(told) == Answers()
