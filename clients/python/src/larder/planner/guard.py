"""The guards: limit by the curves of loss and accuracy how far an epoch may go along the frontier.

Training on a few items again and again can stop a model from learning, so SHADE watches the curve and goes back to a shuffle
of all items when it stops improving (FAST 2023, section 4.2.1, PADS). Here the used part of the user's share follows the
curve:

- the first epoch has every item, since no item has a score;
- then all of the share is used while the loss falls by ``FULL`` per epoch or more, on average over the last ``WINDOW``
  epochs, and proportionally less below that; a curve that stalls gives 0, which is a shuffle of all items;
- a rise by more than ``STEEP`` within one epoch gives 0;
- so does an epoch without an update, of which nothing is known.

Hard items come more often, so the plain mean over an epoch's losses would rise as soon as importance is used. The curve is
therefore the mean weighted with p/q (Eq. 1), which estimates the mean loss over the dataset.

The loss of training items goes on falling while a model memorises; accuracy on held-out items does not rise with it. If the
training loop reports that accuracy, every epoch is a shuffle of all items while the last report is below the best one by more
than ``LOST`` of it.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FULL = 0.02
"""Relative fall of the loss per epoch at which the whole share is used."""
WINDOW = 3
"""Epochs over which the fall is averaged."""
STEEP = 0.1
"""Relative rise of the loss within one epoch that ends the use of importance."""
LOST = 0.01
"""Relative loss of accuracy, from the best so far, that ends the use of importance."""
_KEPT = WINDOW + 1
_TINY = 1e-12


class LossCurve:
    """The mean loss of the last epochs, and the running sums of the current one."""

    def __init__(self, means: Iterable[float] = (), loss: float = 0.0, weight: float = 0.0) -> None:
        self.means = list(means)
        """Mean loss of the last epochs that had updates."""
        self.loss = loss
        """Sum of the current epoch's losses, each times its weight."""
        self.weight = weight
        """Sum of their weights."""
        self.silent = False
        """Whether the last epoch had no update."""

    def add(self, losses: NDArray[np.floating], weights: NDArray[np.floating]) -> None:
        """Add the losses of a mini-batch, with p/q of its items."""
        self.loss += float(np.dot(losses, weights))
        self.weight += float(weights.sum())

    def close(self) -> None:
        """End the epoch."""
        self.silent = not self.weight
        if self.weight:
            self.means = [*self.means, self.loss / self.weight][-_KEPT:]
        self.loss = self.weight = 0.0

    def level(self) -> float:
        """The part of the user's share for the next epoch, from 0 to 1."""
        if self.silent or not self.means:
            return 0.0
        if len(self.means) == 1:
            return 1.0
        last, before, oldest = self.means[-1], self.means[-2], self.means[0]
        if last - before > STEEP * max(abs(before), _TINY):
            return 0.0
        fall = (oldest - last) / max(abs(oldest), _TINY) / (len(self.means) - 1)
        return min(1.0, max(0.0, fall / FULL))


class AccuracyCurve:
    """The best and the last accuracy on held-out items, and the one reported in the current epoch; ``None``: none was."""

    def __init__(self, best: float | None = None, last: float | None = None, reported: float | None = None) -> None:
        self.best = best
        self.last = last
        self.reported = reported

    def report(self, accuracy: float) -> None:
        """Report the accuracy after the current epoch, in any unit in which more is better.

        Raises:
            ValueError: it is negative or not finite.
        """
        if not 0 <= accuracy < float("inf"):
            raise ValueError(f"accuracy must be a number from 0 on, such as a share or percent, not {accuracy!r}")
        self.reported = accuracy

    def close(self) -> None:
        """End the epoch."""
        if self.reported is not None:
            self.best, self.last = max(self.reported, self.best or 0.0), self.reported
            self.reported = None

    @property
    def lost(self) -> bool:
        """Whether the last accuracy is so far below the best that the next epoch is to be a shuffle."""
        return self.best is not None and self.last is not None and self.last < (1 - LOST) * self.best
