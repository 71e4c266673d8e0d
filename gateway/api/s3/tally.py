"""Counting answers. The metric objects of one kind of answer are looked up once, not for every request."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from gateway import metrics
from gateway.api.s3.answer import Answer
from gateway.model.outcomes import Outcome, Reason

_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"})
Kind = tuple[str, int, Outcome, Reason | None]


@dataclass(frozen=True, slots=True)
class _Metrics:
    requests: Counter
    seconds: Histogram
    sent: Counter


class Tally:
    """Counts answers by method, status class, outcome and reason."""

    def __init__(self) -> None:
        self._known: dict[Kind, _Metrics] = {}

    def note(self, method: str, answer: Answer, seconds: float) -> None:
        """Count one answer; a method that nobody knows is counted as "OTHER", so that labels stay bounded."""
        kind = (method, answer.status // 100, answer.outcome, answer.reason)
        known = self._known.get(kind) or self._learn(kind)
        known.requests.inc()
        known.seconds.observe(seconds)
        if method == "GET" and answer.length:
            known.sent.inc(answer.length)

    def _learn(self, kind: Kind) -> _Metrics:
        method, status, outcome, reason = kind
        known = _Metrics(
            metrics.REQUESTS.labels(
                method if method in _METHODS else "OTHER",
                f"{status}xx",
                outcome.value,
                "" if reason is None else reason.value,
            ),
            metrics.LATENCY.labels(outcome.value),
            metrics.SENT_BYTES.labels(outcome.value),
        )
        if method in _METHODS:
            self._known[kind] = known
        return known
