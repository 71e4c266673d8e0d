"""Decoding of a batch's answer, while it arrives. docs/batch-protocol.md of the gateway has the whole format.

There are two forms. With everything resident, an index of the items comes first and their bytes back to back after it: they
are read into a few large buffers. Otherwise each item is a frame of its own. Both end with a record that says what there
should have been; an answer without it is cut off, whatever the transport says.

Rule of this module: whatever happens, `Received` holds exactly the items that came whole, with the right CRC, for a position
that was asked for, and none twice; an answer that contradicts itself loses even those. So one that is cut, damaged or hostile
costs a repetition, never a wrong item, and nothing here allocates more than the answer can hold.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from larder.checksums import crc32
from larder.errors import TruncatedBatch, UnexpectedAnswer

MEDIA_TYPE = "application/x-larder-batch"
OK, MISSING, CHANGED, ORIGIN_ERROR, NOT_RESIDENT, REFUSED = range(6)
HIT, JOINED, STREAMED = 1, 2, 4
LIMIT = 16 << 30
"""Bytes that one answer may hold, unless told otherwise; more is taken for nonsense."""

_VERSION = 1
_PREAMBLE = struct.Struct("<4sHHII")
_FRAME = struct.Struct("<IIQIHH")
_TRAILER = struct.Struct("<IHH")
_END = struct.Struct("<I4sQIIIHH")
_END_POSITION = 0xFFFFFFFF
_ENTRY = np.dtype(
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
# Items share buffers of this size: larger ones the allocator gives back to the system and takes anew, page by page, each time.
_BUFFER = 16 << 20
# Items are read in groups of about this many bytes, so that a connection that is reset costs at most one group.
_GROUP = 1 << 20


_Row = tuple[int, int, int, int, int, int, int]


class ByteSource(Protocol):
    """What is read from: `http.client.HTTPResponse`, or any raw or buffered binary stream."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read up to ``len(buffer)`` bytes; 0 at the end."""


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """Why an item was not delivered: ``status`` of the wire format, and where the digest file says that it lies."""

    index: int
    status: int
    bucket: str = ""
    key: str = ""
    detail: str = ""


@dataclass(slots=True)
class Received:
    """What came whole, in the order of arrival.

    Args:
        positions: places in the request.
        data: the items' bytes, aligned with ``positions``.
        flags: of each item, aligned with ``positions``.
        failures: by place in the request, what the gateway could not deliver; only with a whole answer.
        corrupt: items whose bytes did not have their CRC; they count as not received.
        status: of the end record; ``ORIGIN_ERROR``: not everything was tried.
    """

    positions: list[int] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    failures: dict[int, ItemFailure] = field(default_factory=dict)
    corrupt: int = 0
    status: int = OK


class Decoder:
    """Reads one answer. ``received`` is right at every moment, also after an exception of whatever kind.

    Args:
        request: the item indices that were asked for.
        take: how many of them may come at most; all of them when left out.
        length: of the answer in bytes, where the transport knows it.
        limit: bytes that the answer may hold at most.
        endpoint: for messages.
    """

    def __init__(
        self,
        request: NDArray[np.uint32],
        *,
        take: int | None = None,
        length: int | None = None,
        limit: int = LIMIT,
        endpoint: str = "the gateway",
    ) -> None:
        self.received = Received()
        self._request = request
        self._take = len(request) if take is None else take
        self._length = length
        self._budget = limit if length is None else min(length, limit)
        self._endpoint = endpoint
        self._seen = np.zeros(len(request), dtype=np.bool_)
        # An item proves itself by its own CRC; a failure is believed when the end record has proved its header.
        self._failures: dict[int, ItemFailure] = {}
        self._crc = 0
        self._delivered = 0
        self._missing = 0
        self._bytes = 0

    def decode(self, source: ByteSource) -> Received:
        """Read to the end record, and to the end of the answer after it.

        Raises:
            TruncatedBatch: the answer ended early or its records contradict each other.
            UnexpectedAnswer: this is no batch, or one that nobody asked for.
        """
        magic, version, flags, count, _ = _PREAMBLE.unpack(self._read(source, _PREAMBLE.size, "its preamble"))
        if magic not in (b"LRDI", b"LRDF") or version != _VERSION or flags:
            raise self._nonsense(f"no batch of version {_VERSION}, it begins with {magic!r}")
        if magic == b"LRDI":
            self._index_form(source, count)
        else:
            self._frames_form(source)
        try:
            more = source.readinto(memoryview(bytearray(1)))
        except (OSError, HTTPException):
            more = 0  # Everything was there; that the connection broke off only after it is no loss.
        if more:
            raise self._broken("there are bytes after the end record")
        return self.received

    def _index_form(self, source: ByteSource, count: int) -> None:
        room = self._budget - _PREAMBLE.size - _END.size - count * _ENTRY.itemsize
        if count > len(self._request) or room < 0:
            raise self._nonsense(
                f"{count} items were announced in at most {self._budget} bytes for {len(self._request)} asked"
            )
        block = self._read(source, count * _ENTRY.itemsize, "its index")
        entries = np.frombuffer(block, dtype=_ENTRY)
        self._check_entries(entries, room)
        self._crc = crc32(block)
        self._missing = int(np.count_nonzero(entries["status"]))
        self._delivered = count - self._missing
        self._bytes = int(entries["length"][entries["status"] == OK].sum())
        self._bodies(source, entries)
        self._end(source)

    def _check_entries(self, entries: NDArray[np.void], room: int) -> None:
        """Positions asked for and none twice, bodies back to back, and as long as the answer is."""
        positions, lengths = entries["position"], entries["length"]
        if len(entries) and int(positions.max()) >= len(self._request):
            raise self._nonsense(f"position {positions.max()} was not asked for")
        if len(np.unique(positions)) != len(entries):
            raise self._nonsense("a position comes twice")
        if np.any(self._request[positions] != entries["index"]):
            raise self._nonsense("an item is not the one asked for at its position")
        if np.count_nonzero(entries["status"] == OK) > self._take:
            raise self._nonsense(f"more than {self._take} items")
        if len(entries) and int(lengths.max()) > room:
            raise self._nonsense(f"an item of {lengths.max()} bytes in an answer of at most {self._budget}")
        # Each length is at most 2^34 here and there are at most 2^20 of them, so that this sum cannot wrap around.
        ends = np.cumsum(lengths, dtype=np.uint64)
        total = int(ends[-1]) if len(entries) else 0
        if total > room or (self._length is not None and total != room):
            raise self._nonsense("the lengths of the items are not that of the answer")
        if np.any(ends - lengths != entries["offset"]):
            raise self._nonsense("the items are not back to back")

    def _bodies(self, source: ByteSource, entries: NDArray[np.void]) -> None:
        """Read the items, several into one buffer, each whole in one."""
        rows = entries.tolist()
        for stretch in _stretches(rows, _BUFFER):
            start = stretch[0][2]
            buffer = self._buffer(stretch[-1][2] + stretch[-1][3] - start)
            filled = 0
            for group in _stretches(stretch, _GROUP):
                end = group[-1][2] + group[-1][3] - start
                filled += _fill(source, buffer[filled:end])
                for position, index, offset, length, crc, status, flags in group:
                    if offset - start + length > filled:
                        raise self._broken("it ended inside an item's bytes")
                    self._item(position, index, buffer[offset - start : offset - start + length], crc, status, flags)

    def _frames_form(self, source: ByteSource) -> None:
        while True:
            head = self._read(source, _FRAME.size, "a frame's header")
            if head[:8] == _END.pack(_END_POSITION, b"LEND", 0, 0, 0, 0, 0, 0)[:8]:
                return self._end(source, head)
            self._crc = crc32(head, self._crc)
            position, index, length, crc, status, flags = _FRAME.unpack(head)
            self._check_frame(position, index, length)
            body = self._buffer(length)
            if _fill(source, body) < length:
                raise self._broken("it ended inside an item's bytes")
            if flags & STREAMED and status == OK:
                trailer = self._read(source, _TRAILER.size, "a streamed item's trailer")
                self._crc = crc32(trailer, self._crc)
                crc, status, _ = _TRAILER.unpack(trailer)
                if status != OK:
                    body = memoryview(b"")
                    crc = 0
            self._count(length, status)
            self._item(position, index, body, crc, status, flags)

    def _check_frame(self, position: int, index: int, length: int) -> None:
        if position >= len(self._request) or self._request[position] != index:
            raise self._nonsense(f"item {index} was not asked for at position {position}")
        if self._seen[position]:
            raise self._nonsense(f"position {position} comes twice")
        self._seen[position] = True
        self._budget -= _FRAME.size + length
        if self._budget < 0:
            raise self._nonsense(f"an item of {length} bytes is more than an answer may hold")

    def _count(self, length: int, status: int) -> None:
        if status != OK:
            self._missing += 1
            return
        self._delivered += 1
        self._bytes += length
        if self._delivered > self._take:
            raise self._nonsense(f"more than {self._take} items")

    def _item(self, position: int, index: int, body: memoryview, crc: int, status: int, flags: int) -> None:
        received = self.received
        if crc32(body) != crc:
            received.corrupt += 1
        elif status == OK:
            received.positions.append(position)
            received.data.append(body)
            received.flags.append(flags)
        else:
            self._failures[position] = _failure(index, status, bytes(body))

    def _end(self, source: ByteSource, head: bytes = b"") -> None:
        record = head + self._read(source, _END.size - len(head), "its end record")
        position, magic, size, delivered, missing, crc, status, _ = _END.unpack(record)
        if position != _END_POSITION or magic != b"LEND":
            raise self._damaged("there is no end record where it belongs")
        if crc != self._crc:
            raise self._damaged("its headers were damaged on the way")
        if (size, delivered, missing) != (self._bytes, self._delivered, self._missing):
            raise self._broken(
                f"its end record counts {delivered} delivered, {missing} missing, {size} bytes, but there were "
                f"{self._delivered}, {self._missing}, {self._bytes}"
            )
        self.received.status = status
        self.received.failures = self._failures

    def _buffer(self, size: int) -> memoryview:
        try:
            return np.empty(size, dtype=np.uint8).data  # unlike a bytearray, not written before it is read into
        except MemoryError:
            raise self._nonsense(f"there is no memory for {size} bytes") from None

    def _read(self, source: ByteSource, size: int, what: str) -> bytes:
        buffer = bytearray(size)
        if _fill(source, memoryview(buffer)) < size:
            raise self._broken(f"it ended inside {what}")
        return bytes(buffer)

    def _distrust(self) -> None:
        """A header is damaged, and it cannot be told which; with another status, an explanation passes for an item's bytes."""
        received = self.received
        received.positions, received.data, received.flags = [], [], []

    def _broken(self, detail: str) -> TruncatedBatch:
        came = len(self.received.positions)
        return TruncatedBatch(came, max(0, min(self._take, len(self._request)) - came), detail)

    def _damaged(self, detail: str) -> TruncatedBatch:
        self._distrust()
        return self._broken(detail)

    def _nonsense(self, detail: str) -> UnexpectedAnswer:
        self._distrust()
        return UnexpectedAnswer(self._endpoint, 200, detail)


def _stretches(rows: list[_Row], size: int) -> Iterator[list[_Row]]:
    """Items in a row of about ``size`` bytes together, one at least, and all that have no bytes with them."""
    first = 0
    for at, row in enumerate(rows):
        if row[2] + row[3] - rows[first][2] > size and at > first:
            yield rows[first:at]
            first = at
    if first < len(rows):
        yield rows[first:]


def _fill(source: ByteSource, view: memoryview) -> int:
    """Read until the view is full or the source has ended; how many bytes there were."""
    filled = 0
    while filled < len(view):
        count = source.readinto(view[filled:])
        if not count:
            break
        filled += count
    return filled


def _failure(index: int, status: int, body: bytes) -> ItemFailure:
    try:
        said = json.loads(body) if body else {}
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    return ItemFailure(index, status, *(str(said.get(name, "")) for name in ("bucket", "key", "detail")))
