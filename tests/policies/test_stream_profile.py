"""The order in which blocks were read for the first time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from gateway.policies.streams.profile import FirstReads, ProfileRead, ProfileRecording, merged

BLOCK = 10
READS = some.lists(some.tuples(some.integers(0, 99), some.integers(1, 100)), max_size=60)


def read(key: str, start: int = 0, stop: int = 8, size: int = 8, at: float = 0.0) -> ProfileRead:
    """One read."""
    return ProfileRead(at, "b", key, start, stop, size)


def kept(*reads: ProfileRead, most: int = 1000) -> list[tuple[str, int, int]]:
    """The kept reads: key, first byte, end."""
    first = FirstReads(BLOCK, most)
    for one in reads:
        first.add(one)
    return [(one.key, one.start, one.stop) for one in first.take_reads()]


def test_the_first_read_of_an_object_counts():
    """Rule: objects stand in the order of their first reads, each once, and a replay loads them whole."""
    assert kept(read("b"), read("a"), read("b"), read("c")) == [("b", 0, 8), ("a", 0, 8), ("c", 0, 8)]
    assert read("b").span is None
    assert read("b", 0, 10, 30).span == (0, 10)


def test_ranges_count_as_blocks():
    """Rule: a range is widened to blocks; adjacent ones are joined; a block that was read is not listed again."""
    scan = [read("a", start, start + 3, 25) for start in range(0, 24, 3)]
    assert kept(*scan) == [("a", 0, 25)]
    assert kept(read("a", 12, 13, 95), read("a", 5, 35, 95)) == [("a", 10, 20), ("a", 0, 10), ("a", 20, 40)]


def test_an_empty_object_is_a_read_too():
    """Rule: an object without bytes is listed once."""
    assert kept(read("a", 0, 0, 0), read("a", 0, 0, 0)) == [("a", 0, 0)]


def test_what_is_new_is_taken_once():
    """Rule: ``take`` returns the reads since the last call; their blocks stay known."""
    first = FirstReads(BLOCK)
    first.add(read("a"))
    assert len(first.take_reads()) == 1
    first.add(read("a"))
    assert first.take_reads() == []


def test_a_profile_is_bounded():
    """Rule: beyond the bound no read is kept, a large object keeps its first blocks, and the profile is marked as incomplete."""
    assert kept(read("a"), read("b"), read("c"), most=2) == [("a", 0, 8), ("b", 0, 8)]
    assert kept(read("a", 0, 100, 100), most=3) == [("a", 0, 30)]
    first = FirstReads(BLOCK, 1)
    first.add(read("a"))
    assert not first.full
    first.add(read("b"))
    assert first.full


@given(READS)
def test_every_block_is_listed_once(spans: list[tuple[int, int]]):
    """Rule: the listed blocks are exactly those of the reads, each once."""
    reads = [read("a", start, min(100, start + length), 100) for start, length in spans]
    listed = [number for _, start, stop in kept(*reads) for number in range(start // BLOCK, -(-stop // BLOCK))]
    wanted = {number for one in reads for number in range(one.start // BLOCK, -(-one.stop // BLOCK))}
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted


def test_parts_are_merged_by_time():
    """Rule: reads of several gateways are ordered by time; one recorded by two is listed once, at its first time."""
    one = [read("a", at=1.0), read("c", at=3.0), read("d", at=5.0)]
    other = [read("b", at=2.0), read("a", at=2.5), read("d", at=4.0)]
    assert [(each.at, each.key) for each in merged([one, other], BLOCK)] == [
        (1.0, "a"),
        (2.0, "b"),
        (3.0, "c"),
        (4.0, "d"),
    ]


def test_a_recording_wants_its_own_reads_only():
    """Rule: the key, the bucket, the prefix and the time decide."""
    recording = ProfileRecording("id", "AK", "b", "p/", until=10.0)
    assert recording.wants("AK", "b", "p/x", 9.0)
    assert not recording.wants("OTHER", "b", "p/x", 9.0)
    assert not recording.wants("AK", "c", "p/x", 9.0)
    assert not recording.wants("AK", "b", "q/x", 9.0)
    assert not recording.wants("AK", "b", "p/x", 10.0)
