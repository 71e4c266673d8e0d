"""The content of ``/-/metrics``: names only with a token, and trace ids on the buckets of request latencies.

Scrapers without a token see everything except the metrics with names of tenants, buckets and origins.

The metrics of several workers are combined in files that have no room for exemplars, so each worker keeps its own: the last
traced request of each outcome and bucket. The scraped worker adds the exemplars that it has. Exemplars are examples and not
counts, so those of other workers are not missed. Only OpenMetrics has them (OpenMetrics 1.0, section "Exemplars").
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.samples import Exemplar, Sample

from gateway.base import metrics

_MEDIA_TYPE = "application/openmetrics-text"
_LATENCY = "larder_request_seconds"
_NAMED = frozenset(metric._name for metric in metrics.NAMED)
_BOUNDS = (*metrics.LATENCY_BUCKETS, inf)
_kept: dict[tuple[str, float], Exemplar] = {}


def note(outcome: str, seconds: float, trace_id: str) -> None:
    """Keep a traced request as the example of its bucket. ``trace_id``: in hex."""
    _kept[outcome, _BOUNDS[bisect_left(_BOUNDS, seconds)]] = Exemplar({"trace_id": trace_id}, seconds, time.time())


def exposed(registry: CollectorRegistry, accept: str, *, names: bool) -> tuple[bytes, str]:
    """The metrics of a registry, and their media type.

    Args:
        registry: of all workers.
        accept: the request's header; OpenMetrics if it names that, as Prometheus does.
        names: whether the caller may see names of tenants, buckets and origins.
    """
    shown = _Shown(registry, names=names)
    if _MEDIA_TYPE in accept:
        content: bytes = exposition.generate_latest(shown)  # type: ignore[no-untyped-call]
        return content, exposition.CONTENT_TYPE_LATEST
    return generate_latest(shown), CONTENT_TYPE_LATEST


class _Shown:
    """A caller's view of a registry."""

    def __init__(self, registry: CollectorRegistry, *, names: bool) -> None:
        self._registry = registry
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """The families of metrics."""
        for family in self._registry.collect():
            if family.name == _LATENCY:
                family.samples = list(map(_with_exemplar, family.samples))
            if self._names or family.name not in _NAMED:
                yield family


def _with_exemplar(sample: Sample) -> Sample:
    if not sample.name.endswith("_bucket"):
        return sample
    return sample._replace(exemplar=_kept.get((sample.labels["outcome"], float(sample.labels["le"]))))
