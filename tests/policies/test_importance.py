"""Importance in hand-worked cases: parts, combination of jobs, admission, loading ahead, ageing of scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.importance import (
    BINS,
    DRAW,
    JobWeight,
    PartVerdict,
    PoolLevel,
    Received,
    ScoreStep,
    ahead,
    combined,
    deciles,
    due,
    freshness,
    may_enter,
    needed,
    steps_of,
    verdict,
)

NAN = float("nan")
FULL = PoolLevel(100, 100, 2.0)


def scores(*values: float) -> np.ndarray:
    """Scores by item."""
    return np.array(values, dtype=np.float16)


def sizes(count: int, each: int = 10) -> np.ndarray:
    """Lengths of items."""
    return np.full(count, each, dtype=np.uint64)


@pytest.mark.parametrize(
    ("last", "sequence", "base", "whole", "found"),
    [
        (Received(), 1, 0, False, PartVerdict.APPLY),
        (Received(3, 9), 4, 3, False, PartVerdict.APPLY),
        (Received(3, 7), 3, 2, False, PartVerdict.REPEATED),
        (Received(3, 9), 3, 2, False, PartVerdict.UNKNOWN_BASE),
        (Received(3, 9), 5, 4, False, PartVerdict.UNKNOWN_BASE),
        (Received(3, 9), 3, 3, False, PartVerdict.UNKNOWN_BASE),
        (Received(), 5, 4, False, PartVerdict.UNKNOWN_BASE),
        (Received(3, 9), 1, 0, False, PartVerdict.UNKNOWN_BASE),
        (Received(3, 9), 1, 0, True, PartVerdict.APPLY),
        (Received(3, 9), 3, 0, True, PartVerdict.APPLY),
        (Received(3, 7), 3, 0, True, PartVerdict.REPEATED),
    ],
)
def test_what_becomes_of_a_part(last: Received, sequence: int, base: int, whole: bool, found: PartVerdict) -> None:
    """Rule: a part adds to the last one or is whole; the same bytes again change nothing; any other is refused."""
    assert verdict(last, sequence, base, 7, whole=whole) is found


def test_scores_of_one_job_are_its_own() -> None:
    """Rule: with one job nothing is scaled, so its scores are the ranks."""
    assert combined([(scores(1.5, NAN, 3), 1.0)], 3).tolist() == pytest.approx([1.5, NAN, 3], nan_ok=True)


def test_jobs_are_added_by_their_factors() -> None:
    """Rule: an item scored by one job counts 0 with the other; one scored by neither is unknown."""
    both = combined([(scores(1, 2, NAN, NAN), 0.5), (scores(NAN, 4, 8, NAN), 2.0)], 4)
    assert both.tolist() == pytest.approx([0.5, 9.0, 16.0, NAN], nan_ok=True)


def test_draws_left_decide_before_scores() -> None:
    """Rule: an item with more draws left is needed more, whatever the scores; among equals scores decide. One that the list does
    not draw any more has its score alone, and one that was neither drawn nor scored no need."""
    draws = np.uint8([0, 1, 1, 2, 0, 1])
    needs = needed([(scores(5.5, 2.5, 3, 2.25, NAN, NAN), draws, JobWeight(1.0, 1.0))], 6)
    assert needs.tolist() == pytest.approx(
        [5.5 / DRAW, 1 + 2.5 / DRAW, 1 + 3 / DRAW, 2 + 2.25 / DRAW, NAN, 1], nan_ok=True
    )


def test_needs_of_jobs_are_added_by_their_reads() -> None:
    """Rule: a job's draws count by its share of all reads, its scores relative to their mean."""
    fast = (scores(2, 2, NAN), np.uint8([2, 0, 0]), JobWeight(0.75, 0.375))
    slow = (scores(NAN, 4, NAN), np.uint8([0, 2, 0]), JobWeight(0.25, 0.0625))
    assert needed([fast, slow], 3).tolist() == pytest.approx([1.5 + 0.75 / DRAW, 0.5 + 1 / DRAW, NAN], nan_ok=True)


@pytest.mark.parametrize(
    ("need", "level", "enters"),
    [
        (None, PoolLevel(90, 100, 2.0), True),
        (None, FULL, False),
        (1.9, FULL, False),
        (2.0, FULL, True),
        (0.0, PoolLevel(100, 100, -5.0), True),
        (None, PoolLevel(100, 100, -5.0), False),
        (9.0, PoolLevel(0, 0, None), False),
    ],
)
def test_what_may_enter(need: float | None, level: PoolLevel, enters: bool) -> None:
    """Rule (Algorithm 1): with room every item enters; in a full pool only one needed at least as much as the least one."""
    assert may_enter(need, 10, level) is enters


def test_scores_lose_weight_when_a_job_is_late() -> None:
    """Rule: scores have full weight up to 1.5 times the usual interval, and none from 3 times on; the interval is at least 20
    minutes, and 4 hours for the first epoch."""
    assert [freshness(age, 2000) for age in (0, 3000, 4500, 6000, 9000)] == [1, 1, 0.5, 0, 0]
    assert [freshness(age, 1) for age in (1800, 2700, 3600)] == [1, 0.5, 0]
    assert [freshness(age * 3600, 0) for age in (6, 9, 12)] == [1, 0.5, 0]


def test_steps_add_up_to_what_is_scored() -> None:
    """Rule: steps go down in score and leave out unscored items; equal scores are one step."""
    found = steps_of(np.float32([3, 1, NAN, 3, 2]), np.uint64([10, 20, 1000, 30, 40]))
    assert found == (ScoreStep(3.0, 40), ScoreStep(2.0, 40), ScoreStep(1.0, 20))
    assert steps_of(np.float32([NAN]), sizes(1)) == ()


@given(st.lists(st.floats(0, 100, width=16) | st.just(NAN), max_size=400))
def test_steps_are_few_and_exact(values: list[float]) -> None:
    """Rule: however many scores there are, steps are bounded, descend, hold all scored bytes, and end at scores that exist."""
    found = steps_of(np.float32(values), sizes(len(values)))
    known = [value for value in values if value == value]
    assert sum(step.bytes for step in found) == 10 * len(known)
    assert len(found) <= BINS
    assert [step.score for step in found] == sorted({step.score for step in found}, reverse=True)
    for step in found:
        upto = sum(one.bytes for one in found if one.score >= step.score)
        assert upto == 10 * sum(np.float32(value) >= np.float32(step.score) for value in known)


def test_what_is_loaded_ahead() -> None:
    """Rule: the missing items that the epoch draws, the most needed first, as many as fit beside the drawn residents. Residents
    that it does not draw make room."""
    draws, needs = np.uint8([1, 1, 0, 3, 1]), np.float32([1.1, 1.5, 0.9, 3.7, NAN])
    empty, held = np.zeros(5, bool), np.array([False, True, True, False, False])
    assert ahead(needs, draws, sizes(5), empty, 30).tolist() == [3, 1, 0]
    assert ahead(needs, draws, sizes(5), empty, 20).tolist() == [3, 1]
    assert ahead(needs, draws, sizes(5), held, 20).tolist() == [3]
    assert ahead(needs, draws, sizes(5), held, 5).tolist() == []


def test_loads_ahead_begin_at_a_constant_rate() -> None:
    """Rule: the first load begins with the epoch, the last after a quarter of it, the others evenly between."""
    assert [due(10, passed / 40) for passed in range(12)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert (due(0, 0.1), due(3, 0.0), due(3, 9.0)) == (0, 1, 3)


def test_deciles_divide_what_is_scored() -> None:
    """Rule: nine bounds divide the scored items into tenths; fewer than ten items have no bounds."""
    bounds = deciles(np.float32([*range(100), NAN]))
    assert np.bincount(np.searchsorted(bounds, np.arange(100, dtype=np.float32))).tolist() == [10] * 10
    assert len(deciles(np.float32(range(9)))) == 0
