"""The loss guard: the used part of the share follows the curve of the loss."""

import numpy as np
import pytest

from larder.planner.guard import LossCurve


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
