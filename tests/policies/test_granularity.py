"""Granularity of small ranges: read alone, or fill the block."""

from __future__ import annotations

import random

import pytest

from gateway.policies.reads.granularity import (
    IN_A_ROW,
    LONGEST,
    REQUEST,
    SLOTS,
    TINY,
    SmallRange,
    fills,
    is_most,
    is_stored,
    longest,
    part_number,
)

MIB = 1024**2
BLOCK = 4 * MIB
SIZE = 256 * MIB


@pytest.fixture
def table() -> list[int]:
    """A table that remembers nothing."""
    return [0] * SLOTS


def ranged(
    start: int, length: int = REQUEST, *, version: int = 7, size: int = SIZE, continues: bool = False
) -> SmallRange:
    """A range of a large object."""
    return SmallRange(version, start, start + length, BLOCK, size, continues)


def fetched(table: list[int], starts: list[int], length: int) -> int:
    """Bytes that a cache without limit reads from the origin for ranges in this order."""
    cached: set[int] = set()
    total = 0
    for start in starts:
        first, last = start // BLOCK, (start + length - 1) // BLOCK
        blocks = set(range(first, last + 1))
        if part_number(start) in cached or blocks <= cached:
            continue
        alone = not blocks & cached and not fills(
            table, ranged(start, length, continues=not start % BLOCK and first - 1 in cached)
        )
        total += length if alone else BLOCK * len(blocks - cached)
        if not alone:
            cached |= blocks
        elif is_stored(length, BLOCK):
            cached.add(part_number(start))
    return total


def test_the_first_small_range_of_a_block_is_read_alone(table: list[int]) -> None:
    """Rule: one small range does not cost a block."""
    assert not fills(table, ranged(5 * BLOCK + 123))


@pytest.mark.parametrize(
    ("start", "length"), [(0, BLOCK), (BLOCK, 2 * BLOCK), (100, BLOCK - 200), (0, 2 * BLOCK - BLOCK // 8)]
)
def test_what_is_most_of_its_blocks_fills_them(table: list[int], start: int, length: int) -> None:
    """Rule: a range that is nearly all of its blocks, such as a part of a parallel download, fills them."""
    assert is_most(start, start + length, BLOCK)
    assert fills(table, ranged(start, length))


@pytest.mark.parametrize("length", [BLOCK // 4, 3 * MIB, BLOCK, 2 * BLOCK])
def test_a_range_that_begins_anywhere_is_read_alone(table: list[int], length: int) -> None:
    """Rule: a column chunk, tensor or tile does not cost the blocks around it, however often it is read."""
    assert [fills(table, ranged(MIB, length)) for _ in range(3)] == [False, False, False]


def test_a_range_of_more_than_two_blocks_fills(table: list[int]) -> None:
    """Rule: the blocks around a long range are filled: they are at most twice as long."""
    assert longest(BLOCK) == 2 * BLOCK
    assert fills(table, ranged(MIB, 2 * BLOCK + 1))


def test_the_end_of_an_object_is_most_of_its_last_block(table: list[int]) -> None:
    """Rule: a short last block counts as short as it is."""
    size = BLOCK + 300 * 1024
    assert fills(table, ranged(BLOCK, 300 * 1024, size=size))
    assert not fills(table, ranged(BLOCK, 64 * 1024, size=size))


def test_many_large_parts_of_a_block_fill_it(table: list[int]) -> None:
    """Rule: large parts are stored, so requests count and not bytes: the sixteenth fills the block."""
    decisions = [fills(table, ranged(100_000 * number, BLOCK // 4)) for number in range(16)]
    assert decisions == 15 * [False] + [True]


def test_a_block_that_costs_little_more_than_a_request_is_filled(table: list[int]) -> None:
    """Rule: blocks of up to four times the cost of a request fill at once, an object's short last block included."""
    assert fills(table, ranged(BLOCK, 10, size=BLOCK + 4 * REQUEST))
    assert not fills(table, ranged(BLOCK, 10, size=BLOCK + 4 * REQUEST + 1))


def test_a_range_that_begins_where_one_began_fills(table: list[int]) -> None:
    """Rule: a range that begins where an earlier one began fills its block."""
    assert not fills(table, ranged(MIB))
    assert fills(table, ranged(MIB, 100))


def test_another_version_of_the_object_begins_anew(table: list[int]) -> None:
    """Rule: ranges of an overwritten object's earlier version do not count."""
    assert not fills(table, ranged(MIB))
    assert not fills(table, ranged(MIB, version=8))


def test_the_third_range_in_a_row_fills(table: list[int]) -> None:
    """Rule: two adjacent ranges are a header and its body; three are a sequential reader."""
    decisions = [fills(table, ranged(MIB + number * TINY, TINY)) for number in range(IN_A_ROW)]
    assert decisions == [False, False, True]


def test_headers_in_a_row_are_no_sequence(table: list[int]) -> None:
    """Rule: tiny ranges in a row are a file's headers, which fill nothing; bodies between them are counted over them."""
    ends = [MIB + 100 * number for number in range(10)]
    assert not any(fills(table, ranged(start, 100)) for start in ends)
    starts = [(3 * MIB, 512), (3 * MIB + 512, TINY), (3 * MIB + 512 + TINY, 512), (3 * MIB + 1024 + TINY, TINY)]
    assert not any(fills(table, ranged(8 * BLOCK + start, length)) for start, length in starts)
    assert fills(table, ranged(8 * BLOCK + 3 * MIB + 1024 + 2 * TINY, TINY))


def test_a_header_that_is_read_in_growing_pieces_fills_nothing(table: list[int]) -> None:
    """Rule: a range that begins where a much shorter one began asks for other bytes; one as long asks for the same again."""
    assert [fills(table, ranged(MIB, length)) for length in (8, 100, 600, 600)] == [False, False, False, True]


def test_a_range_that_goes_on_where_a_cached_block_ends_fills(table: list[int]) -> None:
    """Rule: a sequential reader waits for one small range per object, not for one per block."""
    assert fills(table, ranged(BLOCK, continues=True))


def test_many_tiny_ranges_fill_a_block(table: list[int]) -> None:
    """Rule: a block costs at most as many requests as fit into a quarter of it, however little they ask for."""
    starts = random.Random(1).sample(range(0, BLOCK, 2), 40)
    decisions = [fills(table, ranged(start, 1)) for start in starts]
    assert decisions.index(True) == BLOCK // 4 // REQUEST - 1


def test_of_a_very_large_block_a_bounded_number_of_bytes_is_read_alone(table: list[int]) -> None:
    """Rule: the bytes read alone, held in memory and counted in eight bits, are bounded for blocks of any size."""
    assert longest(1024 * MIB) == LONGEST
    huge = [SmallRange(7, number * 2 * MIB, number * 2 * MIB + MIB, 1024 * MIB, 2048 * MIB) for number in range(5)]
    assert [fills(table, asked) for asked in huge] == [False, False, False, True, False]


@pytest.mark.parametrize("count", [60, 300])
def test_random_ranges_that_are_seen_once_cost_at_most_half_more(table: list[int], count: int) -> None:
    """Rule: random ranges read once cost at most 1.5 origin bytes per requested byte."""
    draw = random.Random(count)
    starts = [REQUEST * place for place in draw.sample(range(SIZE // REQUEST), count)]
    assert fetched(table, starts, REQUEST) <= 1.5 * count * REQUEST


def test_a_permutation_of_small_ranges_costs_a_quarter_more(table: list[int]) -> None:
    """Rule: a reader of all of an object in random order gets three quarters of it from the cache."""
    starts = [REQUEST * place for place in range(SIZE // REQUEST)]
    random.Random(2).shuffle(starts)
    assert fetched(table, starts, REQUEST) <= 1.25 * SIZE


def test_a_sequential_scan_costs_nothing_more(table: list[int]) -> None:
    """Rule: a sequential scan costs at most 1.05 origin bytes per requested byte."""
    assert fetched(table, list(range(0, SIZE, REQUEST)), REQUEST) <= 1.01 * SIZE


def test_what_is_forgotten_costs_no_more_than_a_range(table: list[int]) -> None:
    """Rule: with more ranges than the table holds, random ranges are still read alone."""
    draw = random.Random(3)
    total = 30_000
    alone = sum(not fills(table, ranged(draw.randrange(0, 2**40), 1000, size=2**41)) for _ in range(total))
    assert alone > 0.99 * total


@pytest.mark.parametrize("length", [300_000, MIB, 3_000_000, BLOCK])
@pytest.mark.parametrize("part", [4, 1])
def test_chunks_that_begin_anywhere_cost_what_they_are(table: list[int], length: int, part: int) -> None:
    """Rule: chunks of a column, or all of a file's in random order, cost at most 1.1 origin bytes per requested byte, also when
    they are read in a second epoch."""
    starts = [12_345 + length * number for number in range((SIZE - 12_345) // length)]
    chosen = random.Random(4).sample(starts, len(starts) // part)
    assert fetched(table, [*chosen, *chosen], length) <= 1.1 * len(chosen) * length
