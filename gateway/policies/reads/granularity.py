"""Choose what a small range of a large object brings into the cache: the range alone, or the block around it.

The first small range of a block is read alone: 60 random ranges of 64 KiB in 256 MiB would otherwise fill 40 blocks of 4 MiB.
Three things show that more of the block will be wanted, and then it is filled:

1. *Density.* The bytes asked of the block add up to a quarter of it, or to ``LONGEST``. A request counts as at least ``REQUEST``
   bytes, which take about as long as a request does, so tiny ranges fill a block after a bounded number of requests.
2. *Reuse.* A range began at this byte before.
3. *Sequence.* The range is the third of ranges that follow each other without a gap, or continues where a cached block ends.

A range of at least a quarter of a block fills at once, by the first rule. So does every range of a block of at most
``4 * REQUEST`` bytes.

The memory is a table of 32-bit words: 24 bits tell entries of one slot apart, 8 bits are a value. A new entry takes the slot of
an older one. So the table is bounded, forgets, and needs no lock between processes that share it: a lost entry costs a request,
and no entry makes a read wrong.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

SHARE = 4
"""The part of a block, as a divisor, that counts as much of it."""
REQUEST = 64 * 1024
"""Bytes that a request counts at least."""
_UNIT = 16 * 1024
_MOST = 255
LONGEST = _MOST * _UNIT
"""Bytes that are read alone of one block at most, however large it is; they are held in memory."""
IN_A_ROW = 3
"""Ranges without a gap between them that are a sequence."""
SLOTS = 2**20
"""Words of a table: half of them count blocks, half mark where ranges began and ended."""

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
        stop: behind the last byte.
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


def is_small(length: float, block: int) -> bool:
    """Whether a range of ``length`` bytes may be read without the rest of a block of ``block`` bytes."""
    return length <= LONGEST and SHARE * max(length, REQUEST) < block


def fills(table: TouchTable, asked: SmallRange) -> bool:
    """Whether to fill the blocks of a range; if not, it is to be read alone, and is remembered."""
    version, start, stop, block_size, size, continues = asked
    first = start // block_size
    block = min(block_size, size - first * block_size)
    units = _value(table, _count_of(version, first)) + -(-max(stop - start, REQUEST) // _UNIT)
    run = _value(table, _mark_of(version, start, _ENDED)) + 1
    if (
        continues
        or not is_small(stop - start, block)
        or SHARE * _UNIT * units >= block
        or units > _MOST
        or run >= IN_A_ROW
        or _value(table, _mark_of(version, start, _BEGAN))
    ):
        _put(table, _count_of(version, first), 0)
        return True
    _put(table, _count_of(version, first), units)
    _put(table, _mark_of(version, start, _BEGAN), 1)
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
