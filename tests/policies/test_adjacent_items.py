"""Items of an object that are read by one request: each in one run, within the bounds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.runs import FRAME, STRETCH, WASTE, ByteSpan, runs_of

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
