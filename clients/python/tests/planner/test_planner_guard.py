"""The guards: the used part of the share follows the curve of the loss, and ends when accuracy is lost."""

import numpy as np
import pytest

from larder.planner.guard import AccuracyCurve, LossCurve


def level_after(*means):
    """The level after epochs with these mean losses."""
    curve = LossCurve()
    for mean in means:
        curve.add(np.array([mean]), np.ones(1))
        curve.close()
    return curve.level()


@pytest.mark.parametrize(
    ("means", "level"),
    [
        ((), 0.0),  # nothing is known
        ((2.0,), 1.0),  # scores are known
        ((2.0, 1.5), 1.0),
        ((2.0, 1.98), 0.5),  # a fall of 1 %
        ((2.0, 2.0), 0.0),  # it stalls
        ((2.0, 2.1), 0.0),  # it rises
        ((1.0, 0.5, 0.6), 0.0),  # steeply: by a fifth within one epoch
        ((1.0, 0.5, 0.54), 1.0),  # not steeply, and it fell before
        ((1.0, 0.5, 0.5, 0.5, 0.5), 0.0),  # the fall is no longer in the window
        ((1.0, 0.99, 0.98, 0.97), 0.5),
        ((-1.0, -1.1), 1.0),  # log-likelihoods are losses, too
        ((0.0, 0.0), 0.0),
    ],
)
def test_the_level_follows_the_curve(means, level):
    """Rule: 1 while the loss falls by 2 % per epoch over three epochs, less below, 0 when it stalls or rises steeply."""
    assert level_after(*means) == pytest.approx(level, abs=0.01)


def test_losses_are_weighted():
    """Rule: the mean is that of Eq. 1, so hard items that come more often do not raise it."""
    curve = LossCurve()
    curve.add(np.array([1.0, 4.0, 4.0]), np.array([2.0, 0.5, 0.5]))
    curve.close()
    assert curve.means == [pytest.approx(2.0)]


def test_an_epoch_without_losses():
    """Rule: after an epoch without losses the level is 0; the next losses continue the curve."""
    curve = LossCurve([2.0, 1.5])
    curve.close()
    assert (curve.level(), curve.means) == (0.0, [2.0, 1.5])
    curve.add(np.array([1.0]), np.ones(1))
    curve.close()
    assert curve.level() == 1.0


@pytest.mark.parametrize(
    ("accuracies", "lost"),
    [
        ((), False),  # nothing is known
        ((70.0,), False),
        ((70.0, 69.4), False),  # less than 1 % of the best
        ((70.0, 69.2), True),
        ((0.70, 0.692), True),  # in any unit
        ((70.0, 60.0, 69.5), False),  # it is back
        ((60.0, 70.0, 65.0, 66.0), True),  # the best of all epochs counts
        ((0.0, 0.0), False),
    ],
)
def test_lost_accuracy(accuracies, lost):
    """Rule: accuracy is lost while the last one is more than 1 % below the best."""
    curve = AccuracyCurve()
    for accuracy in accuracies:
        curve.report(accuracy)
        curve.close()
    assert curve.lost is lost


@pytest.mark.parametrize("accuracy", [-0.1, float("nan"), float("inf")])
def test_what_is_no_accuracy(accuracy):
    """Rule: a negative accuracy, as of a loss, and one that is not finite are refused."""
    with pytest.raises(ValueError, match="accuracy must be a number from 0 on"):
        AccuracyCurve().report(accuracy)
