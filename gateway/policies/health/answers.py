"""Counts of requests by status, tenant and bucket; their latency by cache outcome; and the latency of each origin.

Nodes count seconds in buckets with upper bounds, and a bucket counts all requests up to its bound. Buckets of several nodes
are added before a percentile is taken: percentiles themselves cannot be added. Within a bucket requests are taken to be spread
evenly, as Prometheus does (``histogram_quantile``), so a percentile is as exact as its bucket is narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

TRAFFIC = ("requests", "sent_bytes", "cache_bytes")
"""The counts of a tenant's requests to a bucket."""
Buckets = Mapping[float, float]
"""Requests by the upper bound of their seconds; each includes those of the smaller bounds."""
BATCH = "BATCH"
"""The outcome under which batches are counted, whatever the cache did for their items."""
Addition = Callable[[Mapping[Any, float], Mapping[Any, float]], dict[Any, float]]


@dataclass(frozen=True, slots=True)
class Answers:
    """Counts of answers: by class of the status, such as ``2xx``; in buckets of seconds, by the outcome of the cache or
    ``BATCH``; ``traffic`` by ``"BUCKET/TENANT"``: ``requests``, ``sent_bytes``, and of these ``cache_bytes``; and heads of
    origins' answers in buckets of seconds, by origin."""

    statuses: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, Buckets] = field(default_factory=dict)
    traffic: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    origins: Mapping[str, Buckets] = field(default_factory=dict)

    def since(self, earlier: Answers) -> Answers:
        """The counts since ``earlier``."""
        return self._with(_less, earlier)

    def plus(self, other: Answers) -> Answers:
        """Both together."""
        return self._with(_more, other)

    def times(self, share: float) -> Answers:
        """These counts multiplied by ``share``."""
        return Answers(
            _scaled(self.statuses, share),
            *({name: _scaled(buckets, share) for name, buckets in part.items()} for part in self._parts),
        )

    def _with(self, add: Addition, other: Answers) -> Answers:
        parts = zip(self._parts, other._parts, strict=True)
        return Answers(add(self.statuses, other.statuses), *(_each(add, mine, theirs) for mine, theirs in parts))

    @property
    def _parts(self) -> tuple[Mapping[str, Mapping[Any, float]], ...]:
        return self.seconds, self.traffic, self.origins

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        busy = {name: dict(counts) for name, counts in self.traffic.items() if counts["requests"]}
        document = {"statuses": dict(self.statuses), "seconds": _json_of(self.seconds), "traffic": busy}
        return {**document, "origins": _json_of(self.origins)}

    @classmethod
    def from_json(cls, document: Any) -> Answers:
        """Parse ``to_json``; no answers if another version wrote it in an unknown form."""
        try:
            traffic = {
                str(name): {what: float(counts[what]) for what in TRAFFIC}
                for name, counts in document.get("traffic", {}).items()
            }
            statuses = {str(name): float(count) for name, count in document["statuses"].items()}
            return cls(statuses, _buckets_of(document["seconds"]), traffic, _buckets_of(document.get("origins", {})))
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


def _less(counts: Mapping[Any, float], earlier: Mapping[Any, float]) -> dict[Any, float]:
    return {name: max(0.0, count - earlier.get(name, 0.0)) for name, count in counts.items()}


def _more(counts: Mapping[Any, float], others: Mapping[Any, float]) -> dict[Any, float]:
    return {name: counts.get(name, 0.0) + others.get(name, 0.0) for name in {**counts, **others}}


def _each(
    add: Addition, mine: Mapping[str, Mapping[Any, float]], others: Mapping[str, Mapping[Any, float]]
) -> dict[str, Any]:
    return {name: add(mine.get(name, {}), others.get(name, {})) for name in {**mine, **others}}


def _scaled(counts: Mapping[Any, float], share: float) -> dict[Any, float]:
    return {name: share * count for name, count in counts.items()}


def _json_of(parts: Mapping[str, Buckets]) -> dict[str, dict[str, float]]:
    return {name: {str(bound): count for bound, count in buckets.items()} for name, buckets in parts.items()}


def _buckets_of(document: Any) -> dict[str, Buckets]:
    return {
        str(name): {float(bound): float(count) for bound, count in buckets.items()}
        for name, buckets in document.items()
    }


def together(buckets: Iterable[Buckets]) -> Buckets:
    """The sum of buckets with the same bounds."""
    total: Counter[float] = Counter()
    for part in buckets:
        total.update(part)
    return total


def percentile(buckets: Buckets, share: float) -> float | None:
    """The seconds within which ``share`` of the requests were answered; ``None`` without requests.

    For requests beyond the largest finite bound, only that bound is known.
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
