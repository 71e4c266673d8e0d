"""Hashing parts of an object in one pass."""

import hashlib
import io
import random

import pytest

from larder.digest.ranges import Range, digests, runs

BODY = random.Random(1).randbytes(3_000_000)


def hashed(ranges: list[Range], body: bytes = BODY, piece: int = 1 << 20) -> tuple[list[bytes | None], int]:
    """The digest of each range, and how many requests it took."""
    found: dict[int, bytes] = {}
    planned = list(runs(ranges))
    for run in planned:
        stream = io.BytesIO(body[run.start : run.stop])
        found |= digests(lambda most, stream=stream: stream.read(min(most, piece)), run, ranges)
    return [found.get(number) for number in range(len(ranges))], len(planned)


def expected(ranges: list[Range], body: bytes = BODY) -> list[bytes]:
    """The digest of each range, computed separately."""
    return [hashlib.sha256(body[one.offset : one.stop]).digest() for one in ranges]


CASES = {
    "touching": [Range(0, 10), Range(10, 20), Range(30, 5)],
    "overlapping": [Range(0, 1_500_000), Range(700_000, 1_500_000), Range(700_000, 3)],
    "repeated": [Range(5, 9), Range(5, 9)],
    "empty": [Range(0, 0), Range(7, 0), Range(0, 7), Range(3_000_000, 0)],
    "backwards": [Range(900, 10), Range(0, 10), Range(500, 10)],
    "whole": [Range(0, 3_000_000)],
}


@pytest.mark.parametrize("piece", [7919, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_every_range_is_hashed_as_by_itself(case, piece):
    """Ranges may touch, overlap, repeat, be empty and come in any order."""
    assert hashed(CASES[case], piece=piece)[0] == expected(CASES[case])


def test_random_ranges_are_hashed_as_by_themselves():
    """Many random ranges have the digests of separate hashing."""
    chance = random.Random(2)
    ranges = [Range(chance.randrange(2_900_000), chance.randrange(50_000)) for _ in range(200)]
    assert hashed(ranges)[0] == expected(ranges)


def test_close_ranges_share_a_request_and_distant_ones_do_not():
    """A gap of some bytes is read over; one of a megabyte is not."""
    assert hashed([Range(0, 10), Range(20, 10)])[1] == 1
    assert hashed([Range(0, 10), Range(2_000_000, 10)])[1] == 2


def test_no_ranges_take_no_request():
    """An object without items is not read."""
    assert list(runs([])) == []


def test_a_range_beyond_the_end_has_no_digest():
    """A stream that ends early gives digests of the complete ranges only."""
    ranges = [Range(0, 10), Range(5, 10)]
    found, _ = hashed(ranges, BODY[:12])
    assert found == [hashlib.sha256(BODY[:10]).digest(), None]
