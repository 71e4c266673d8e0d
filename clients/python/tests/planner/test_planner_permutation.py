"""The permutation of the items before they are cut into chunks, as the client computes it."""

import json
from pathlib import Path

import numpy as np
import pytest

from larder.planner import Layout
from larder.planner.permutation import ItemPermutation

VECTORS = json.loads((Path(__file__).parents[1] / "wire" / "item_order.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cuts"], ids=lambda case: f"{case['items']} items")
def test_items_are_at_the_slots_of_the_golden_vectors(case):
    """Rule: the client permutes as the gateways do, up to the largest dataset."""
    permutation = ItemPermutation(case["items"], int(case["dataset"][:16], 16))
    assert permutation.items_at(np.array(case["slots"], np.uint32)).tolist() == case["items_at"]


@pytest.mark.parametrize(
    "case", [case for case in VECTORS["cuts"] if case["items"] < 2000], ids=lambda case: f"{case['items']} items"
)
def test_items_are_in_the_chunks_of_the_golden_vectors(case):
    """Rule: the client cuts as the gateways do."""
    layout = Layout(case["items"], case["partitions"], case["units"], "striped", int(case["dataset"][:16], 16))
    chunk_of = {int(item): number for number in range(case["units"]) for item in layout.stripe(number)}
    assert [chunk_of[item] for item in case["items_at"]] == case["chunks"]


@pytest.mark.parametrize("items", [0, 1, 2, 3, 10, 1003, 200_000])
def test_it_is_a_permutation(items):
    """Rule: each item is at one slot."""
    found = ItemPermutation(items, 7).items_at(np.arange(items, dtype=np.uint32))
    assert np.array_equal(np.sort(found), np.arange(items))


def test_datasets_differ():
    """Rule: the dataset's id decides."""
    slots = np.arange(1000, dtype=np.uint32)
    assert not np.array_equal(ItemPermutation(1000, 1).items_at(slots), ItemPermutation(1000, 2).items_at(slots))
