"""The node's counters, read from its metrics, so that admin pages and Prometheus cannot disagree.

If a node has several workers, every worker can read the sums. They include all workers, even those that ended since the node's
start.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.base import metrics
from gateway.model.counters import Counters
from gateway.model.outcomes import Outcome
from gateway.policies.health.answers import BATCH, TRAFFIC, Answers, together

_CACHED = (Outcome.HIT.value, Outcome.STALE.value)
_OF_KEYS = "keys"
"""The mode of batches of keys."""
_DELIVERED = ("hit", "joined", "fetched")
_READ = (
    metrics.REQUESTS, metrics.BUCKET_REQUESTS, metrics.BUCKET_SENT_BYTES, metrics.LATENCY, metrics.SENT_BYTES,
    metrics.ORIGIN_ANSWERS, metrics.ORIGIN_REQUESTS, metrics.ORIGIN_BYTES, metrics.BATCH_ITEMS, metrics.BATCH_BYTES,
    metrics.BATCH_LATENCY, metrics.EVICTED_BYTES, metrics.CORRUPT_BLOBS, metrics.DISK_STATE, metrics.CHANNEL_HEALTHY,
    metrics.CONFIG_RELOADS,
)  # fmt: skip

Labels = Mapping[str, str]


class Counted:
    """The metrics of the node at one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in families:
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def sum(self, name: str, label: str = "", values: Iterable[str] = ()) -> float:
        """The sum of a metric's samples; with ``label``, only of samples whose label has one of these values."""
        wanted = set(values)
        return sum(value for labels, value in self._samples[name] if not label or labels.get(label) in wanted)

    @property
    def counters(self) -> Counters:
        """The sums shown to operators."""
        return Counters(
            requests=self.sum("larder_requests_total"),
            hits=self.sum("larder_requests_total", "outcome", _CACHED),
            sent_bytes=self.sum("larder_sent_bytes_total") + self.sum("larder_batch_bytes_total"),
            cache_bytes=self.sum("larder_sent_bytes_total", "outcome", _CACHED)
            + self.sum("larder_batch_bytes_total", "result", ("hit",)),
            origin_bytes=self.sum("larder_origin_received_bytes_total"),
            origin_requests=self.sum("larder_origin_requests_total"),
            origin_failures=self.sum("larder_origin_requests_total", "status", ("failed", "5xx")),
            batch_items=self.sum("larder_batch_items_total", "result", _DELIVERED),
            batch_hits=self.sum("larder_batch_items_total", "result", ("hit",)),
            evicted_bytes=self.sum("larder_evicted_bytes_total"),
            corrupt_blobs=self.sum("larder_corrupt_blobs_total"),
        )

    @property
    def answers(self) -> Answers:
        """Counts of S3 answers by status, bucket and tenant, and the latencies of answers, batches and origins."""
        statuses: dict[str, float] = defaultdict(float)
        for labels, value in self._samples["larder_requests_total"]:
            statuses[labels["status"]] += value
        seconds = self._buckets("larder_request_seconds", "outcome")
        of_batches = self._buckets("larder_batch_seconds", "mode")
        of_batches.pop(_OF_KEYS, None)  # their entries are among the requests
        if batches := together(of_batches.values()):
            seconds[BATCH] = dict(batches)
        return Answers(
            dict(statuses), seconds, self._traffic(), self._buckets("larder_origin_answer_seconds", "origin")
        )

    def _buckets(self, histogram: str, label: str) -> dict[str, dict[float, float]]:
        buckets_of: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        for labels, value in self._samples[f"{histogram}_bucket"]:
            buckets_of[labels[label]][float(labels["le"])] += value
        return {name: dict(buckets) for name, buckets in buckets_of.items()}

    def _traffic(self) -> dict[str, dict[str, float]]:
        traffic: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(TRAFFIC, 0.0))
        for labels, value in self._samples["larder_bucket_requests_total"]:
            traffic[f"{labels['bucket']}/{labels['tenant']}"]["requests"] += value
        for labels, value in self._samples["larder_bucket_sent_bytes_total"]:
            counts = traffic[f"{labels['bucket']}/{labels['tenant']}"]
            counts["sent_bytes"] += value
            counts["cache_bytes"] += value if labels["outcome"] in _CACHED else 0.0
        return dict(traffic)

    @property
    def reasons(self) -> dict[str, float]:
        """Answers other than plain hits, by outcome and reason: ``"MISS cold": 17``."""
        counts: dict[str, float] = defaultdict(float)
        for labels, value in self._samples["larder_requests_total"]:
            if labels["reason"] or labels["outcome"] != Outcome.HIT.value:
                counts[f"{labels['outcome']} {labels['reason']}".rstrip()] += value
        return dict(counts)


class WorkersCollector(MultiProcessCollector):
    """The metrics of all workers, from their files.

    It skips empty files, which a starting worker creates and prometheus_client cannot read.
    """

    def collect(self) -> Iterable[Metric]:
        """Read the files."""
        files = [str(path) for path in Path(self._path).glob("*.db") if _size(path)]
        families: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return families


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the gauges of a worker that has ended
        return 0


def counted() -> Counted:
    """Read the metrics. With several workers this reads files of each, so call it in a thread."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return Counted(WorkersCollector(CollectorRegistry()).collect())  # type: ignore[no-untyped-call]
    return Counted(family for metric in _READ for family in metric.collect())
