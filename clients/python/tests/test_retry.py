"""The pauses between attempts."""

import random

import pytest

import larder


def test_one_pause_less_than_attempts():
    """There is no pause before the first attempt."""
    assert len(list(larder.Retry(attempts=4).pauses(random.Random(1)))) == 3
    assert list(larder.Retry(attempts=1).pauses(random.Random(1))) == []


def test_pauses_stay_under_bounds_that_double_up_to_the_longest():
    """Pause n is drawn between 0 and min(longest, base x 2^n), and uses that range."""
    drawn = [list(larder.Retry(attempts=5, base=1, longest=5).pauses(random.Random(seed))) for seed in range(500)]
    largest = [max(column) for column in zip(*drawn, strict=True)]
    smallest = [min(column) for column in zip(*drawn, strict=True)]
    for bound, high, low in zip([1, 2, 4, 5], largest, smallest, strict=True):
        assert 0.9 * bound < high <= bound
        assert 0 <= low < 0.1 * bound


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base": -1}, {"longest": -0.1}])
def test_impossible_values_are_refused(wrong):
    """No attempt at all and negative times are mistakes of the caller."""
    with pytest.raises(ValueError, match="at least"):
        larder.Retry(**wrong)
