"""The format of elements: storable values survive the round trip, others are refused, and invalid bytes are detected."""

import enum
import threading
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from larder.base.errors import ElementDamaged, ElementUnstorable
from larder.pipelines import elements
from larder.pipelines.elements import ALIGNMENT, DEEPEST, DROPPED, Encoded, decode, encode

KEYS = st.none() | st.booleans() | st.integers() | st.text()
LEAVES = (
    KEYS
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.binary(max_size=200)
    | arrays.arrays(
        arrays.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufcSUmM" and "generic" not in str(dtype)),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
ELEMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one, other):
    """Equal in value and in every type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other


@given(ELEMENTS, st.booleans())
def test_an_element_comes_back_as_it_was(value, copy):
    """Values, types, shapes and the order of keys survive, with copies and with views."""
    assert same(decode(encode(value), copy=copy), value)


@given(ELEMENTS)
def test_the_size_is_known_before_anything_is_copied(value):
    """``size`` is the sum of the buffers."""
    encoded = Encoded(value)
    assert encoded.size == sum(len(memoryview(piece).cast("B")) for piece in encoded.buffers()) == len(encode(value))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: b"LRE1" + data))
def test_any_bytes_are_an_element_or_refused(data):
    """No input makes the reader raise anything but `ElementDamaged`."""
    try:
        decode(data)
    except ElementDamaged:
        return


@given(ELEMENTS, st.data())
@example({"a": np.arange(3)}, None)
def test_a_damaged_element_is_an_element_or_refused(value, data):
    """Flipped bits and cut ends give another element or `ElementDamaged`, and never an array larger than the bytes."""
    damaged = bytearray(encode(value))
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        decode(bytes(damaged))
    except ElementDamaged:
        return


def test_arrays_are_aligned():
    """Data begins at multiples of a cache line, so that views can be computed with at full speed."""
    for array in decode(encode([np.arange(3), b"x", np.arange(5.0)]), copy=False)[::2]:
        assert array.ctypes.data % 8 == 0
    encoded = Encoded([b"x", b"y"])
    assert encoded.size == 2 * ALIGNMENT + 1


def test_views_share_memory_and_copies_do_not():
    """Without a copy, an array is a view of the bytes; with one it owns its memory."""
    data = bytearray(encode(np.arange(4)))
    assert not decode(data, copy=False).flags.owndata
    copied = decode(data)
    data[:] = bytes(len(data))
    assert copied.tolist() == [0, 1, 2, 3]


def test_what_a_filter_dropped_is_an_element():
    """``DROPPED`` is a singleton that survives encoding."""
    assert decode(encode(DROPPED)) is DROPPED


class Colour(enum.IntEnum):
    """A whole number that is more than that."""

    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, threading.Lock()]}, r"the element\['a'\]\[1\] is a _thread\.lock; elements are numbers"),
        (Colour.RED, "Colour; make a plain tuple, list, dict, string or number of it"),
        ([Point(1, 2)], r"the element\[0\] is a .*Point; make a plain tuple"),
        (np.array([object()]), "an array of object; arrays are of numbers"),
        (np.zeros(2, [("a", "i4")]), "arrays are of numbers"),
        ({(1, 2): 3}, r"the key \(1, 2\); keys are strings"),
        (np.ma.masked_array([1]), r"make an array of it \(numpy\.asarray\)"),
        (1 << 2048, "too large for an element"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value, message):
    """The message has the place in the element, and the types to return instead."""
    with pytest.raises(ElementUnstorable, match=message):
        encode(value)


def test_deep_nesting_is_refused_by_both_sides():
    """A limit of depth keeps a reader from overflowing its stack."""
    deep = []
    for _ in range(DEEPEST + 1):
        deep = [deep]
    with pytest.raises(ElementUnstorable, match="deeper than 64"):
        encode(deep)
    lists = b"\x08\x01\x00\x00\x00" * 10_000 + b"\x00"
    with pytest.raises(ElementDamaged, match="deeper than 64"):
        decode(b"LRE1" + len(lists).to_bytes(4, "little") + lists)


@pytest.mark.parametrize("tree", [b"\x08\xff\xff\xff\xff", b"\x0a\xff\xff\xff\xff", b"\x06\xff\xff\xff\xff"])
def test_a_count_is_not_believed(tree):
    """A list, dict or string of four billion members in five bytes is refused before any allocation."""
    with pytest.raises(ElementDamaged, match="cut off"):
        decode(b"LRE1" + len(tree).to_bytes(4, "little") + tree)


def test_two_elements_are_not_one():
    """Bytes after an element are not passed over."""
    with pytest.raises(ElementDamaged, match="more than one element"):
        decode(encode(1) + encode(2))


def test_an_element_has_a_bounded_number_of_values(monkeypatch):
    """Rule: a byte of an element can become an object of a hundred; the writer says what to do instead."""
    whole = encode([[1, 2], {"a": 3}])
    monkeypatch.setattr(elements, "MOST_VALUES", 5)
    with pytest.raises(ElementDamaged, match="more than 5 values"):
        decode(whole)
    with pytest.raises(ElementUnstorable, match="make arrays"):
        encode([[1, 2], {"a": 3}])
    assert decode(encode([1, 2, 3, 4])) == [1, 2, 3, 4]


def test_a_bomb_of_nothing_is_refused():
    """Rule: a short element does not become gigabytes: its tree of a few million bytes is not read to its end."""
    count = elements.MOST_VALUES + 1
    tree = bytes([8]) + count.to_bytes(4, "little") + bytes(count)
    with pytest.raises(ElementDamaged, match="values"):
        decode(b"LRE1" + len(tree).to_bytes(4, "little") + tree)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0, 2**62), (2**63 - 1, 0)])
def test_an_empty_array_of_an_impossible_shape_is_damaged(shape):
    """Rule: the shape of an array without data is bounded too."""
    dimensions = b"".join(size.to_bytes(8, "little") for size in shape)
    tree = bytes([11, 3]) + b"<f8" + bytes([len(shape)]) + dimensions
    with pytest.raises(ElementDamaged):
        decode(b"LRE1" + len(tree).to_bytes(4, "little") + tree)
