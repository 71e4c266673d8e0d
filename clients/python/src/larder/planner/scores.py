"""Importance of items: the rank of their losses within their mini-batch.

A loss alone says little, since losses fall during training; its rank within the mini-batch does not. SHADE (FAST 2023, section
4.2.1, Eq. 6) scores sample ``i`` of a mini-batch with ``log(sum over k != i of 1(l_i > l_k) + b0)``, so that scores of different
mini-batches and epochs are in one range. The paper does not give ``b0``; its authors' program uses 10, as is done here. All
scores are then positive (2.3 to 5.6 for a mini-batch of 256), as Eq. 1 needs, and the largest is about twice the smallest.

Where the paper leaves a case open:

- Equal losses share the lower rank, as none is larger; a mini-batch of equal losses has ``log(b0)`` throughout.
- A smaller mini-batch, as at the end of an epoch, has fewer ranks. They are stretched to those of the largest mini-batch so far.
- A single sample has no rank and keeps its score.
- An item that comes twice in a mini-batch keeps one of its scores, which differ only if its loss does.

Scores age: an item that is left out of an epoch keeps the score from an older model. `ItemScores.weights` moves scores
towards the mean, by half every ``HALF_LIFE`` epochs; an item that was never scored has the mean.

A model learns wrong labels last, so their losses rank high in every epoch, and repeats teach them. Hard items that can be
learned lose their rank once they have come. Therefore an item that ranked in the top ``DOUBTED`` of its mini-batch in each of
its last two epochs is *doubted*, and counts as the mean: it comes as often as others, until it ranks lower.
"""

import numpy as np
from numpy.typing import NDArray

BIAS = 10.0
"""``b0`` of Eq. 6."""
HALF_LIFE = 4
"""Epochs in which half of a score's distance to the mean is lost."""
WEIGHT_UNIT = 512
"""Weight of a score of 1. Every float16 of at least 2 is a whole number of units, so weights are exact."""
DOUBTED = 0.2
"""The top share of a mini-batch whose items are doubted if they rank there twice in a row."""
FEWEST_RANKS = 10
"""Samples of a mini-batch below which its ranks are too coarse to doubt an item."""
_AGES = 16 * HALF_LIFE
"""Epochs after which a score counts as the mean."""
_ONE = 1 << 16
_KEPT = np.array([round(_ONE * 0.5 ** (age / HALF_LIFE)) for age in range(_AGES)] + [0], np.int64)
"""By age, the remaining part of a score's distance to the mean, in units of 1/65536."""
NEVER = -1


def rank_scores(losses: NDArray[np.floating], batch: int = 0) -> NDArray[np.float16]:
    """The score of each sample of a mini-batch (Eq. 6).

    Args:
        losses: of at least two samples, finite.
        batch: samples of a full mini-batch; the ranks of a smaller one are stretched to its ranks.

    Raises:
        ValueError: fewer than two losses, which have no ranks.
    """
    count = len(losses)
    if count < 2:
        raise ValueError(f"ranks need at least two losses, not {count}")
    smaller = np.searchsorted(np.sort(losses), losses, side="left")
    stretch = (max(batch, count) - 1) / (count - 1)
    return np.asarray(np.log(smaller * stretch + BIAS), np.float16)


def top_score(batch: int) -> float:
    """The score from which an item is in the top ``DOUBTED`` of a mini-batch of ``batch`` samples."""
    return float(np.float16(np.log((1 - DOUBTED) * max(0, batch - 1) + BIAS)))


class ItemScores:
    """The latest score of each item, its epoch, and the score of the epoch before. Eight MB for a million items.

    Args:
        items: number of items.
    """

    def __init__(self, items: int) -> None:
        self.values = np.full(items, np.nan, np.float16)
        """Scores; NaN for an item that was never scored."""
        self.epochs = np.full(items, NEVER, np.int32)
        """Epoch of each score; ``NEVER`` without one."""
        self.before = np.full(items, np.nan, np.float16)
        """Last scores of the epochs before; NaN for an item that was scored in one epoch at most."""

    def __len__(self) -> int:
        return len(self.values)

    def set(self, ids: NDArray[np.integer], values: NDArray[np.float16], epoch: int) -> None:
        """Replace scores; if an item comes more than once, its last score counts."""
        older = ids[self.epochs[ids] != epoch]
        self.before[older] = self.values[older]
        self.values[ids] = values
        self.epochs[ids] = epoch

    def of_epoch(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
        """The items scored in this epoch, ascending, and their scores."""
        ids = np.flatnonzero(self.epochs == epoch).astype(np.uint32)
        return ids, self.values[ids]

    def ages(self, epoch: int) -> NDArray[np.int32]:
        """For each scored item, the epochs from its score to ``epoch``."""
        return np.asarray(epoch - self.epochs[self.epochs != NEVER], np.int32)

    def doubted(self, batch: int) -> NDArray[np.bool_]:
        """By item, whether it is doubted; ``batch``: samples of a full mini-batch. With fewer than ``FEWEST_RANKS`` none is."""
        if batch < FEWEST_RANKS:
            return np.zeros(len(self), np.bool_)
        return np.asarray(np.minimum(self.values, self.before) >= np.float16(top_score(batch)))  # NaN is not

    def topped(self, batch: int) -> NDArray[np.uint8]:
        """All that `doubted` needs of ``before``, a bit for each item: for saved states."""
        return np.packbits(self.before >= np.float16(top_score(batch)))

    def restore_topped(self, bits: NDArray[np.uint8]) -> None:
        """Restore ``before`` from `topped`, as far as `doubted` needs it."""
        self.before[:] = np.where(np.unpackbits(bits, count=len(self)), np.inf, np.nan)

    def believed(self, batch: int) -> NDArray[np.float16]:
        """The latest scores, with the mean in place of those of doubted items. NaN without a score."""
        values = self.values.copy()
        known = values[~np.isnan(values)]
        values[self.doubted(batch)] = known.mean(dtype=np.float64) if len(known) else np.nan
        return values

    def weights(self, epoch: int, batch: int = 0) -> NDArray[np.uint16]:
        """The weights for drawing the items of ``epoch``: scores moved towards the mean by their age, in units of 1 /
        ``WEIGHT_UNIT``. With the samples of a full mini-batch (``batch``), doubted items have the mean.

        Whole numbers, computed from whole numbers, so that all ranks with the same scores have the same weights.
        """
        known = self.epochs != NEVER
        scaled = np.zeros(len(self), np.int64)
        scaled[known] = self.values[known].astype(np.float64) * WEIGHT_UNIT
        mean = int(scaled.sum()) // max(1, int(np.count_nonzero(known))) or WEIGHT_UNIT
        age = np.where(known, np.clip(epoch - 1 - self.epochs, 0, _AGES), _AGES)
        age[self.doubted(batch)] = _AGES
        scaled -= mean
        scaled *= _KEPT[age]
        scaled >>= 16
        return np.asarray(scaled + mean, np.uint16)
