"""Scores by rank: Eq. 6 of SHADE, by hand; and how they age."""

import numpy as np
import pytest

from larder.planner.scores import BIAS, FEWEST_RANKS, HALF_LIFE, NEVER, WEIGHT_UNIT, ItemScores, rank_scores


def scores(*counts):
    """The scores of samples with so many smaller losses."""
    return np.log(np.array(counts) + BIAS).astype(np.float16)


@pytest.mark.parametrize(
    ("losses", "counts"),
    [
        ([0.3, 0.5, 0.4], (0, 2, 1)),  # the paper's two mini-batches: the second of each is the most important
        ([0.6, 1.2, 0.8], (0, 2, 1)),
        ([1.0, 1.0, 1.0, 1.0], (0, 0, 0, 0)),
        ([2.0, 1.0, 2.0, 1.0], (2, 0, 2, 0)),
        ([-3.0, -1.0], (0, 1)),
        ([0.0, 1e-300], (0, 1)),
    ],
)
def test_a_score_is_the_log_of_the_rank(losses, counts):
    """Rule: log of the number of smaller losses in the mini-batch plus b0 (Eq. 6); equal losses share the lower rank."""
    assert np.array_equal(rank_scores(np.array(losses)), scores(*counts))


def test_ranks_of_a_smaller_batch_are_stretched():
    """Rule: the largest loss of a short last mini-batch scores as that of a full one, and so does the smallest."""
    assert np.array_equal(rank_scores(np.array([5.0, 1.0, 3.0]), batch=9), scores(8, 0, 4))


def test_all_scores_are_positive():
    """Rule: q of Eq. 1 is positive for every positive p, so every score is positive."""
    assert rank_scores(np.zeros(256)).min() > 2


@pytest.mark.parametrize("count", [0, 1])
def test_one_sample_has_no_rank(count):
    """Rule: ranks need two losses."""
    with pytest.raises(ValueError, match=f"at least two losses, not {count}"):
        rank_scores(np.zeros(count))


def test_the_latest_score_counts():
    """Rule: a score replaces the one before, with its epoch; others stay."""
    items = ItemScores(4)
    items.set(np.array([0, 1]), np.array([2.5, 3.0], np.float16), 0)
    items.set(np.array([1, 2]), np.array([4.0, 3.5], np.float16), 1)
    assert np.array_equal(items.values, np.array([2.5, 4.0, 3.5, np.nan], np.float16), equal_nan=True)
    assert items.epochs.tolist() == [0, 1, 1, NEVER]
    ids, values = items.of_epoch(1)
    assert (ids.tolist(), values.tolist()) == ([1, 2], [4.0, 3.5])
    assert items.ages(3).tolist() == [3, 2, 2]


def test_weights_of_fresh_scores_are_the_scores():
    """Rule: after the epoch that scored them, items are drawn by their scores."""
    items = ItemScores(3)
    values = rank_scores(np.array([3.0, 1.0, 2.0]))
    items.set(np.arange(3), values, 6)
    assert items.weights(7).tolist() == (values.astype(np.float64) * WEIGHT_UNIT).tolist()


def test_scores_move_to_the_mean_as_they_age():
    """Rule: the distance to the mean halves every ``HALF_LIFE`` epochs, up or down, and finally reaches 0."""
    items = ItemScores(2)
    items.set(np.arange(2), np.array([2.5, 5.5], np.float16), 0)
    mean = 4 * WEIGHT_UNIT
    assert items.weights(1).tolist() == [mean - 1.5 * WEIGHT_UNIT, mean + 1.5 * WEIGHT_UNIT]
    assert items.weights(1 + HALF_LIFE).tolist() == [mean - 0.75 * WEIGHT_UNIT, mean + 0.75 * WEIGHT_UNIT]
    assert items.weights(10_000).tolist() == [mean, mean]


def test_unknown_items_have_the_mean():
    """Rule: an item that was never scored is neither preferred nor avoided; without any score all weigh the same."""
    items = ItemScores(3)
    assert len(set(items.weights(0).tolist())) == 1
    items.set(np.array([0, 1]), np.array([3.0, 5.0], np.float16), 0)
    assert items.weights(1)[2] == 4 * WEIGHT_UNIT


def ranked(items, epoch, losses):
    """Score a mini-batch of all items."""
    items.set(np.arange(len(losses)), rank_scores(np.array(losses, float)), epoch)


def test_an_item_in_the_top_fifth_twice_in_a_row_is_doubted():
    """Rule: one epoch at the top is no doubt, two are, and the next lower rank ends it."""
    items = ItemScores(10)
    ranked(items, 0, [9, 8, *range(8)])
    assert not items.doubted(10).any()
    ranked(items, 1, [9, *range(8), 8])
    assert np.flatnonzero(items.doubted(10)).tolist() == [0]
    ranked(items, 2, [0, *range(1, 10)])
    assert np.flatnonzero(items.doubted(10)).tolist() == [9]


def test_scores_of_one_epoch_do_not_raise_doubt():
    """Rule: an item that comes again and again in one epoch counts once; epochs without it are not between."""
    items = ItemScores(10)
    for _ in range(3):
        ranked(items, 4, range(10))
    assert not items.doubted(10).any()
    items.set(np.array([9]), rank_scores(np.arange(10.0))[9:], 7)
    assert np.flatnonzero(items.doubted(10)).tolist() == [9]


def test_a_doubted_item_counts_as_the_mean():
    """Rule: it is drawn as often as an item without a score, and kept in the cache by the same score."""
    items = ItemScores(11)
    for epoch in range(2):
        ranked(items, epoch, range(10))
    weights, believed = items.weights(2, 10), items.believed(10)
    assert weights[8] == weights[9] == weights[10]
    assert believed[8] == believed[9] == np.float16(items.values[:10].mean(dtype=float))
    assert believed[:8].tolist() == items.values[:8].tolist()
    assert np.isnan(believed[10])


def test_small_batches_raise_no_doubt():
    """Rule: of a few samples the top ones are too many to be doubted."""
    items = ItemScores(FEWEST_RANKS - 1)
    for epoch in range(2):
        ranked(items, epoch, range(FEWEST_RANKS - 1))
    assert not items.doubted(FEWEST_RANKS - 1).any()
