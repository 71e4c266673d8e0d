"""Virtual time: events happen in the order of their times, and those of one time in the order of their planning."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """Seconds from 0; ``now`` jumps from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def after(self, delay: float, action: Action) -> None:
        """Let ``action`` happen ``delay`` seconds from now."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), action))

    def run(self, until: float) -> None:
        """Let everything happen that is due before ``until`` or at it."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
