"""Assignment of items to chunks: identical in gateways and clients, and a fair sample of sorted data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.datasets import MOST_UNITS, PARTITIONS
from gateway.policies.space.chunk_cut import SAMPLE, ChunkCut, ItemPermutation, fullest_chunk, unit_starts
from larder.planner import Layout

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "wire" / "item_order.json").read_text())
SEED = 0x9F86D081884C7D65
DATASET = f"{SEED:016x}" + "0" * 48


@pytest.mark.parametrize("case", VECTORS["cuts"], ids=lambda case: f"{case['items']} items")
def test_chunks_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    """Rule: slots, items and chunks are the same in every version, on every node and in every client."""
    permutation = ItemPermutation(case["items"], int(case["dataset"][:16], 16))
    slots, items = np.array(case["slots"], np.uint32), np.array(case["items_at"], np.uint32)
    assert permutation.items_at(slots).tolist() == case["items_at"]
    assert permutation.slots_of(items).tolist() == case["slots"]
    assert [permutation.slot_of(item) for item in case["items_at"]] == case["slots"]
    cut = ChunkCut(case["dataset"], case["items"], case["partitions"], case["units"])
    assert cut.chunks_of(items).tolist() == case["chunks"]
    assert [cut.chunk_of(item) for item in case["items_at"]] == case["chunks"]


@given(st.integers(0, 5000), st.integers(1, 30), st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_gateway_and_client_cut_alike(items: int, partitions: int, units: int, seed: int) -> None:
    """Rule: gateway and client cut the same chunks, also of fewer items than units."""
    layout = Layout(items, partitions, units, "striped", seed)
    cut = ChunkCut(f"{seed:016x}" + "f" * 48, items, partitions, units)
    for unit in {0, units // 2, units - 1}:
        assert cut.items_of(unit).tolist() == layout.stripe(unit).tolist()
        assert set(cut.chunks_of(cut.items_of(unit)).tolist()) <= {unit}


@given(st.integers(1, 2**32 - 1))
def test_the_cut_of_a_huge_dataset_does_not_overflow(items: int) -> None:
    """Rule: 2**32 items in 10,000 units are within 64 bits."""
    starts = unit_starts(items, PARTITIONS, MOST_UNITS)
    assert starts[0] == 0
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] <= items


def test_a_chunk_that_does_not_exist_has_no_items() -> None:
    """Rule: a chunk of an older cut, which a plan may name, has no items."""
    assert ChunkCut(DATASET, 100, 1, 5).items_of(5).tolist() == []


@given(st.binary(min_size=1, max_size=50), st.integers(1, 5), st.integers(1, 12))
def test_the_fullest_chunk_has_as_many_resident_items_as_any(bits: bytes, partitions: int, units: int) -> None:
    """Rule: no chunk has more resident items than the one returned; it is -1 when no item is resident."""
    resident = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(bool)
    layout = Layout(len(resident), partitions, units, "striped", SEED)
    counts = [int(resident[layout.stripe(unit)].sum()) for unit in range(units)]
    chunk = fullest_chunk(np.flatnonzero(resident), ChunkCut(DATASET, len(resident), partitions, units))
    if not any(counts):
        assert chunk == -1
    else:
        assert counts[chunk] == max(counts)


def test_the_fullest_chunk_of_many_items_is_found_in_a_sample() -> None:
    """Rule: a request waits for the answer, so its cost has a bound."""
    cut = ChunkCut(DATASET, 20 * SAMPLE, 10, 10)
    resident = np.sort(np.concatenate([cut.items_of(3), cut.items_of(7)[: SAMPLE // 2]]))
    assert fullest_chunk(resident, cut) == 3


@given(st.integers(0, 500), st.integers(2, 4), st.integers(1, 10), st.integers(1, 12))
def test_members_of_a_sample_are_in_one_chunk(samples: int, members: int, partitions: int, units: int) -> None:
    """Rule: samples are cut as in the client, and all items of a sample are in one chunk."""
    cut = ChunkCut(DATASET, samples * members, partitions, units, members)
    layout = Layout(samples, partitions, units, "striped", SEED)
    for unit in range(units):
        items = [sample * members + member for sample in layout.stripe(unit).tolist() for member in range(members)]
        assert cut.items_of(unit).tolist() == items
        assert set(cut.chunks_of(np.array(items, np.uint32)).tolist()) <= {unit}
        assert {cut.chunk_of(item) for item in items[: 2 * members]} <= {unit}
