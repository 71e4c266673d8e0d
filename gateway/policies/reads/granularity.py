"""Choose what a range of a large object brings into the cache: the range alone, or the blocks around it.

A range that is not most of its blocks is read alone: column chunks, tensors, tiles and chunks of arrays begin anywhere, and a
chunk of 3 MB may touch two blocks of 4 MiB.

*Large parts*, of a sixteenth of a block or more, are stored as they are (``part_number``), so reading them again costs nothing.
Their block is filled only after as many as ``1 / SHARE`` of its bytes would take at ``REQUEST`` each: then requests cost more
than bytes. *Smaller ranges* are kept in memory for a while. Three signs show that more of their block will be wanted, so it is
filled:

1. *Density.* The bytes requested from the block add up to a quarter of it. A request counts as at least ``REQUEST`` bytes, which
   take about as long as a request does, so tiny ranges fill a block after a bounded number of requests.
2. *Reuse.* An earlier range that was at least half as long began at the same byte. Readers of headers request the first bytes,
   and then more from the same place.
3. *Sequence.* The range is the last of ``IN_A_ROW`` that follow each other without a gap. Tiny ranges count only by density: a
   file's headers follow each other, too.

A range that continues where a cached block ends fills too, and so does every range of a block of at most ``4 * REQUEST`` bytes.
A range that is longer than ``longest`` fills its blocks: at most two more than it needs.

The memory is a table of 32-bit words: 24 bits tell entries of one slot apart, 8 bits are a value. A new entry overwrites an older
one in its slot. So the table is bounded, forgets, and needs no lock between processes that share it: a lost entry costs a
request, and no entry makes a read wrong.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Protocol

SHARE = 4
"""The part of a block, as a divisor, that fills it by density."""
REQUEST = 64 * 1024
"""The fewest bytes that a request counts as."""
_UNIT = 16 * 1024
_MOST = 255
LONGEST = 8 * 1024**2
"""The most bytes that are read alone, however large blocks are: they are in memory until they are stored."""
BLOCKS = 2
"""The length, in blocks, of the longest range that is read alone: the blocks around a longer one are less than twice as long."""
STORED = 16
"""The smallest part of a block, as a divisor, that is stored after it was read alone."""
SLACK = 0.1
"""The most bytes around a range, per byte of the range, for which its blocks are read whole at once."""
PARTS = 2**48
"""The block number of a large part from byte 0 on; no object has that many blocks."""
RUNS = 2**49
"""The number of the run list (gateway/model/run_list.py) of items from byte 0 of the object on."""
IN_A_ROW = 3
"""Ranges without a gap between them that are a sequence."""
TINY = 16 * 1024
"""Bytes below which a range shows no sequence: it is a header, an index or a directory."""
SLOTS = 2**20
"""Words of a table: half count blocks, half mark where ranges began and ended."""

_HALF = SLOTS // 2
_BEGAN, _ENDED = 0, 1


class TouchTable(Protocol):
    """``SLOTS`` words of 32 bits, all zero at first."""

    def __getitem__(self, slot: int, /) -> int:
        """A word."""

    def __setitem__(self, slot: int, word: int, /) -> None:
        """Replace a word."""


class SmallRange(NamedTuple):
    """A small range of an object, none of whose blocks is in the cache.

    Attributes:
        version: a number that identifies this version of the object.
        start: first byte.
        stop: the byte after the last one.
        block_size: bytes.
        size: of the object, in bytes.
        continues: whether the range begins where a block ends that is in the cache.
    """

    version: int
    start: int
    stop: int
    block_size: int
    size: int
    continues: bool = False


def longest(block: int) -> int:
    """The most bytes that are read alone of an object with blocks of ``block`` bytes; 0 if none are."""
    return min(LONGEST, BLOCKS * block) if block > SHARE * REQUEST else 0


def is_stored(length: int, block: int) -> bool:
    """Whether a range of ``length`` bytes that was read alone is stored; ``block``: bytes of the object's blocks."""
    return STORED * length >= block and length >= REQUEST


def part_number(start: int) -> int:
    """The number under which a large part from byte ``start`` on is stored beside the blocks of its object."""
    return PARTS + start


def part_start(number: int) -> int:
    """The first byte of the large part that has this number."""
    return number - PARTS


def run_number(start: int) -> int:
    """The number under which the list of a run from byte ``start`` on is stored beside the blocks of its object."""
    return RUNS + start


def is_most(start: int, stop: int, block: int, size: float = inf) -> bool:
    """Whether the range [start, stop) is nearly all of its blocks, in an object of ``size`` bytes."""
    around = min(-(-stop // block) * block, size) - start // block * block
    return around <= (1 + SLACK) * (stop - start)


def fills(table: TouchTable, asked: SmallRange) -> bool:
    """Whether to fill the blocks of a range; if not, it is to be read alone, and is remembered."""
    version, start, stop, block_size, size, continues = asked
    length, first = stop - start, start // block_size
    block = min(block_size, size - first * block_size)
    stored = is_stored(length, block_size)
    bytes_counted = REQUEST if stored else max(length, REQUEST)
    units = _value(table, _count_of(version, first)) + -(-bytes_counted // _UNIT)
    run = 0 if stored else _value(table, _mark_of(version, start, _ENDED)) + (length >= TINY)
    if (
        continues
        or length > longest(block)
        or is_most(start, stop, block_size, size)
        or SHARE * _UNIT * units >= block
        or units > _MOST
        or run >= IN_A_ROW
        or (not stored and _value(table, _mark_of(version, start, _BEGAN)) >= length.bit_length())
    ):
        _put(table, _count_of(version, first), 0)
        return True
    _put(table, _count_of(version, first), units)
    if not stored:
        _put(table, _mark_of(version, start, _BEGAN), length.bit_length())
        _put(table, _mark_of(version, stop, _ENDED), run)
    return False


def _count_of(version: int, block: int) -> tuple[int, int]:
    return _place(hash((version, block)), 0)


def _mark_of(version: int, position: int, kind: int) -> tuple[int, int]:
    return _place(hash((version, position, kind)), _HALF)


def _place(number: int, offset: int) -> tuple[int, int]:
    """Slot and tag of an entry. Hashes of numbers are the same in every process."""
    return offset + number % _HALF, (number // _HALF & 0xFFFFFF) << 8


def _value(table: TouchTable, place: tuple[int, int]) -> int:
    slot, tag = place
    word = table[slot]
    return word & 0xFF if word & ~0xFF == tag else 0


def _put(table: TouchTable, place: tuple[int, int], value: int) -> None:
    slot, tag = place
    table[slot] = tag | min(value, _MOST)
