"""The memory of items."""

import numpy as np

from larder.buffers import SIZE, Space


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
