"""Homes of keys in a fleet, as the client computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larder.base.ring import RING, Ring, item_key, path_key

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "wire" / "ring.json").read_text())


@pytest.mark.parametrize("fleet", VECTORS["fleets"], ids=lambda fleet: fleet["name"])
def test_homes_are_those_of_the_golden_vectors(fleet: dict[str, Any]) -> None:
    """Rule: the client computes the homes that the gateways compute."""
    ring = Ring(fleet["nodes"])
    keys = [int(home["key"]) for home in fleet["homes"]]
    wanted = [home["ranked"] for home in fleet["homes"]]
    assert [ring.ranked(key, 3) for key in keys] == wanted
    assert [ring.ids[number] for number in ring.homes(np.array(keys, np.uint64))] == [names[0] for names in wanted]


def test_keys_are_those_of_the_golden_vectors() -> None:
    """Rule: an item's key comes from its digest, an object's from its bucket and key."""
    assert VECTORS["ring"] == RING
    for item in VECTORS["item_keys"]:
        assert item_key(bytes.fromhex(item["digest"])) == int(item["key"])
    for place in VECTORS["path_keys"]:
        assert path_key(place["bucket"], place["key"]) == int(place["ring_key"])


def test_without_nodes_nobody_is_home() -> None:
    """Rule: -1 for every key, and an empty ranking."""
    keys = np.arange(3, dtype=np.uint64)
    assert Ring({}).homes(keys).tolist() == [-1, -1, -1]
    assert Ring({"a": 1}).homes(keys, without=["a"]).tolist() == [-1, -1, -1]
    assert Ring({}).ranked(1, 2) == []


def test_a_node_that_is_left_out_gives_its_keys_to_the_next() -> None:
    """Rule: the rest of the keys stay where they are."""
    ring = Ring({"a": 2, "b": 3, "c": 4})
    keys = np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    before, after = ring.homes(keys), ring.homes(keys, without=["b"])
    assert set(after[before == 1].tolist()) == {0, 2}
    assert (after[before != 1] == before[before != 1]).all()


def test_a_node_has_a_capacity() -> None:
    """Rule: a node without capacity is home of no key."""
    with pytest.raises(ValueError, match="capacity"):
        Ring({"a": 0})
