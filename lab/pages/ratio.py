"""A measured ratio beside its budget, as pages show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

WORSE = 0.1
"""The summary marks a figure of unknown deviation if it is worse than the previous one by this share."""


@dataclass(frozen=True)
class Ratio:
    """A measured ratio that has a budget.

    Attributes:
        what: a short sentence that names both sides, the same from run to run.
        value: the measured ratio.
        budget: the most that it may be, or with ``at_least`` the least.
        deviation: standard deviation of the ratio over the rounds of the run; 0 for a count, ``None`` for a single measurement.
    """

    what: str
    value: float
    budget: float
    at_least: bool = False
    deviation: float | None = None

    @classmethod
    def compared(
        cls, what: str, ours: Sequence[float], theirs: Sequence[float], budget: float, *, at_least: bool = False
    ) -> Ratio:
        """The ratio of two medians, whose samples were taken in turn: the deviation is that of the rounds' own ratios."""
        rounds = [our / their for our, their in zip(ours, theirs, strict=True)]
        return cls(what, median(ours) / median(theirs), budget, at_least, stdev(rounds) if len(rounds) > 1 else None)

    @property
    def held(self) -> bool:
        """Whether the value is within its budget."""
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    def worse_than(self, before: Ratio) -> bool:
        """Whether it is worse than in an earlier run by more than the deviations of both runs."""
        change = before.value - self.value if self.at_least else self.value - before.value
        if self.deviation is None or before.deviation is None:
            return change > WORSE * before.value
        return change > self.deviation + before.deviation

    def __str__(self) -> str:
        signs = ("≥", "**<**") if self.at_least else ("≤", "**>**")
        spread = f" ± {self.deviation:.2f}" if self.deviation else ""
        return f"{self.value:.2f}{spread} {signs[not self.held]} {self.budget:g}"
