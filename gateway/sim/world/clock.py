"""Virtual time: events run in the order of their times, and events of one time in the order in which they were scheduled."""

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
        """Schedule ``action`` for ``delay`` seconds from now."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), action))

    def run(self, until: float) -> None:
        """Run all events that are due by ``until``."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
