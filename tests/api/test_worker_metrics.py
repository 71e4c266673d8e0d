"""The metrics of several workers, shared through files."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram

from gateway.engine.operations.counting import Counted, WorkersCollector
from gateway.policies.health.answers import BATCH, together


def test_a_worker_that_is_starting_has_counted_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a file that was just created, and has no content yet, does not make the metrics of the others unreadable."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    (tmp_path / "counter_1.db").touch()
    assert list(WorkersCollector(CollectorRegistry()).collect()) == []


def test_a_batch_of_keys_counts_as_its_entries() -> None:
    """Rule: among all answers, a batch of items is one, and each entry of a batch of keys is one, but not the batch beside
    them."""
    registry = CollectorRegistry()
    batches = Histogram("larder_batch_seconds", "batches", ["mode"], registry=registry, buckets=(1.0,))
    requests = Histogram("larder_request_seconds", "requests", ["outcome"], registry=registry, buckets=(1.0,))
    for mode in ("keys", "keys", "exact"):
        batches.labels(mode).observe(0.5)
    for _ in range(5):
        requests.labels("HIT").observe(0.1)
    seconds = Counted(registry.collect()).answers.seconds
    assert {outcome: buckets[1.0] for outcome, buckets in seconds.items()} == {"HIT": 5, BATCH: 1}
    assert together(seconds.values())[1.0] == 6
