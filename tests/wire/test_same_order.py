"""Gateway and client compute the orders of epochs alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.reader import read_order
from gateway.policies.items.epoch_order import positions_of
from larder.planner import EpochOrder, Layout


@given(
    st.integers(0, 300),
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**63),
    st.sampled_from(["shuffled", "sequential"]),
)
def test_both_sides_compute_the_same_order(items: int, seed: int, epoch: int, kind: str) -> None:
    """Rule: the gateway's positions are those of the order that the loader follows, for any seed and epoch."""
    order = EpochOrder(Layout(items, kind=kind), seed=seed, epoch=epoch)
    assert read_order(order.name) == order.name
    assert positions_of(order.name, items, epoch)[order.items(0, items)].tolist() == list(range(items))


def test_an_order_of_which_the_gateway_has_no_formula_has_no_name() -> None:
    """Rule: a job that follows batches of one stretch is treated like one without an order."""
    assert EpochOrder(Layout(10), seed=0, epoch=0, group="unit").name == ""


@pytest.mark.parametrize("name", ["", "shuffled", "shuffled:", "shuffled:x", "unit:1", "shuffled:" + 41 * "1"])
def test_what_is_no_order_is_ignored(name: str) -> None:
    """Rule: a name that this version does not know is a hint that it does without."""
    assert read_order(name) == ""
    with pytest.raises(ValueError, match="order must be"):
        positions_of(name, 10, 0)


def test_positions_are_a_permutation_of_a_large_dataset_too() -> None:
    """Rule: each position once."""
    assert np.array_equal(np.sort(positions_of("shuffled:1", 100_000, 3)), np.arange(100_000))
