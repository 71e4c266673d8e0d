"""The files of a dataset, byte by byte: written by ``writing``, read by ``index``, ``content`` and ``locations``. Little-endian.

    index       header, then one of two forms of the digests, then the lengths
                  plain:    digests (32n), sorted prefixes (8n), order (4n)
                  repeated: the distinct digests, sorted (32d), the items sorted by digest (4n), and for each item the number of
                            its digest (0 to 4 bytes each)
    states      header, then flags (n, padded to 8), crc32 (4n), stamp (4n)
    locations   header; pages of ``ROWS`` rows and of ``KEYS`` keys; the places of both kinds of pages; bucket names as JSON

A prefix is the first eight bytes of a digest as a big-endian number; ``order`` lists the items sorted by digest (equal digests
by index), and ``prefixes`` has their prefixes in that order. The repeated form is used if at most half of the digests differ.

Numbers are stored at the smallest sufficient width, and at width 0 if all are equal. In a page of rows each column has its own
width and smallest value, which is subtracted. A length or offset is stored plus one, 0 for ``NONE``. Equal keys are stored once,
and so is the common prefix of the keys of a page; a page that deflate shrinks to a quarter is stored deflated.

So a row that only repeats values of other rows takes at most ``ROW_COST`` bytes, and 13 if all rows are equal.

Version 1 (magic numbers that end in 1) is still read: every column at its full width, and every key in full.

There is one file per purpose instead of one per array, because each mapped file costs every worker a descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.model.errors import LarderError

HEADER = 64
INDEX = "index"
STATES = "states"
LOCATIONS = "locations"

INDEX_MAGIC = b"LRDINDX2"
STATES_MAGIC = b"LRDSTAT1"
LOCATIONS_MAGIC = b"LRDLOCS2"
INDEX_MAGIC_1 = b"LRDINDX1"
LOCATIONS_MAGIC_1 = b"LRDLOCS1"

INDEX_HEADER = struct.Struct("<8sQ16s32s")
"""magic, items, bytes of all items of known length (128 bits), dataset id; in version 2 followed by ``INDEX_FORM``"""
INDEX_FORM = struct.Struct("<QBB54x")
"""distinct digests, or the number of items in the plain form; bytes of a length; items of a sample, 0 in older files for 1"""
STATES_HEADER = struct.Struct("<8sQQ40x")
"""magic, items, boot; the byte at ``SURVEYED`` tells whether all items have been looked up in the index since this boot"""
SURVEYED = 24
LOCATIONS_HEADER = struct.Struct("<8sQQQQQQ8x")
"""magic, items, place of the places of row pages, keys, place of the places of key pages, place and bytes of bucket names"""
ROW_PAGE = struct.Struct("<4Q4B4x")
"""The smallest value and the width of each column: key number, bucket number, offset, length"""
ROWS = 4096
KEY_PAGE = struct.Struct("<HHI")
"""bytes of the common prefix, whether the body is deflated, bytes of the body: the remainders' ends (2 each), the remainders"""
KEYS = 32
LOCATIONS_HEADER_1 = struct.Struct("<8sQQQ32x")
"""magic, items, bytes of keys, bytes of bucket names"""
RECORD = struct.Struct("<QQQIHxx")
"""Version 1: start of the key, counted from the first key; offset; length; number of the bucket; bytes of the key"""
NONE = 2**64 - 1
"""An offset or a length that the digest file does not give."""
ROW_COST = 48
"""Maximum bytes of a row besides its digest and its key: 9 of states, 8 of the index's lengths, 8 to find items by their digest,
in locations 4 + 2 + 8 + 8 of the four columns, and its share of the pages' headers.
"""


_PIECE = 8 * 1024**2
"""Bytes that are written at a time."""


class Damaged(LarderError):
    """A file of a dataset is missing or malformed: the dataset counts as not registered."""


class Hashed(Protocol):
    """A hash object of hashlib."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """The hash so far."""


@dataclass(frozen=True, slots=True)
class IndexForm:
    """The offsets of the parts of an ``index`` file, in bytes.

    Args:
        items: of the dataset.
        distinct: the number of distinct digests, or of items in the plain form.
        length_width: bytes of a length.
    """

    items: int
    distinct: int
    length_width: int

    @property
    def plain(self) -> bool:
        """Whether the digests are stored item by item."""
        return self.distinct == self.items

    @property
    def number_width(self) -> int:
        """Bytes per digest number."""
        return width_of(self.distinct - 1)

    @property
    def digests(self) -> int:
        """Offset of the digests: one per item, or the distinct ones, sorted."""
        return 2 * HEADER

    @property
    def second(self) -> int:
        """Offset of the second column: the prefixes if ``plain``, else the items sorted by the number of their digest."""
        return self.digests + 32 * self.distinct

    @property
    def third(self) -> int:
        """Offset of the third column: the order if ``plain``, else the number of each item's digest."""
        return self.second + (8 * self.items if self.plain else padded(4 * self.items))

    @property
    def lengths(self) -> int:
        """The lengths."""
        return self.third + padded((4 if self.plain else self.number_width) * self.items)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.lengths + max(8, padded(self.length_width * self.items))


def tag_of(identity: bytes, lengths: Hashed, members: int) -> str:
    """The name of a content's folder, from the facts that identify the content.

    Args:
        identity: SHA-256 over the digests.
        lengths: SHA-256 object over the lengths, which this updates.
        members: items of a sample.
    """
    if members > 1:
        lengths.update(b"members %d" % members)
    return f"{identity.hex()}-{lengths.hexdigest()[:16]}"


def width_of(largest: int) -> int:
    """Bytes for a number from 0 to ``largest``: 0, 1, 2, 4 or 8."""
    return next(width for width in (0, 1, 2, 4, 8) if largest < 256**width) if largest > 0 else 0


def index_size_1(items: int) -> int:
    """Bytes of an ``index`` file of version 1."""
    return HEADER + 52 * items


def padded(size: int) -> int:
    """``size`` rounded up to a multiple of eight."""
    return -(-size // 8) * 8


def empty_states(items: int) -> Iterator[bytes]:
    """A ``states`` file of a content that no node has opened, piece by piece.

    Every byte is written: touching a hole of a mapped file on a full disk would kill the process.
    """
    yield STATES_HEADER.pack(STATES_MAGIC, items, 0)
    for start in range(HEADER, states_size(items), _PIECE):
        yield bytes(min(_PIECE, states_size(items) - start))


def states_size(items: int) -> int:
    """Bytes of a ``states`` file."""
    return HEADER + padded(items) + 8 * items
