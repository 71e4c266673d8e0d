"""Checksums of the index's rows, which detect damage that SQLite does not check for.

SQLite detects pages with a wrong structure, but not a wrong byte in a value or a key. An object under another object's name, or
with its block, would be served with wrong bytes. So each row that describes an object, its blobs or its readers has a CRC-32 of
its values. The CRC includes the requested key, so an entry that a damaged tree attaches to another key fails too. Rows written
by version 3 have no checksum; only their types are checked.

A failed check raises ``DiskFault`` CORRUPT: the index is condemned, and salvage.py makes a new one of the sound rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from gateway.model.keys import ObjectKey
from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault

_DIGEST = 32
_LARGEST = 2**63
WHOLE = (None, None, None)
"""The place and CRC-32 of a tie to a whole blob."""
ObjectValues = tuple[int, str, int, str, str, str | None, int]
"""Slot, ETag, size, last_modified, headers, checksums and block size, as they are in the row."""


def object_seal(key: ObjectKey, values: Sequence[object]) -> int:
    """The checksum of an object's row; ``values`` as in ``ObjectValues``."""
    return crc32(repr((key.origin, key.bucket, key.key, *values)).encode())


def tie_seal(row_id: int, number: int, digest: bytes, size: int, crc: int, part: tuple[Any, ...] = WHOLE) -> int:
    """The checksum of the row that ties a blob, with its size and CRC-32, to an object.

    ``part``: the first byte, the bytes and the CRC-32 of the part that is meant.
    """
    seal = crc32(digest, crc32(b"%d %d %d %d" % (row_id, number, size, crc)))
    return seal if part == WHOLE else crc32(b"%d %d %d" % part, seal)


def grant_seal(row_id: int, identity: str, granted_at: float) -> int:
    """The checksum of a grant's row."""
    return crc32(repr((row_id, identity, float(granted_at))).encode())


def object_is_sound(key: ObjectKey, values: Sequence[object], confirmed_at: object, seal: object) -> bool:
    """Whether an object's row is as it was written."""
    slot, etag, size, last_modified, headers, checksums, block_size = values
    texts = (key.origin, key.bucket, key.key, etag, last_modified, headers, checksums if checksums is not None else "")
    return (
        all(type(text) is str for text in texts)
        and all(type(number) is int and number >= 0 for number in (slot, size, block_size))
        and block_size != 0
        and type(confirmed_at) is float
        and (seal is None or seal == object_seal(key, values))
    )


def tie_is_sound(
    row_id: int,
    number: object,
    digest: object,
    size: object,
    crc: object,
    seal: object,
    part: tuple[Any, ...] = WHOLE,
) -> bool:
    """Whether the row that ties a blob to an object, and the blob's size and CRC-32, are as they were written."""
    if type(number) is not int or type(size) is not int or type(crc) is not int or type(digest) is not bytes:
        return False
    if part != WHOLE and (seal is None or not all(type(value) is int and value >= 0 for value in part)):
        return False
    right = number >= 0 and size >= 0 and crc >= 0 and len(digest) == _DIGEST
    return right and (seal is None or seal == tie_seal(row_id, number, digest, size, crc, part))


def grant_is_sound(row_id: int, identity: object, granted_at: object, seal: object) -> bool:
    """Whether a grant's row is as it was written."""
    if type(identity) is not str or type(granted_at) is not float:
        return False
    return seal is None or seal == grant_seal(row_id, identity, granted_at)


def blob_is_sound(digest: object, size: object, crc: object, rank: object, mtime_ns: object, boot: object) -> bool:
    """Whether the values in a blob's row have the right types; its bytes are compared with the digest when the file is opened."""
    return (
        is_digest(digest)
        and type(rank) is float
        and all(type(number) is int and 0 <= number < _LARGEST for number in (size, crc, mtime_ns, boot))
    )


def is_digest(value: object) -> bool:
    """Whether a value has the form of a digest."""
    return type(value) is bytes and len(value) == _DIGEST


def damaged(what: str) -> DiskFault:
    """The fault for a row that fails its check."""
    return DiskFault(FailureKind.CORRUPT, f"index.db: {what} is damaged")
