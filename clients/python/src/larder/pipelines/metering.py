"""What the trainer measures, for the fleet to find the number of input workers (Cachew, ATC 2022, Table 1)."""

from __future__ import annotations

from typing import NamedTuple

BATCHES = 100
"""Batches of a report (section 4.3)."""
PAUSE = 150
"""Batches after a change of the workers that do not count: they were computed before, or by workers that had just begun."""


class BatchReport(NamedTuple):
    """Means over ``BATCHES`` batches: seconds per batch, waiting and computation, and batches that were ready; workers then."""

    batch_time: float
    queue: float
    workers: int


class BatchMeter:
    """Times batches from one to the next."""

    def __init__(self) -> None:
        self._workers = 0
        self._pause = 0
        self._last = 0.0
        self._restart()

    def begin(self) -> None:
        """An epoch begins: the time since the last batch of the one before is not a batch's."""
        self._last = 0.0

    def batch(self, now: float, ready: float, workers: int) -> BatchReport | None:
        """Count a batch.

        Args:
            now: seconds of a monotonic clock.
            ready: batches that are ready.
            workers: number of input workers; 0 while it is changing.

        Returns:
            a report, after every ``BATCHES`` batches.
        """
        last, self._last = self._last, now
        if workers != self._workers:
            # The first workers have nothing before them that could still be in the queue.
            self._pause = PAUSE if self._workers or not workers else self._pause
            self._workers = workers
            self._restart()
        if not workers or not last:
            return None
        if self._pause:
            self._pause -= 1
            return None
        self._seconds += now - last
        self._ready += ready
        self._batches += 1
        if self._batches < BATCHES:
            return None
        report = BatchReport(self._seconds / BATCHES, self._ready / BATCHES, workers)
        self._restart()
        return report

    def _restart(self) -> None:
        self._batches, self._seconds, self._ready = 0, 0.0, 0.0
