"""How long a job's mini-batches take, by what the fleet was doing for it: the numbers that tell whether it needs the cache.

A mini-batch lasts from asking for one to asking for the next: waiting for the data and computing with it. What is counted is
divided by *phase* (Quiver, FAST 2020, section 4.5): the manager refuses a job hits for some mini-batches, and compares. When the
phase changes, mini-batches are under way that were read under the one before; they are counted nowhere, nor is the first of a
pass, which waits for processes to start.

One thread counts, another reads. Totals are values that are replaced as a whole, so neither waits for the other.
"""

from __future__ import annotations

from typing import NamedTuple

PHASES = ("probe-miss", "measure", "steady")
IN_FLIGHT = 2
"""Mini-batches that are read ahead of their use: the one that waits and the one that is being read."""


class Totals(NamedTuple):
    """Mini-batches of one phase, the seconds they took and how many of these were waited, their items and hits."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0


class Timing:
    """Counts mini-batches, from the beginning of the job on; none while it is not known what the fleet is doing."""

    def __init__(self) -> None:
        self.phase = ""
        self.in_flight = IN_FLIGHT
        """Mini-batches that are under way when the phase changes."""
        self.totals: dict[str, Totals] = {}
        self._begun = False
        self._skip = 0

    def change(self, phase: str) -> None:
        """From now on it does something else."""
        if phase != self.phase:
            self.phase = phase
            self._skip = self.in_flight if self._begun else 0

    def add(self, seconds: float, waited: float = 0.0, items: int = 0, hits: int = 0) -> None:
        """One more mini-batch."""
        self._begun = True
        if self._skip or not self.phase:
            self._skip = max(0, self._skip - 1)
            return
        before = self.totals.get(self.phase, Totals())
        self.totals[self.phase] = Totals(
            before.steps + 1,
            before.seconds + seconds,
            before.waited + min(waited, seconds),
            before.items + items,
            before.hits + min(hits, items),
        )

    def as_json(self) -> dict[str, dict[str, float]]:
        """Totals by phase."""
        return {phase: totals._asdict() for phase, totals in list(self.totals.items())}
