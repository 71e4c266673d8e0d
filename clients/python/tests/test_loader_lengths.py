"""Batches by length in a loader: where lengths come from, and what they must fit."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest

import larder
from larder.reading.mixing import Mix, MixedSource
from larder.reading.source import GatewaySource
from larder.testing import MemorySource

ENDPOINT = "http://127.0.0.1:9"
TEXTS = [
    b"%04d" % number + b"x" * int(length)
    for number, length in enumerate(np.random.default_rng(1).integers(0, 900, 600))
]


def loader_of(lengths, **options):
    """A loader of texts that are all cached."""
    source = options.pop("source", None) or MemorySource(TEXTS, cached=1)
    return larder.Loader(
        ENDPOINT, options.pop("dataset", "texts"), batch_size=4, lengths=lengths, source=source, **options
    )


def spread(batches):
    """The mean difference between the longest and the shortest item of a batch."""
    return np.mean([max(map(len, batch.data)) - min(map(len, batch.data)) for batch in batches])


def test_batches_have_like_lengths():
    """Rule: batches by length differ little within, and have every item once; without, they differ by most of the range."""
    batches = list(loader_of("bytes"))
    assert Counter(int(index) for batch in batches for index in batch.indices) == Counter(range(600))
    assert spread(batches) < 150 < 400 < spread(loader_of(None))


def test_lengths_may_be_given():
    """Rule: any measure of the items will do, as a list or an array, one for each item."""
    backwards = [1000 - len(text) for text in TEXTS]
    assert spread(loader_of(backwards)) < 150
    assert spread(loader_of(np.array(backwards, np.int16))) < 150
    with pytest.raises(ValueError, match="lengths has 3 numbers, but the dataset has 600 items"):
        list(loader_of([1, 2, 3]))


def test_a_mixture_has_the_lengths_of_its_datasets():
    """Rule: the lengths of a mixture are those of its datasets one after the other, also where one of them comes again."""
    mix = Mix({"a": 1, "b": 3}, items=1200)
    sources = [MemorySource(TEXTS[:300], 1, name="a"), MemorySource(TEXTS[300:], 1, name="b")]
    batches = list(loader_of("bytes", dataset=mix, source=MixedSource(mix, sources)))
    assert Counter(part for batch in batches for part in batch.datasets.tolist()) == {0: 300, 1: 900}
    assert spread(batches) < 150


def test_an_epoch_resumes_exactly():
    """Rule: a saved state resumes with exactly the rest of the epoch, in the batches that it would have had."""
    whole = [sorted(batch.indices.tolist()) for batch in loader_of("bytes", substitute=1)]
    first = loader_of("bytes", substitute=1)
    came = [sorted(batch.indices.tolist()) for batch in itertools.islice(first, 33)]
    second = loader_of("bytes", substitute=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert came + [sorted(batch.indices.tolist()) for batch in second] == whole


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ("tokens", {}, "must be 'bytes' or a whole number for each item"),
        ([-1], {}, "at least 0"),
        ("bytes", {"order": "sequential"}, "leave lengths out"),
        ("bytes", {"group": "unit"}, "leave lengths out"),
    ],
)
def test_what_does_not_go_together_is_refused(lengths, options, message):
    """Rule: a mistake surfaces where it is made."""
    with pytest.raises(ValueError, match=message):
        loader_of(lengths, **options)


def test_the_lengths_of_a_gateway_are_those_of_its_list(monkeypatch):
    """Rule: a sample is as long as its members together; an item without a length is named, with the remedy."""
    sizes = [1, 2, 3, None]
    places = [larder.ItemLocation(at, "b", f"k{at}", None, None, size) for at, size in enumerate(sizes)]
    source = GatewaySource(ENDPOINT, "train")
    monkeypatch.setattr(source, "_locations", lambda info, start, count: iter(places[: info.items]))
    assert source.lengths(larder.DatasetInfo("n", "0" * 64, 3)).tolist() == [1, 2, 3]
    assert source.lengths(larder.DatasetInfo("n", "0" * 64, 2, members=2)).tolist() == [3]
    source.describe = lambda: larder.DatasetInfo("n", "0" * 64, 4)
    with pytest.raises(ValueError, match="the length of item 3 is not known: build the digest file again"):
        list(larder.Loader(ENDPOINT, "train", batch_size=2, lengths="bytes", source=source))
