"""Whether a client keeps up a minimum rate while the gateway waits for it.

Only waiting counts: time in which the gateway is busy, or waits for the origin, is not held against the client. Each window of
waiting must bring its quota of bytes. A quota met early starts the next window at once, so a fast client is never judged by its
average, and a client that trickles is refused after one window.
"""

from __future__ import annotations

import math


class ClientPace:
    """The pace of one body, or of one answer.

    Args:
        window: seconds of waiting in which the quota must come.
        rate: bytes per second; the quota is ``window * rate`` bytes, but at least one byte.
    """

    __slots__ = ("_got", "_left", "_quota", "_since", "_window")

    def __init__(self, window: float, rate: float) -> None:
        self._window = self._left = window
        self._quota = max(1.0, window * rate)
        self._got = 0.0
        self._since = math.nan

    def wait(self, now: float) -> float:
        """The gateway begins to wait; returns the time at which the client is too slow."""
        self._since = now
        return now + self._left

    def stop(self, now: float) -> None:
        """The gateway waits no more."""
        if self._since == self._since:  # it is no NaN
            self._left -= now - self._since
            self._since = math.nan

    def got(self, amount: float, now: float) -> float:
        """Bytes came; returns the time at which the client is too slow, infinity while not waiting for it."""
        self._got += amount
        if self._got >= self._quota:
            self._got, self._left = 0.0, self._window
            if self._since == self._since:
                self._since = now
        return math.inf if self._since != self._since else self._since + self._left
