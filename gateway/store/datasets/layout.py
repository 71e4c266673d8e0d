"""The files of a dataset, byte by byte: written by ``convert``, read by ``content`` and ``locations``. All little-endian.

    index       header, then for n items: digests (32n), lengths (8n), sorted prefixes (8n), order (4n)
    states      header, then flags (n, padded to 8), crc32 (4n), stamp (4n)
    locations   header, then records (32n), all keys back to back, a JSON list of bucket names

A prefix is the first eight bytes of a digest as a big-endian number; ``order`` lists the items sorted by digest, equal ones by
index, and ``prefixes`` is the prefix of each in that order.

One file per purpose, not one per array, because each mapped file costs every worker a descriptor.
"""

from __future__ import annotations

import struct

from gateway.model.errors import LarderError

HEADER = 64
INDEX = "index"
STATES = "states"
LOCATIONS = "locations"

INDEX_MAGIC = b"LRDINDX1"
STATES_MAGIC = b"LRDSTAT1"
LOCATIONS_MAGIC = b"LRDLOCS1"

INDEX_HEADER = struct.Struct("<8sQ16s32s")
"""magic, items, bytes of all items of known length (128 bits), dataset id"""
STATES_HEADER = struct.Struct("<8sQQ40x")
"""magic, items, boot; the byte at ``SURVEYED`` says whether the index was asked about every item under this boot"""
SURVEYED = 24
LOCATIONS_HEADER = struct.Struct("<8sQQQ32x")
"""magic, items, bytes of keys, bytes of bucket names"""
RECORD = struct.Struct("<QQQIHxx")
"""start of the key, counted from the first key; offset; length; number of the bucket; bytes of the key"""
NONE = 2**64 - 1
"""An offset or a length that the digest file does not say."""


class Damaged(LarderError):
    """A file of a dataset is missing or is not what it should be: the dataset counts as not registered."""


def index_size(items: int) -> int:
    """Bytes of an ``index`` file."""
    return HEADER + 52 * items


def padded(items: int) -> int:
    """Bytes that the flags of so many items take."""
    return -(-items // 8) * 8


def states_size(items: int) -> int:
    """Bytes of a ``states`` file."""
    return HEADER + padded(items) + 8 * items
