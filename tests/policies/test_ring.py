"""The ring: homes of keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gateway.policies.fleet.ring import RING, Ring, item_key, path_key
from tests.effort import examples

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "wire" / "ring.json").read_text())
KEYS: NDArray[np.uint64] = np.random.Generator(np.random.PCG64(7)).integers(0, 2**64, size=100_000, dtype=np.uint64)
NAMES = st.text("abcdefghijklmnopqrstuvwxyzABC019._-", min_size=1, max_size=12)
FLEETS = st.dictionaries(NAMES, st.integers(1, 2**60), min_size=1, max_size=12)
SEVERAL = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40)


def owners(ring: Ring, keys: NDArray[np.uint64] = KEYS) -> NDArray[np.object_]:
    """The homes of keys by name."""
    names: NDArray[np.object_] = np.array(ring.ids, dtype=object)[ring.homes(keys)]
    return names


@pytest.mark.parametrize("fleet", VECTORS["fleets"], ids=lambda fleet: fleet["name"])
def test_homes_are_those_of_the_golden_vectors(fleet: dict[str, Any]) -> None:
    """Rule: gateways and clients, which share no code, compute the same homes."""
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


def test_the_home_of_a_key_is_the_best_node_however_often_it_is_asked() -> None:
    """Rule: ``home`` is the first of ``ranked``, also when it is remembered, and ``None`` in an empty ring."""
    ring = Ring({"a": 1, "b": 2, "c": 3})
    assert [ring.home(key) for key in [*range(100), *range(100)]] == [
        ring.ranked(key % 100, 1)[0] for key in range(200)
    ]
    assert Ring({}).home(1) is None


@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 7), (5, 5, 5, 5, 1), (10**12, 3 * 10**12, 8 * 10**12)])
def test_nodes_are_home_of_their_capacitys_share(weights: tuple[int, ...]) -> None:
    """Rule: of many keys each node gets its capacity's share, within five standard deviations."""
    ring = Ring({f"node-{number}": weight for number, weight in enumerate(weights)})
    counts = np.bincount(ring.homes(KEYS), minlength=len(weights))
    shares = np.array(weights) / sum(weights)
    deviations = np.sqrt(len(KEYS) * shares * (1 - shares))
    assert (np.abs(counts - len(KEYS) * shares) < 5 * deviations).all()


def test_a_node_that_joins_takes_its_share_and_moves_nothing_else() -> None:
    """Rule: every key whose home changes is at home at the new node."""
    before = Ring({"a": 2, "b": 3, "c": 4})
    after = Ring({"a": 2, "b": 3, "c": 4, "new": 3})
    moved = owners(before) != owners(after)
    assert set(owners(after)[moved]) == {"new"}
    assert abs(moved.mean() - 3 / 12) < 0.01


def test_a_node_that_leaves_gives_away_its_keys_only() -> None:
    """Rule: keys of the others stay, and its own are spread over all of them."""
    before = Ring({"a": 2, "b": 3, "c": 4, "old": 3})
    after = Ring({"a": 2, "b": 3, "c": 4})
    moved = owners(before) != owners(after)
    assert set(owners(before)[moved]) == {"old"}
    assert set(owners(after)[moved]) == {"a", "b", "c"}


@given(FLEETS, SEVERAL)
@settings(max_examples=examples(60))
def test_to_leave_a_node_out_is_a_ring_without_it(fleet: dict[str, int], keys: list[int]) -> None:
    """Rule: homes "without" some nodes are those of a ring without them."""
    gone = sorted(fleet)[::2]
    smaller = Ring({name: weight for name, weight in fleet.items() if name not in gone})
    ring = Ring(fleet)
    numbers = ring.homes(np.array(keys, np.uint64), without=gone)
    names = [ring.ids[number] if number >= 0 else None for number in numbers]
    others = smaller.homes(np.array(keys, np.uint64))
    assert names == [smaller.ids[number] if number >= 0 else None for number in others]
    assert all(ring.ranked(key, 3, without=gone) == smaller.ranked(key, 3) for key in keys)


@given(FLEETS, SEVERAL)
@settings(max_examples=examples(60))
def test_the_next_in_the_ranking_is_home_when_the_first_is_gone(fleet: dict[str, int], keys: list[int]) -> None:
    """Rule: a ranking is the homes of ever smaller rings, and holds every node once."""
    ring = Ring(fleet)
    for key in keys:
        ranked = ring.ranked(key, len(fleet))
        assert sorted(ranked) == sorted(fleet)
        for place, name in enumerate(ranked):
            number = ring.homes(np.array([key], np.uint64), without=ranked[:place])[0]
            assert ring.ids[number] == name


def test_the_order_in_which_nodes_are_named_does_not_matter() -> None:
    """Rule: the same nodes make the same ring, in any order."""
    fleet = {"b": 3, "a": 5, "C": 1}
    ring, same = Ring(fleet), Ring(dict(sorted(fleet.items())))
    assert ring.ids == same.ids == ("C", "a", "b")
    assert (ring.homes(KEYS) == same.homes(KEYS)).all()


def test_many_keys_have_the_homes_of_each() -> None:
    """Rule: looking up many keys at once gives the homes of the single look-ups."""
    ring = Ring({"a": 2, "b": 3, "c": 4})
    singly = [ring.ids.index(ring.ranked(int(key), 1)[0]) for key in KEYS[8000:8400]]
    assert ring.homes(KEYS)[8000:8400].tolist() == singly


def test_without_nodes_nobody_is_home() -> None:
    """Rule: -1 for every key, and an empty ranking."""
    ring = Ring({})
    assert ring.homes(KEYS[:3]).tolist() == [-1, -1, -1]
    assert ring.ranked(1, 3) == []
    assert Ring({"a": 1}).homes(KEYS[:2], without=["a"]).tolist() == [-1, -1]


def test_keys_are_not_changed() -> None:
    """Rule: the caller's array is not modified."""
    keys = KEYS[:100].copy()
    Ring({"a": 1, "b": 1}).homes(keys)
    assert (keys == KEYS[:100]).all()


@pytest.mark.parametrize("weight", [0, -1])
def test_a_node_has_a_capacity(weight: int) -> None:
    """Rule: a node without capacity is home of no key."""
    with pytest.raises(ValueError, match="capacity"):
        Ring({"a": weight})
