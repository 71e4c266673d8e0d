"""Missed reads by folder and reason, over the last minutes."""

from __future__ import annotations

import pytest

from gateway.model.outcomes import Reason
from gateway.policies.health.misses import WINDOW, MissedPrefix, MissTally, added, folder_of


@pytest.mark.parametrize(
    ("key", "folder"),
    [
        ("readme", ""),
        ("train/1.jpg", "train/"),
        ("imagenet/train/n01/1.jpg", "imagenet/train/"),
        ("/rooted/x/y", "/rooted/"),
        ("a//b/c", "a//"),
    ],
)
def test_a_folder_is_at_most_two_deep(key: str, folder: str) -> None:
    """Rule: classes below the second folder count together."""
    assert folder_of(key) == folder


def test_misses_stay_for_one_to_two_windows() -> None:
    """Rule: a report covers the last whole window and the current one, and has their seconds."""
    tally = MissTally(0.0)
    tally.add("b", "x/1", Reason.COLD, 10)
    tally.add("b", "x/2", Reason.COLD, 20)
    tally.add("b", "x/2", Reason.RULE, 1)
    first = [MissedPrefix("b", "x/", "cold", 2, 30), MissedPrefix("b", "x/", "rule", 1, 1)]
    assert tally.report(WINDOW) == (WINDOW, first)
    tally.add("b", "x/3", Reason.COLD, 5)
    assert tally.report(WINDOW + 10) == (WINDOW + 10, [MissedPrefix("b", "x/", "cold", 3, 35), first[1]])
    assert tally.report(2 * WINDOW)[0] == 2 * WINDOW
    assert tally.report(2 * WINDOW + 1) == (WINDOW + 1, [MissedPrefix("b", "x/", "cold", 1, 5)])


def test_requests_that_no_cache_could_answer_are_no_misses() -> None:
    """Rule: a listing or an invalid request says nothing about the cache."""
    tally = MissTally(0.0)
    for reason in (Reason.NOT_A_READ, Reason.SUBRESOURCE, Reason.INVALID):
        tally.add("b", "x/1", reason, 0)
    assert tally.report(1.0).rows == []


def test_reports_of_several_workers_are_added() -> None:
    """Rule: one row for each folder and reason, the most frequent first."""
    one, two = MissedPrefix("b", "x/", "cold", 2, 30), MissedPrefix("b", "y/", "cold", 3, 1)
    assert added([one, two, one]) == [MissedPrefix("b", "x/", "cold", 4, 60), two]
