"""The trainer's part: batches of the planned sizes, and a shuffle that a resume does not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larder.base.errors import PipelineError
from larder.pipelines.stream import BatchSizes, Piece, batched, shuffled, stack


def pieces_of(values):
    """Elements of these values."""
    return [Piece(value, [value], [value]) for value in values]


def planned(count, ends, sizes, lost=()):
    """Elements of a plan whose batches end with ``ends``, without the lost ones."""
    for number in range(count):
        gone = number in lost
        sizes.count(ends_batch=number in ends, lost=int(gone), kept=int(not gone))
        if not gone:
            yield from pieces_of([number])


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 60))
def test_a_shuffle_goes_on_where_it_was(count, size, stopped):
    """After a resume, the elements that are left come in the order in which they would have come."""
    whole = [piece.value for piece in shuffled(pieces_of(range(count)), size, 1, 2, 0)]
    assert sorted(whole) == list(range(count))
    done = set(whole[:stopped])
    left = pieces_of([value for value in range(count) if value not in done])
    assert [piece.value for piece in shuffled(left, size, 1, 2, len(done))] == whole[stopped:]


def test_a_shuffle_differs_by_epoch_and_seed():
    """The order is a function of seed and epoch."""
    orders = {
        tuple(piece.value for piece in shuffled(pieces_of(range(50)), 20, seed, epoch, 0))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_batches_have_the_sizes_of_the_plan():
    """A plan may split its last batch, so that a rank with one element less has as many batches as the others."""
    sizes = BatchSizes(4)
    made = [batch.value for batch in batched(planned(10, (3, 7, 8, 9), sizes), sizes, list)]
    assert made == [[0, 1, 2, 3], [4, 5, 6, 7], [8], [9]]


@pytest.mark.parametrize(("tail", "last"), [("short", [[8, 9]]), ("drop", []), ("pad", [[8, 9, 8, 9]])])
def test_with_a_filter_all_batches_but_the_last_are_full(tail, last):
    """Of a single rank, the rest is delivered, dropped or filled up."""
    sizes = BatchSizes(4, tail, filtered=True)
    made = [batch.value for batch in batched(pieces_of(range(10)), sizes, list)]
    assert made == [[0, 1, 2, 3], [4, 5, 6, 7], *last]


@pytest.mark.parametrize(
    ("tail", "lost", "made"),
    [
        ("short", {3, 4}, [[0, 1, 2], [5, 6, 7], [8, 9]]),
        ("short", {0, 1, 2, 3}, [[4], [4, 5, 6, 7], [8, 9]]),
        ("short", {4, 5, 6, 7, 8, 9}, [[0, 1, 2, 3], [3], [3]]),
        ("drop", {3, 5}, [[0, 1, 2, 0], [4, 6, 7, 4], [8, 9, 8, 9]]),
        ("pad", {4, 5, 6, 7}, [[0, 1, 2, 3], [0, 1, 2, 3], [8, 9, 8, 9]]),
    ],
)
def test_ranks_keep_the_batches_of_the_plan(tail, lost, made):
    """Of several ranks, elements that are left out change no number of batches; repetitions replace them where they must."""
    sizes = BatchSizes(4, tail, filtered=True, together=True)
    batches = list(batched(planned(10, (3, 7, 9), sizes, lost), sizes, list))
    assert [batch.value for batch in batches] == made
    assert sorted(place for batch in batches for place in batch.places) == sorted(set(range(10)) - lost)
    assert sum(batch.empty for batch in batches) == len(lost)


def test_a_rank_without_any_element_is_an_error():
    """Other ranks would wait for its batches."""
    sizes = BatchSizes(4, filtered=True, together=True)
    with pytest.raises(PipelineError, match="no element of this rank's share is left"):
        list(batched(planned(10, (3, 7, 9), sizes, set(range(10))), sizes, list))


def test_elements_are_stacked_by_member():
    """Arrays, numbers, text, dicts, tuples and lists."""
    batch = stack(
        [{"x": np.arange(2), "y": (1, "a"), "z": [1.5, None]}, {"x": np.arange(2), "y": (2, "b"), "z": [2.5, None]}]
    )
    assert batch["x"].tolist() == [[0, 1], [0, 1]]
    assert batch["y"][0].tolist() == [1, 2]
    assert batch["y"][1] == ["a", "b"]
    assert batch["z"][0].tolist() == [1.5, 2.5]
    assert batch["z"][1] == [None, None]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], r"the element\['x'\] has different shapes: \(2,\), \(3,\)"),
        ([{"x": 1}, {"y": 1}], "the element has different keys"),
        ([(1, 2), (1,)], r"the element has different lengths: \[1, 2\]"),
        ([1, "a"], "the element has several types: int, str"),
    ],
)
def test_elements_that_do_not_fit_together_are_named(elements, message):
    """The error names the items and the member."""
    pieces = [Piece(value, [number], [number]) for number, value in enumerate(elements)]
    with pytest.raises(PipelineError, match=f"items 0, 1 do not make a batch: ValueError: {message}"):
        list(batched(pieces, BatchSizes(2, filtered=True), stack))
