"""Gateway and client have a ring each, and must agree about every key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.fleet import ring as ours
from larder.base import ring as theirs

NAMES = st.text("abcdefghijklmnopqrstuvwxyzABC019._-", min_size=1, max_size=12)
FLEETS = st.dictionaries(NAMES, st.integers(1, 2**60), max_size=12)


@given(FLEETS, st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_both_sides_compute_the_same_homes(fleet: dict[str, int], keys: list[int]) -> None:
    """Rule: for any nodes and any keys, homes and rankings of gateway and client are equal."""
    one, other = ours.Ring(fleet), theirs.Ring(fleet)
    gone = sorted(fleet)[1::3]
    array = np.array(keys, np.uint64)
    assert one.ids == other.ids
    assert one.homes(array).tolist() == other.homes(array).tolist()
    assert one.homes(array, gone).tolist() == other.homes(array, gone).tolist()
    assert [one.ranked(key, 3, gone) for key in keys] == [other.ranked(key, 3, gone) for key in keys]


def test_both_sides_have_the_same_version() -> None:
    """Rule: a client that does not know the version that a fleet names leaves the choice to the gateways."""
    assert ours.RING == theirs.RING
