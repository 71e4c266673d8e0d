"""The memory of items."""

import pickle
import tracemalloc

import numpy as np

from larder.base.buffers import SIZE, Buffers, Space

LARGE = SIZE // 2


def address(view):
    """The memory address of a view's bytes."""
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def test_items_lie_side_by_side():
    """Rule: items share a buffer of the expected bytes; one that does not fit begins another, and a large item has its own."""
    made = []

    def allocate(size):
        made.append(size)
        return memoryview(bytearray(size))

    space = Space(allocate)
    space.expected = 300
    places = [*space.places([100, 0]), *space.places([200])]
    assert (made, [len(place) for place in places]) == ([300], [100, 0, 200])
    assert address(places[2]) - address(places[0]) == 100
    space.expected = 2 * SIZE
    assert [len(place) for place in space.places([10, SIZE + 1])] == [10, SIZE + 1]
    assert made == [300, SIZE, SIZE + 1]


def test_a_large_buffer_is_used_again_when_nothing_refers_to_it():
    """Rule: the memory of a buffer is lent again after the last view of its bytes is gone, and not before."""
    buffers = Buffers()
    first = buffers.borrow(LARGE)
    where, part = address(first), np.frombuffer(first[10:20], np.uint8)
    del first
    second = buffers.borrow(LARGE)
    assert address(second) != where
    del part
    assert address(buffers.borrow(SIZE)) == where


def test_a_buffer_has_the_requested_bytes():
    """Rule: a buffer is as long as requested, whatever memory it is made of."""
    buffers = Buffers()
    assert [len(buffers.borrow(size)) for size in (0, 1, LARGE, LARGE - 1, SIZE, SIZE + 1)] == [
        0, 1, LARGE, LARGE - 1, SIZE, SIZE + 1,
    ]  # fmt: skip


def test_large_buffers_begin_with_a_huge_page():
    """Rule: the system can give huge pages to all of a large buffer."""
    assert address(Buffers().borrow(LARGE)) % (2 << 20) == 0


def test_free_memory_is_bounded():
    """Rule: a reader keeps half a gibibyte, however many buffers were in use at once."""
    buffers = Buffers()
    tracemalloc.start()
    try:
        lent = [buffers.borrow(SIZE) for _ in range(20)]
        before = tracemalloc.get_traced_memory()[0]
        lent.clear()
        freed = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert freed // SIZE == 20 - 16


def test_free_memory_is_not_pickled():
    """Rule: a pickle of a reader has none of its memory."""
    buffers = Buffers()
    buffers.borrow(LARGE)
    assert len(pickle.dumps(buffers)) < 1000
    assert len(pickle.loads(pickle.dumps(buffers)).borrow(LARGE)) == LARGE
