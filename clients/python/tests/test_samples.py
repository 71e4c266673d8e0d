"""Samples of several objects: requests to the gateway, and assembly of its answers."""

import io
import tarfile

import numpy as np
import pytest

import larder
from larder.base.stats import Stats
from larder.base.tar import BLOCK, _header, header_of, pack_sample, sample_members
from larder.reading.frames import HIT, JOINED, MISSING
from larder.reading.samples import SampleReader
from larder.testing import MemorySource
from larder.training.importance import ImportanceReport

INFO = larder.DatasetInfo("pairs", "f" * 64, 20, members=2)


class Items:
    """The items of samples in memory, with given flags; records the requests."""

    def __init__(self, flags=None, **source):
        self.dataset = INFO
        self.asked = []
        self._flags = flags or {}
        self._reader = MemorySource(INFO.items, 1.0, before=self.asked.append, **source).reader(INFO, Stats())

    def fetch(self, indices, **options):
        """As a `larder.BatchReader`."""
        fetched = self._reader.fetch(indices, **options)
        fetched.flags = np.array([self._flags.get(item, HIT) for item in fetched.indices.tolist()], np.uint16)
        return fetched

    def prefetch(self, indices, *, epoch=None):
        """As a `larder.BatchReader`."""
        return self._reader.prefetch(indices, epoch=epoch)

    def close(self):
        """As a `larder.BatchReader`."""


def read(items, samples, **options):
    """The members of samples, by sample."""
    fetched = SampleReader(items, lambda: ("jpg", "cls")).fetch(np.array(samples, np.uint32), **options)
    found = [{name: bytes(data) for name, data in sample_members(each).items()} for each in fetched.data]
    return fetched, dict(zip(fetched.indices.tolist(), found, strict=True))


def test_an_exact_request_is_one_request():
    """In the order of the request, a repeated sample twice."""
    items = Items()
    fetched, found = read(items, [3, 9, 3], ordered=True)
    assert fetched.indices.tolist() == [3, 9, 3]
    assert found == {3: {"jpg": b"6", "cls": b"7"}, 9: {"jpg": b"18", "cls": b"19"}}
    assert [asked.tolist() for asked in items.asked] == [[6, 7, 18, 19, 6, 7]]


def test_candidates_are_chosen_by_their_first_members():
    """The other members are requested of the chosen samples only."""
    items = Items()
    fetched, found = read(items, range(10), mode="substitute", take=3)
    first, others = (asked.tolist() for asked in items.asked)
    assert first == list(range(0, 20, 2))
    assert others == [2 * sample + 1 for sample in fetched.indices.tolist()]
    assert len(found) == 3


def test_a_sample_fails_with_any_of_its_members():
    """Its failure has the sample's number and the member's place."""
    fetched, found = read(Items(failures={7: MISSING}), [3, 4])
    assert set(found) == {4}
    assert (fetched.failed[3].index, fetched.failed[3].key) == (3, "item-7")


@pytest.mark.parametrize(
    ("flags", "sample"), [((HIT, HIT), HIT), ((HIT, 0), 0), ((HIT, JOINED), JOINED), ((JOINED, 0), 0)]
)
def test_a_sample_is_as_cached_as_all_of_its_members(flags, sample):
    """Rule: a sample counts as a hit only if none of its members was read from the origin."""
    fetched, _ = read(Items(dict(enumerate(flags))), [0])
    assert fetched.flags.tolist() == [sample]


def test_announcements_count_samples():
    """Every item is announced; the gateway's counts are converted to samples, partial ones as whole."""
    counts = SampleReader(Items(), tuple).prefetch(np.array([1, 2], np.uint32))
    assert counts == {"resident": 0, "fetching": 2, "refused": 0}


def test_members_have_the_importance_of_their_sample():
    """Rule: gateways keep a sample whole, so its members have one score."""
    report = ImportanceReport(1, np.array([1, 2], np.float16), np.array([3, 0])).of_members(2)
    assert (report.scores.tolist(), report.counts.tolist()) == ([1, 1, 2, 2], [3, 3, 0, 0])


def test_a_sample_is_a_tar():
    """A sample is a valid TAR for any names and sizes of its members."""
    members = {"jpg": b"x" * 513, "seg.png": b"", "ü" * 40: b"y" * BLOCK}
    sample = pack_sample({name: memoryview(body) for name, body in members.items()})
    with tarfile.open(fileobj=io.BytesIO(bytes(sample) + bytes(2 * BLOCK))) as archive:
        found = {name.removeprefix("sample."): archive.extractfile(name).read() for name in archive.getnames()}
    assert found == members == {name: bytes(body) for name, body in sample_members(sample).items()}
    assert header_of(_header("jpg", 8**11), 0).size == 8**11
