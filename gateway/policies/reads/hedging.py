"""When a read of a store is sent a second time: the hedged requests of Dean and Barroso, "The Tail at Scale" (CACM 56, 2013).

A read is late when it has waited longer than a quantile of the latest reads of its kind. Each read earns a twentieth of a repeat,
so a store that becomes slow as a whole gets at most 5 % more requests.
"""

from __future__ import annotations

from collections import deque
from math import ceil

OFF = "off"
QUANTILES = {OFF: 0.0, "p90": 0.90, "p95": 0.95, "p99": 0.99}
"""The values of a rule's ``hedge``, and the quantile of the waiting times after which a read is late."""
EARNED = 0.05
"""Repeats that each read earns."""
_SAVED = 10.0
"""Repeats that may be saved up."""
_WINDOW = 512
"""Waiting times kept per kind."""
_ENOUGH = 64
"""Waiting times needed for a meaningful quantile."""
_RENEW = 32
"""Reads after which a quantile is computed again."""


class WaitingTimes:
    """The seconds until the head of the answer, for the last reads of one kind."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._new = 0
        self._quantiles: dict[float, float] = {}

    def add(self, seconds: float) -> None:
        """Note that a read got its answer after ``seconds``."""
        self._seconds.append(seconds)
        self._new += 1
        if self._new >= _RENEW:
            self._new = 0
            self._quantiles.clear()

    def quantile(self, share: float) -> float | None:
        """The seconds within which ``share`` of the reads were answered; ``None`` while too few are known."""
        if len(self._seconds) < _ENOUGH:
            return None
        known = self._quantiles.get(share)
        if known is None:
            known = self._quantiles[share] = sorted(self._seconds)[ceil(share * len(self._seconds)) - 1]
        return known


class HedgeBudget:
    """The repeats that reads have earned and not used."""

    def __init__(self) -> None:
        self._saved = 1.0

    def earn(self) -> None:
        """Count one read."""
        self._saved = min(_SAVED, self._saved + EARNED)

    def spend(self) -> bool:
        """Use one repeat; false if none has been earned."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
