"""Substitutable batches: choice of candidates, replacement of slow fetches, giving up after failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.batch import PATIENCE, STALL, choose, gives_up, may_replace

CHI_SQUARE_999 = {39: 72.05}
"""Values that a chi-square variable of so many degrees of freedom exceeds once in a thousand runs (NIST handbook, 1.3.6.7.4)."""


def chi_square(counts: np.ndarray) -> float:
    """Pearson's statistic against equal chances."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def chosen(seed: int, resident: np.ndarray, fetching: np.ndarray, take: int, runs: int) -> np.ndarray:
    """Counts, by position, of being among the first ``take`` of the choice, over many permutations."""
    chance = np.random.default_rng(seed)
    counts = np.zeros(len(resident), dtype=np.int64)
    for _ in range(runs):
        choice = choose(chance.permutation(len(resident)), resident, fetching)
        counts[np.concatenate([choice.resident, choice.others])[:take]] += 1
    return counts


def test_residents_keep_the_order_of_the_request() -> None:
    """Rule: the cache decides which of a job's next items come first, but keeps the job's order among them."""
    resident = np.arange(100) % 5 == 0
    choice = choose(np.random.default_rng(1).permutation(100), resident, np.zeros(100, bool))
    assert choice.resident.tolist() == list(range(0, 100, 5))


def test_every_missing_candidate_is_as_likely_as_every_other() -> None:
    """Rule: jobs over the same data mostly fetch different items, because each fetches a random share."""
    counts = chosen(2, np.zeros(40, bool), np.zeros(40, bool), 7, 4000)
    assert chi_square(counts) < CHI_SQUARE_999[39]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60),
    st.integers(0, 2**32 - 1),
)
def test_the_choice_is_a_permutation_with_residents_then_joins_then_misses(
    flags: list[tuple[bool, bool]], seed: int
) -> None:
    """Rule: every candidate is in the choice exactly once; resident, then being fetched, then missing."""
    resident = np.array([flag for flag, _ in flags], dtype=bool)
    fetching = np.array([flag for _, flag in flags], dtype=bool)
    choice = choose(np.random.default_rng(seed).permutation(len(flags)), resident, fetching)
    assert sorted([*choice.resident, *choice.others]) == list(range(len(flags)))
    assert resident[choice.resident].all()
    assert not resident[choice.others].any()
    joins = fetching[choice.others]
    assert joins.tolist() == sorted(joins.tolist(), reverse=True)


@pytest.mark.parametrize(
    ("waiting", "needed", "silent", "more"),
    [
        (0, 5, 0.0, 5),
        (3, 5, 0.0, 2),
        (5, 5, STALL - 0.01, 0),
        (5, 5, STALL, 5),
        (10, 5, STALL * 9, 0),
        (7, 5, STALL, 3),
        (4, 0, STALL, 0),
        (0, 0, 0.0, 0),
    ],
)
def test_slow_fetches_are_doubled_once(waiting: int, needed: int, silent: float, more: int) -> None:
    """Rule: only needed items are fetched until none has arrived for a while; then each gets one replacement."""
    assert may_replace(waiting, needed, silent) == more


@pytest.mark.parametrize(
    ("failures", "needed", "ends"),
    [
        (3, 1, False),
        (4, 1, True),
        (7, 4, False),
        (8, 4, True),
        (PATIENCE - 1, 10_000, False),
        (PATIENCE, 10_000, True),
        (0, 0, False),
    ],
)
def test_a_batch_gives_up_after_some_failures_in_a_row(failures: int, needed: int, ends: bool) -> None:
    """Rule: the bound is twice the needed items, at least four, at most the patience, regardless of the batch's size."""
    assert gives_up(failures, needed) is ends
