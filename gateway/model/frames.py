"""The body of a batch answer: fixed little-endian records around items' bytes. docs/batch-protocol.md has the whole format.

There are two forms. If all items to deliver are resident, an index of them comes first and then their bytes back to back. So the
length of the answer is known, and a client reads it into one buffer. Otherwise each item is a separate frame, in the order of
arrival. Both end with a record of the totals: an answer without it was truncated, even if the transport reports no error (a
chunked body that a proxy closes cleanly looks complete to every HTTP client).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

VERSION = 1
INDEX_MAGIC = b"LRDI"
FRAMES_MAGIC = b"LRDF"
END_MAGIC = b"LEND"
END_POSITION = 0xFFFFFFFF
MEDIA_TYPE = "application/x-larder-batch"
FILES_MAGIC = b"LFIL"
ATTACHED = 1
"""Flag of the preamble: items are not in the answer but in open files that come with it; in frames, some of them."""
INLINE = 0xFFFFFFFE
"""In the place of a file's number: the bytes follow."""

PREAMBLE = struct.Struct("<4sHHII")
ENTRY = struct.Struct("<IIQQIHH")
_ENTRIES = np.dtype(
    [
        ("position", "<u4"),
        ("index", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("crc32", "<u4"),
        ("status", "<u2"),
        ("flags", "<u2"),
    ]
)
"""The same, for many entries."""
FRAME = struct.Struct("<IIQIHH")
TRAILER = struct.Struct("<IHH")
FILES = struct.Struct("<I4sQQ")
PLACE = struct.Struct("<IIQQ")
END = struct.Struct("<I4sQIIIHH")


class ItemStatus(IntEnum):
    """The result for one item."""

    OK = 0
    MISSING = 1
    """The origin has no such object."""
    CHANGED = 2
    """The bytes at the origin do not match the digest file."""
    ORIGIN_ERROR = 3
    """The origin failed; a retry may help."""
    NOT_RESIDENT = 4
    """It is not in the cache, and was not fetched from the origin."""
    REFUSED = 5
    """The origin refuses this caller."""
    CLAIMED = 6
    """A result that is not stored; the caller should compute it."""
    BUSY = 7
    """A result that is not stored; another caller is computing it."""
    LATER = 8
    """A result or entry that this answer has no room for."""
    INVALID = 9
    """An entry of a batch of keys for something that does not exist, such as a range beyond the object's end."""


class ItemFlag(IntFlag):
    """Source of an item."""

    NONE = 0
    HIT = 1
    """It was in the cache."""
    JOINED = 2
    """Another reader's fetch delivered it."""
    STREAMED = 4
    """Its CRC and final status follow its bytes; an item of a dataset was then not stored."""
    ATTACHED = 8
    """In frames: places in open files stand for its bytes."""


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One item of the index form: ``position`` in the request, ``length`` in bytes, ``crc32`` of the bytes.

    Only results may have a ``status`` other than OK there; they then have no bytes.
    """

    position: int
    index: int
    length: int
    crc32: int
    flags: ItemFlag = ItemFlag.HIT
    status: ItemStatus = ItemStatus.OK


def index_head(entries: Iterable[FrameEntry]) -> tuple[bytes, bytes, int]:
    """Preamble and entries, the end record, and the number of item bytes between them."""
    offset, missing, packed = 0, 0, []
    for entry in entries:
        packed.append(
            ENTRY.pack(entry.position, entry.index, offset, entry.length, entry.crc32, entry.status, entry.flags)
        )
        offset += entry.length
        missing += entry.status is not ItemStatus.OK
    head, end = _around(b"".join(packed), len(packed), missing, offset, 0)
    return head, end, offset


def resident_head(
    positions: Sequence[int], indices: NDArray[np.uint32], lengths: Sequence[int], crcs: Sequence[int]
) -> tuple[bytes, bytes, int]:
    """Like ``index_head``, for cached items given as columns: an object per item would be the most expensive part of an answer.

    Args:
        positions: in the request.
        indices: of the items.
        lengths: in bytes.
        crcs: CRC-32 of the bytes.
    """
    rows = _rows(positions, indices, lengths, crcs)
    ends = np.cumsum(rows["length"])
    rows["offset"] = ends - rows["length"]
    size = int(ends[-1]) if len(rows) else 0
    head, end = _around(rows.tobytes(), len(rows), 0, size, 0)
    return head, end, size


def _rows(
    positions: Sequence[int] | NDArray[np.int64],
    indices: NDArray[np.uint32],
    lengths: Sequence[int],
    crcs: Sequence[int],
) -> NDArray[np.void]:
    rows = np.zeros(len(positions), _ENTRIES)
    rows["position"], rows["index"], rows["length"], rows["crc32"] = positions, indices, lengths, crcs
    rows["flags"] = ItemFlag.HIT
    return rows


def _around(block: bytes, count: int, missing: int, size: int, flags: int) -> tuple[bytes, bytes]:
    end = END.pack(END_POSITION, END_MAGIC, size, count - missing, missing, crc32(block), 0, 0)
    return PREAMBLE.pack(INDEX_MAGIC, VERSION, flags, count, 0) + block, end


class AttachedIndex:
    """The records of an answer whose items are in open files: the index form without bodies, in parts.

    Every item is at the beginning of its file, and the files of a part leave with its entries.

    Args:
        count: items of the answer.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.delivered = 0
        self.bytes = 0
        self._crc = 0

    @property
    def length(self) -> int:
        """Bytes of all records."""
        return PREAMBLE.size + self.count * ENTRY.size + END.size

    def preamble(self) -> bytes:
        """The beginning."""
        return PREAMBLE.pack(INDEX_MAGIC, VERSION, ATTACHED, self.count, 0)

    def items(
        self, positions: NDArray[np.int64], indices: NDArray[np.uint32], lengths: Sequence[int], crcs: Sequence[int]
    ) -> bytes:
        """The entries of items with a file, as for ``resident_head``."""
        self.delivered += len(positions)
        self.bytes += sum(lengths)
        return self._record(_rows(positions, indices, lengths, crcs))

    def gone(self, positions: NDArray[np.int64], indices: NDArray[np.uint32]) -> bytes:
        """The entries of items that were evicted before their files could be opened; the client requests them again."""
        rows = np.zeros(len(positions), _ENTRIES)
        rows["position"], rows["index"], rows["status"] = positions, indices, ItemStatus.NOT_RESIDENT
        return self._record(rows)

    def end(self) -> bytes:
        """The end record."""
        missing = self.count - self.delivered
        return END.pack(END_POSITION, END_MAGIC, self.bytes, self.delivered, missing, self._crc, 0, 0)

    def _record(self, rows: NDArray[np.void]) -> bytes:
        block = rows.tobytes()
        self._crc = crc32(block, self._crc)
        return block


def files_record(count: int) -> bytes:
    """The record with which open files leave: ``count`` have come with the answer by then."""
    return FILES.pack(END_POSITION, FILES_MAGIC, count, 0)


def place_record(file: int, offset: int, count: int) -> bytes:
    """Where the next ``count`` bytes of an entry are: from ``offset`` on in a file, counted from 0, or ``INLINE``."""
    return PLACE.pack(file, 0, offset, count)


class FrameSequence:
    """The records of one answer in frames, with the counts for the end record."""

    def __init__(self) -> None:
        self.delivered = 0
        self.missing = 0
        self.bytes = 0
        self._crc = 0

    @staticmethod
    def preamble(*, attached: bool = False) -> bytes:
        """The beginning of an answer in frames; ``attached``: open files may come with it."""
        return PREAMBLE.pack(FRAMES_MAGIC, VERSION, ATTACHED if attached else 0, 0, 0)

    def item(self, entry: FrameEntry) -> bytes:
        """The header of an item whose bytes follow; a streamed one counts only once ``trailer`` confirms it."""
        streamed = ItemFlag.STREAMED in entry.flags
        if not streamed:
            self.delivered += 1
            self.bytes += entry.length
        return self._record(
            FRAME.pack(
                entry.position,
                entry.index,
                entry.length,
                0 if streamed else entry.crc32,
                ItemStatus.OK,
                entry.flags,
            )
        )

    def trailer(self, entry: FrameEntry, crc: int, status: ItemStatus) -> bytes:
        """The trailer of a streamed item: its CRC, and whether the bytes match its digest."""
        if status is ItemStatus.OK:
            self.delivered += 1
            self.bytes += entry.length
        else:
            self.missing += 1
        return self._record(TRAILER.pack(crc, status, 0))

    def failure(
        self, position: int, index: int, status: ItemStatus, bucket: str, key: str, detail: str, **more: str | int
    ) -> bytes:
        """The frame of an item that is not delivered, with the reason; ``more`` are further members of its document."""
        self.missing += 1
        body = json.dumps({"bucket": bucket, "key": key, "detail": detail, **more}).encode()
        return self._record(FRAME.pack(position, index, len(body), crc32(body), status, 0)) + body

    def end(self, status: ItemStatus = ItemStatus.OK) -> bytes:
        """The end record."""
        return END.pack(END_POSITION, END_MAGIC, self.bytes, self.delivered, self.missing, self._crc, status, 0)

    def _record(self, header: bytes) -> bytes:
        self._crc = crc32(header, self._crc)
        return header
