"""The read model: a line through the readers' measurements, and a typical line without any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.space.read_model import ENOUGH, TYPICAL, ReadModel, ReadSums, added, fit_reads, size_class

KB, MB = 1 << 10, 1 << 20
MANY = 1e12
"""Elements beside which a typical read counts nothing."""


def reads(size, seconds, elements=100.0, busy=0.5):
    """Reads of so many elements, each of so many bytes and seconds."""
    return ReadSums(elements, elements * size, elements * seconds, busy * elements * seconds)


@given(st.floats(1e-6, 0.1), st.floats(0, 1e-6), st.lists(st.integers(0, 10**7), min_size=2, max_size=50, unique=True))
def test_the_read_model_is_the_line_through_the_reads(latency, per_byte, sizes):
    """Many exact reads give their own line back."""
    model = fit_reads([reads(size, latency + size * per_byte, MANY) for size in sizes])
    for size in sizes:
        assert model.seconds(size) == pytest.approx(latency + size * per_byte, rel=1e-3, abs=1e-6)


def test_without_reads_they_take_a_typical_time():
    """A first decision needs no reads before it."""
    model = fit_reads([])
    assert (model.latency, model.busy) == (TYPICAL.latency, TYPICAL.busy)
    assert model.per_byte == pytest.approx(TYPICAL.per_byte)


@pytest.mark.parametrize("slower", [0.5, 2, 10, 50])
@pytest.mark.parametrize("size", [KB, 64 * KB, 600 * KB, 4 * MB])
def test_a_hundred_reads_of_one_size_are_believed(size, slower):
    """At their own size the line is theirs, within a twentieth."""
    seconds = slower * TYPICAL.seconds(size)
    assert fit_reads([reads(size, seconds)]).seconds(size) == pytest.approx(seconds, rel=0.05)


def test_small_reads_tell_the_latency_and_large_ones_the_time_per_byte():
    """Small elements that take ten times as long say little of large ones, and large ones little of small ones."""
    small = fit_reads([reads(16 * KB, 10 * TYPICAL.seconds(16 * KB))])
    assert small.seconds(4 * MB) < 2 * TYPICAL.seconds(4 * MB)
    assert small.latency > 9 * TYPICAL.latency
    large = fit_reads([reads(4 * MB, 10 * TYPICAL.seconds(4 * MB))])
    assert large.seconds(KB) < 5 * TYPICAL.seconds(KB)
    assert large.per_byte > 9 * TYPICAL.per_byte


def test_reads_that_are_slow_to_decode_raise_the_line():
    """Every second that readers spend counts, and processor seconds by their share."""
    fast, slow = (fit_reads([reads(64 * KB, seconds, busy=busy)]) for seconds, busy in ((0.0005, 0.2), (0.0105, 0.96)))
    assert slow.seconds(64 * KB) - fast.seconds(64 * KB) == pytest.approx(0.01, rel=0.02)
    assert (fast.busy, slow.busy) == (pytest.approx(0.2, rel=0.01), pytest.approx(0.96, rel=0.01))


def test_a_read_model_is_never_negative():
    """Noise may tilt the line: neither latency nor time per byte falls below zero."""
    rising = fit_reads([reads(KB, 0.0, MANY), reads(MB, 1.0, MANY)])
    falling = fit_reads([reads(KB, 1.0, MANY), reads(MB, 0.5, MANY)])
    assert (rising.latency, falling.per_byte) == (0.0, 0.0)
    assert fit_reads([reads(KB, 0.0)]).seconds(0) >= 0


def test_sums_count_by_their_elements():
    """A sum of many reads moves the line as those reads would one by one."""
    single = [reads(10, 0.5, 1)] * 9 + [reads(100, 0.6, 1), reads(50, 0.7, 1)]
    summed = [reads(10, 0.5, 9), reads(100, 0.6, 1), reads(50, 0.7, 1)]
    assert fit_reads(summed).seconds(70) == pytest.approx(fit_reads(single).seconds(70))


def test_sums_are_of_similar_sizes():
    """A class is a power of two; elements without bytes have one of their own."""
    sizes = (0, 1, 2, 3, 4, 1023, 1024, 2**53)
    assert [size_class(reads(size, 1.0)) for size in sizes] == [0, 1, 2, 2, 3, 10, 11, 54]


def test_the_latest_reads_count_most():
    """Sums of enough elements are halved before more are added."""
    first = reads(100, 0.001, ENOUGH)
    assert added(None, first) == first
    assert added(reads(100, 0.001, 10), first).elements == ENOUGH + 10
    assert added(first, reads(100, 0.003, ENOUGH)) == pytest.approx(
        ReadSums(1.5 * ENOUGH, 150 * ENOUGH, 3.5e-3 * ENOUGH, 1.75e-3 * ENOUGH)
    )


def test_a_line_adds_latency_and_bytes():
    """The time of a read is the latency plus the bytes times the time per byte."""
    assert ReadModel(0.5, 0.25).seconds(2) == 1.0
