"""How requests were answered: how many with which status, and how fast, by what the cache did.

Nodes count seconds in buckets with upper bounds, and a bucket counts all requests up to its bound. Buckets of several nodes
are added before a percentile is taken: percentiles themselves cannot be added. Within a bucket requests are taken to be spread
evenly, as Prometheus does (``histogram_quantile``), so a percentile is as exact as its bucket is narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

Buckets = Mapping[float, float]
"""Requests by the upper bound of their seconds; each includes those of the smaller bounds."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Counts of answers: by class of the status, such as ``2xx``; and in buckets of seconds, by the outcome of the cache."""

    statuses: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, Buckets] = field(default_factory=dict)

    def since(self, earlier: Answers) -> Answers:
        """The counts since ``earlier``."""
        return Answers(
            _less(self.statuses, earlier.statuses),
            {name: _less(buckets, earlier.seconds.get(name, {})) for name, buckets in self.seconds.items()},
        )

    def plus(self, other: Answers) -> Answers:
        """Both together."""
        names = {**self.seconds, **other.seconds}
        return Answers(
            _more(self.statuses, other.statuses),
            {name: _more(self.seconds.get(name, {}), other.seconds.get(name, {})) for name in names},
        )

    def times(self, share: float) -> Answers:
        """These counts multiplied by ``share``."""
        return Answers(
            {name: share * count for name, count in self.statuses.items()},
            {name: {bound: share * count for bound, count in each.items()} for name, each in self.seconds.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        told = {name: {str(bound): count for bound, count in each.items()} for name, each in self.seconds.items()}
        return {"statuses": dict(self.statuses), "seconds": told}

    @classmethod
    def from_json(cls, told: Any) -> Answers:
        """Parse ``to_json``; no answers if another version wrote it in an unknown form."""
        try:
            seconds = {
                str(name): {float(bound): float(count) for bound, count in each.items()}
                for name, each in told["seconds"].items()
            }
            return cls({str(name): float(count) for name, count in told["statuses"].items()}, seconds)
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


def _less(counts: Mapping[Any, float], earlier: Mapping[Any, float]) -> dict[Any, float]:
    return {name: max(0.0, count - earlier.get(name, 0.0)) for name, count in counts.items()}


def _more(counts: Mapping[Any, float], others: Mapping[Any, float]) -> dict[Any, float]:
    return {name: counts.get(name, 0.0) + others.get(name, 0.0) for name in {**counts, **others}}


def together(buckets: Iterable[Buckets]) -> Buckets:
    """The sum of buckets with the same bounds."""
    found: Counter[float] = Counter()
    for each in buckets:
        found.update(each)
    return found


def percentile(buckets: Buckets, share: float) -> float | None:
    """The seconds within which ``share`` of the requests were answered; ``None`` without requests.

    Of requests beyond the largest finite bound only that bound is known.
    """
    bounds = sorted(buckets)
    wanted = share * buckets[bounds[-1]] if bounds else 0.0
    if wanted <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted:
            return lower if bound == inf else lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower
