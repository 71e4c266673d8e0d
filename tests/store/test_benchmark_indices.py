"""The indices that benchmarks build row by row are those of a store."""

import asyncio

import pytest

from lab.benchmarks import index_large, index_million

OBJECTS = 300


@pytest.mark.parametrize("benchmark", [index_million, index_large], ids=["million", "large"])
def test_a_store_finds_what_a_benchmark_built(benchmark, tmp_path, monkeypatch):
    """Rule: look-ups, recovery and evictions of a built index work; a benchmark that the index has left behind fails here."""
    monkeypatch.setattr(benchmark, "LOOKUPS", 100)
    root = tmp_path / "cache"
    root.mkdir()
    benchmark.build(str(root), OBJECTS)
    asyncio.run(benchmark.measure(str(root), OBJECTS))
