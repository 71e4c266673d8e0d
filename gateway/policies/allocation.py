"""How much of the fleet's space each dataset gets: all of it, two chunks, or nothing.

Quiver, section 5.3: intermediate sizes are useless, as substitutable hits make two rotated chunks as good as any other part, so a
dataset has three options, and the budget goes to the highest ratio of benefit to cost. Three things need a reading.

*What a gain is.* The paper calls g = b x gpus the GPUs saved, with b = t_miss / t_hit, so that a job which gains nothing (b = 1)
would still claim space in proportion to its GPUs. We take g = gpus x (b - 1): the GPUs that would be needed on top to do without
the cache. A job below ``LEAST_BENEFIT`` counts nothing. The gain of two chunks is stated on its own, because it is lower: the
paper's "co-operative miss", 2.35 instead of 3.88 for ResNet50 (Table 3).

*Upgrades.* Going from two chunks to all of it is a move of its own: what it adds, by the bytes it adds. That orders the paper's
example (section 7.6: 16 GPUs for each of three datasets, chunks of 15 GB) by gain per GB as

    ImageNet chunked 0.72 > OpenImages chunked 0.31 > ImageNet full +0.20 > LibriSpeech chunked 0.15
        > OpenImages full +0.022 > LibriSpeech full +0.008

and its decisions follow: all three chunked with 100 GB; ImageNet whole and the others chunked with 200; ImageNet and OpenImages
whole with 700.

*What nearly fits.* In plain arithmetic the paper's own outcomes do not fit its budgets: 154 + 2 x 15 + 2 x 15 is 214 and not 200,
154 + 531 + 2 x 15 is 715 and not 700 (in binary gigabytes they do). So a candidate may state a smallest chunk that would do as
well. Moves are weighed with the smallest chunks, and what is left over then widens them to their usual size, those with most to
gain first. And greed alone would give LibriSpeech the last bytes that OpenImages needs: a move that does not fit may displace
others whose loss together is smaller than what it brings. A move that still does not fit blocks nothing after it.

Pinned datasets come first, then those whose registration asks for a mode, then the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.policies.datasets import CachingMode
from gateway.policies.plan import WhyCaching

LEAST_BENEFIT = 1.05
"""t_miss / t_hit below which a job gains nothing worth its space."""
MOST_EXCHANGES = 64
"""Moves that did not fit and for which room is sought: those that would bring most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset that wants space.

    ``size`` and ``chunk`` (of one chunk) are in bytes; ``smallest`` is the size below which a chunk may not be squeezed, 0 for no
    squeezing at all. ``gain`` is the sum of gpus x (t_miss / t_hit - 1) over its jobs if it is held whole, ``chunked_gain`` the
    same with two chunks. ``override`` is ``"pin"``, ``"never"`` or empty, ``requested`` a ``CachingMode`` or ``"auto"``.
    """

    dataset: str
    size: int
    chunk: int
    gain: float
    chunked_gain: float
    override: str = ""
    requested: str = "auto"
    smallest: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a dataset gets. ``granted`` is in bytes; for a chunked one, twice the size that its chunks may have."""

    caching: CachingMode
    granted: int
    why: WhyCaching
