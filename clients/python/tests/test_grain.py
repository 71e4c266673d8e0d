"""The data source for Grain, with a dataset in memory in the gateway's place."""

import pickle

import numpy as np
import pytest

import larder
from larder.grain import CachedSource
from larder.reading.frames import MISSING
from larder.testing import MemorySource

ENDPOINT = "http://127.0.0.1:9"


def source_of(**memory):
    """A source of ten items, and the indices of its requests."""
    requests = []
    memory = MemorySource(10, before=lambda indices: requests.append(indices.tolist()), **memory)
    return CachedSource(ENDPOINT, "train", source=memory), requests


def test_a_batch_of_indices_is_one_request():
    """Elements come in the order of the indices, repeated ones too, whatever holds the indices."""
    source, requests = source_of()
    assert source.read(np.array([7, 2, 7])) == [b"7", b"2", b"7"]
    assert source.read([]) == []
    assert requests == [[7, 2, 7]]


def test_a_sequence():
    """Length, single items, and negative indices are those of a sequence."""
    source, _ = source_of()
    assert (len(source), source[3], source[-1], source[np.int64(0)]) == (10, b"3", b"9", b"0")
    for index in (10, -11):
        with pytest.raises(IndexError, match=f"item {index} of a dataset of 10"):
            source[index]
    with pytest.raises(IndexError, match="item 10 of"):
        source.read([1, 10])


def test_a_transform_sees_items():
    """With ``keys`` an item knows its object."""
    source = CachedSource(
        ENDPOINT, "train", source=MemorySource(10), keys=True, transform=lambda item: (item.key, item.index)
    )
    assert source.read([4, 1]) == [("item-4", 4), ("item-1", 1)]


def test_an_unavailable_item_is_an_error():
    """Grain has no place for a batch with fewer elements."""
    source, _ = source_of(failures={3: MISSING})
    with pytest.raises(larder.ItemMissing):
        source.read([1, 3])


def test_a_copy_is_the_same_source():
    """Worker processes get a pickled one, and a restored state is compared by the text."""
    source, _ = CachedSource(ENDPOINT, "train", source=MemorySource(10)), None
    copy = pickle.loads(pickle.dumps(source))
    assert (repr(copy), copy.read([5])) == (repr(source), [b"5"])


def test_wrong_options():
    """An option that there is not is refused by its name, and so is a mixture."""
    with pytest.raises(TypeError, match="batch_size"):
        CachedSource(ENDPOINT, "train", batch_size=3)
    with pytest.raises((TypeError, ValueError), match="CachedSource"):
        CachedSource(ENDPOINT, larder.Mix({"a": 1.0, "b": 1.0}))
