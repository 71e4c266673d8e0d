"""Items of an object that are read by one request: each in one run, within the bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.runs import EDGE, FRAME, STRETCH, WASTE, ByteSpan, runs_of, with_edges

KIB = 1024
SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 2 * STRETCH))
GAPS = st.one_of(st.just(0), st.integers(-3000, 3000), st.integers(0, STRETCH))


@st.composite
def placed(draw: st.DrawFn) -> dict[int, ByteSpan]:
    """Items of an object, numbered in any order; neighbours may overlap."""
    spans: list[ByteSpan] = []
    end = draw(st.integers(0, STRETCH))
    for gap, size in draw(st.lists(st.tuples(GAPS, SIZES), min_size=1, max_size=30)):
        start = max(0, end + gap)
        spans.append(ByteSpan(start, start + size))
        end = start + size
    return dict(zip(draw(st.permutations(range(len(spans)))), spans, strict=True))


def adjacent(count: int, size: int, gap: int = 0) -> dict[int, ByteSpan]:
    """Items of one size, from the beginning of an object on."""
    return {number: ByteSpan(start := number * (size + gap), start + size) for number in range(count)}


@given(placed())
def test_every_item_is_in_one_run(spans: dict[int, ByteSpan]) -> None:
    """Rule: each item is in exactly one run, in the order of places, and no two of a run overlap."""
    runs = runs_of(spans)
    assert sorted(item for run in runs for item in run) == sorted(spans)
    for run in runs:
        places = [spans[item] for item in run]
        assert all(one.stop <= other.start for one, other in pairwise(places))


@given(placed())
def test_a_run_is_bounded(spans: dict[int, ByteSpan]) -> None:
    """Rule: its items begin in one stretch; what it reads beside them is ``WASTE`` of them, and ``FRAME`` for each gap."""
    for run in runs_of(spans):
        first, last = spans[run[0]], spans[run[-1]]
        size = sum(spans[item].size for item in run)
        assert first.start // STRETCH == last.start // STRETCH
        assert last.stop - first.start <= (1 + WASTE) * size + FRAME * (len(run) - 1)
        assert len(run) == 1 or all(spans[item].size < STRETCH for item in run)


@given(st.integers(1, 64 * KIB), st.integers(1, 300), st.integers(0, FRAME))
def test_a_whole_object_costs_a_run_per_stretch(size: int, count: int, gap: int) -> None:
    """Rule: items behind each other, or with the frame of a TAR between them, are one run for each stretch that they begin in."""
    spans = adjacent(count, size, gap)
    assert len(runs_of(spans)) == len({span.start // STRETCH for span in spans.values()})


def test_far_items_are_alone() -> None:
    """Rule: items with more than a frame between them, and more than ``WASTE`` of their bytes, are read by themselves."""
    assert runs_of(adjacent(5, 8000, FRAME + 1)) == [[0], [1], [2], [3], [4]]
    assert runs_of(adjacent(3, 100 * KIB, 4 * KIB)) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("span", "before", "last", "edges"),
    [
        ((512, 9000), 0, False, (0, 9000)),
        ((9512, 20_000), 9000, False, (9000, 20_000)),
        ((9000 + FRAME + 1, 20_000), 9000, False, (9000 + FRAME + 1, 20_000)),
        ((9512, 20_000), 10_000, False, (9512, 20_000)),
        ((0, 20_000), 0, True, (0, 21_000)),
        ((0, STRETCH), 0, True, (0, STRETCH + EDGE)),
    ],
)
def test_the_edges_of_an_object(span: tuple[int, int], before: int, last: bool, edges: tuple[int, int]) -> None:
    """Rule: a run has the frame before its first item, and the end of its object if that is little beside the object."""
    assert with_edges(ByteSpan(*span), before, last=last) == ByteSpan(*edges)
