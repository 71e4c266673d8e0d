"""The metrics of several workers, shared through files."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.engine.operations.counting import WorkersCollector


def test_a_worker_that_is_starting_has_counted_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a file that was just created, and has no content yet, does not make the metrics of the others unreadable."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    (tmp_path / "counter_1.db").touch()
    assert list(WorkersCollector(CollectorRegistry()).collect()) == []
