"""Which of a batch's candidates are delivered (Quiver, Algorithm 1 and section 5.2).

The choice must favour nothing but residence. Otherwise the order in which a job sees its data would follow the cache's. So the
resident candidates keep the order of the request, which is the job's own and knows nothing of the cache. A random choice among
them would be as fair, but it would leave some early candidates behind for long, until they are evicted. The missing ones are
fetched in random order, so that jobs over the same data, without talking to one another, mostly fetch different items and then
find each other's in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


def _no_positions() -> Positions:
    return np.empty(0, np.int64)


class BatchMode(StrEnum):
    """Mode of a batch: which of its candidates the client accepts."""

    SUBSTITUTE = "substitute"
    """Some of them, whichever are cheapest."""
    EXACT = "exact"
    """All of them."""
    PREFETCH = "prefetch"
    """None now: they are to be in the cache later."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Positions in the request: ``resident`` in the order of delivery, then ``others`` in the order to fetch them, those already
    being fetched first. ``spare`` ones are resident too, and delivered only when nothing else is left."""

    resident: Positions
    others: Positions
    spare: Positions = field(default_factory=_no_positions)


def choose(order: Positions, resident: NDArray[np.bool_], fetching: NDArray[np.bool_]) -> Choice:
    """Arrange the candidates of a substitutable batch.

    Args:
        order: a random permutation of the positions.
        resident: by position, whether the item is known to be in the cache.
        fetching: by position, whether the item is being fetched.
    """
    is_resident, is_fetching = resident[order], fetching[order]
    return Choice(
        np.flatnonzero(resident),
        np.concatenate([order[is_fetching & ~is_resident], order[~is_fetching & ~is_resident]]),
    )


STALL = 2.0
"""Seconds without any arrival after which a substitutable batch tries another candidate in place of each slow one."""


def is_silent(silent: float) -> bool:
    """Whether nothing has arrived for so long that other candidates should be tried."""
    return silent >= STALL


def may_replace(waiting: int, needed: int, silent: float) -> int:
    """Number of further candidates to try, because those under way are slow.

    Args:
        waiting: fetches under way for this batch.
        needed: items that the batch still needs.
        silent: seconds since the last arrival.

    Returns:
        None within ``STALL``; then as many as are needed, unless they are under way already.
    """
    return max(0, 2 * needed - waiting) if is_silent(silent) else max(0, needed - waiting)


PATIENCE = 32
"""Items in a row that may fail at the origin, each after several attempts, before a batch of any size gives up."""


def gives_up(failures: int, needed: int) -> bool:
    """Whether a batch ends early: the origin fails so often that further items would fare no better.

    Args:
        failures: items that failed at the origin since the last one arrived.
        needed: items that the batch still needs.
    """
    return failures >= max(4, min(2 * needed, PATIENCE))
