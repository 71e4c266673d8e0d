"""The keeper's log messages about a file system without room for the cache."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.base.config import CacheSettings
from gateway.engine.space.sweep_loop import SweepLoop
from gateway.store.store import Store
from tests.engine.conftest import Bench
from tests.faults import FaultyDirectory


async def test_a_shortage_is_told_of_once(bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: a shortage logs one warning when it begins, one line when it ends, and nothing in between."""
    caplog.set_level("INFO", "larder.keeper")
    directory = FaultyDirectory(tmp_path / "other")
    directory.free_bytes = 100_000_000
    settings = CacheSettings(dir=str(tmp_path / "other"), capacity=50_000_000, reserve=5_000_000)
    store = await Store.open(settings, now=time.time, directory=directory)
    sweeping = SweepLoop(store, bench.engine.blocks)
    for free in (100_000_000, 10_000_000, 9_000_000, 51_000_000, 10_000_000, 100_000_000, 100_000_000):
        directory.free_bytes = free
        await sweeping.run_once()
    await store.close()
    told = [(record.levelname, record.message) for record in caplog.records if "file system" in record.message]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert "only 5.0 MB of cache.capacity (50.0 MB) can be used" in told[0][1]
