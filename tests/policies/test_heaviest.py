"""The most frequent keys of a stream, in fixed space."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.health.heaviest import Heaviest


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(1, 8))
def test_frequent_keys_are_found_and_no_count_is_too_high(stream: list[int], most: int) -> None:
    """Rule: every key with more than 1/(most + 1) of the stream is kept, with a bound on its uncounted additions."""
    heaviest: Heaviest[int] = Heaviest(most)
    for key in stream:
        heaviest.add(key, 10)
    assert len(heaviest) <= 2 * most
    truth = Counter(stream)
    found = {each.key: each for each in heaviest.top(2 * most)}
    assert {key for key, count in truth.items() if count * (most + 1) > len(stream)} <= set(found)
    for key, each in found.items():
        assert each.seen <= truth[key] <= each.seen + each.unseen
        assert each.unseen * (most + 1) <= len(stream)
        assert each.size == 10 * each.seen


def test_the_most_frequent_come_first() -> None:
    """Rule: the requested number of keys is returned in descending order."""
    heaviest: Heaviest[str] = Heaviest(4)
    for key in "abbccc":
        heaviest.add(key)
    assert [(each.key, each.seen) for each in heaviest.top(2)] == [("c", 3), ("b", 2)]
