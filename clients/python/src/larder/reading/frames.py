"""Streaming decoder of a batch's answer. The format is in docs/batch-protocol.md of the gateway.

There are two forms. If all items are resident, an index comes first and the items' bytes follow contiguously: they are read
into a few large buffers. Over a unix socket, open files may come with the index instead of the bytes: each file arrives by the
time of its entry, and is read while the gateway opens the next ones. Otherwise each item is a frame. Both end with a record of
the totals; an answer without it is truncated, whatever the transport reports.

Rule of this module: `Received` always holds exactly the complete items with a correct CRC at requested positions, none twice; an
inconsistent answer discards even those. So a truncated, damaged or hostile answer costs a repetition, never a wrong item, and
nothing here allocates more than the answer can hold.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from larder.base.buffers import SIZE, Buffers, Space
from larder.base.checksums import crc32
from larder.base.errors import TruncatedBatch, UnexpectedAnswer
from larder.http.local import close_all
from larder.reading.passed import ARRIVE, OpenFiles, PassedFiles

MEDIA_TYPE = "application/x-larder-batch"
OK, MISSING, CHANGED, ORIGIN_ERROR, NOT_RESIDENT, REFUSED, CLAIMED, BUSY, LATER, INVALID = range(10)
HIT, JOINED, STREAMED, ATTACHED = 1, 2, 4, 8
LIMIT = 16 << 30
"""Default maximum of bytes in one answer; a larger one is refused."""

_VERSION = 1
_FILES_COME = 1
"""Flag of the preamble: the items, or some of those in frames, are in open files that come with the answer."""
_PREAMBLE = struct.Struct("<4sHHII")
_FRAME = struct.Struct("<IIQIHH")
_TRAILER = struct.Struct("<IHH")
_END = struct.Struct("<I4sQIIIHH")
_END_POSITION = 0xFFFFFFFF
_ROW = struct.Struct("<IIQQIHH")
"""An entry of the index."""
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
"""The same, for many entries."""
_MOST_TOLD = 1 << 20
"""Bound of statuses and seconds in the document of a failure."""
_GROUP = 1 << 20
"""Approximate bytes that are read at a time: a connection reset costs at most one group."""


Buffer = bytes | bytearray | memoryview
_Row = tuple[int, int, int, int, int, int, int]


class ByteSource(Protocol):
    """An `http.client.HTTPResponse`, or any raw or buffered binary stream."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read up to ``len(buffer)`` bytes; 0 at the end."""


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """Why an item was not delivered: ``status`` of the wire format, and its location by the digest file.

    For a batch of keys, ``index`` is the entry's place in the request, ``code`` and ``http_status`` are those of the S3 error,
    and ``retry_after`` the seconds to wait before another request.
    """

    index: int
    status: int
    bucket: str = ""
    key: str = ""
    detail: str = ""
    code: str = ""
    http_status: int = 0
    retry_after: int = 0


@dataclass(slots=True)
class Received:
    """The complete items of an answer, in the order of arrival.

    Args:
        positions: positions in the request.
        data: the items' bytes, aligned with ``positions``.
        flags: flags of each item, aligned with ``positions``.
        failures: items that the gateway could not deliver, by position in the request; only after a complete answer.
        corrupt: items with a wrong CRC, which count as not received.
        attached: items that were read from open files.
        status: of the end record; ``ORIGIN_ERROR``: some items were not tried.
    """

    positions: list[int] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    failures: dict[int, ItemFailure] = field(default_factory=dict)
    corrupt: int = 0
    attached: int = 0
    status: int = OK


class Decoder:
    """Reads one answer. ``received`` is valid at any time, also after any exception.

    Args:
        request: the requested item indices.
        take: maximum number of delivered items; by default all.
        length: bytes of the answer, if the transport knows it.
        limit: maximum bytes of the answer, or of its items.
        endpoint: for messages.
        files: open files that come with the answer, if the transport can carry any; `PassedFiles` for those that frames name.
    """

    def __init__(
        self,
        request: NDArray[np.uint32],
        *,
        take: int | None = None,
        length: int | None = None,
        limit: int = LIMIT,
        endpoint: str = "the gateway",
        files: OpenFiles | PassedFiles | None = None,
    ) -> None:
        self.received = Received()
        self._buffers = Buffers()
        self._limit = limit
        self._files = None if isinstance(files, PassedFiles) else files
        self._passed = files if isinstance(files, PassedFiles) else PassedFiles(None, 0)
        self._request = request
        self._take = len(request) if take is None else take
        self._length = length
        self._budget = limit if length is None else min(length, limit)
        self._endpoint = endpoint
        self._seen = np.zeros(len(request), dtype=np.bool_)
        # Items are verified by their own CRC; failures count once the end record has verified the headers.
        self._failures: dict[int, ItemFailure] = {}
        self._crc = 0
        self._delivered = 0
        self._missing = 0
        self._bytes = 0

    def decode(self, source: ByteSource, buffers: Buffers | None = None) -> Received:
        """Read to the end record, and to the end of the answer after it.

        Args:
            source: the answer.
            buffers: for the items; by default new ones.

        Raises:
            TruncatedBatch: the answer ended early, or its records are inconsistent.
            UnexpectedAnswer: not a batch, or not the requested one.
        """
        self._buffers = buffers or self._buffers
        magic, version, flags, count, _ = _PREAMBLE.unpack(self._read(source, _PREAMBLE.size, "its preamble"))
        attached = flags == _FILES_COME and (self._files if magic == b"LRDI" else self._passed.files) is not None
        if magic not in (b"LRDI", b"LRDF") or version != _VERSION or (flags and not attached):
            raise self._invalid(f"no batch of version {_VERSION}, it begins with {magic!r}")
        if magic == b"LRDI":
            self._index_form(source, count, attached)
        else:
            with self._passed:
                self._frames_form(source)
        try:
            more = source.readinto(memoryview(bytearray(1)))
        except (OSError, HTTPException):
            more = 0  # Everything has arrived; a connection that breaks afterwards costs nothing.
        if more:
            raise self._broken("there are bytes after the end record")
        return self.received

    def _index_form(self, source: ByteSource, count: int, attached: bool) -> None:
        room = self._budget - _PREAMBLE.size - _END.size - count * _ENTRY.itemsize
        if count > len(self._request) or room < 0:
            raise self._invalid(f"{count} items in at most {self._budget} bytes, for {len(self._request)} asked")
        if attached:
            self._attached_form(source, count)
            return
        block = self._read(source, count * _ENTRY.itemsize, "its index")
        entries = self._checked(block, room)
        self._check_contiguous(entries, room)
        self._bodies(source, entries)
        self._end(source)

    def _checked(self, block: bytes, room: int) -> NDArray[np.void]:
        """The entries of an index.

        Each is a requested position and comes once; no item is larger than ``room``, the bytes for all of them.
        """
        entries = np.frombuffer(block, dtype=_ENTRY)
        count = len(entries)
        positions, lengths, good = entries["position"], entries["length"], entries["status"] == OK
        if count and int(positions.max()) >= len(self._request):
            raise self._invalid(f"position {positions.max()} was not requested")
        self._seen[positions] = True
        self._delivered = int(np.count_nonzero(good))
        self._missing = count - self._delivered
        if np.count_nonzero(self._seen) != count:
            raise self._invalid("duplicate position")
        if np.any(self._request[positions] != entries["index"]):
            raise self._invalid("an item is not the requested one of its position")
        if self._delivered > self._take:
            raise self._invalid(f"more than {self._take} items")
        if count and int(lengths.max()) > room:
            raise self._invalid(f"an item of {lengths.max()} bytes in an answer of at most {room}")
        # At most 2^20 lengths of at most 2^34: the sum cannot overflow.
        if int(lengths.sum(dtype=np.uint64)) > room:
            raise self._invalid("the lengths of the items do not add up to that of the answer")
        self._crc = crc32(block, self._crc)
        self._bytes = int(lengths[good].sum())
        return entries

    def _check_contiguous(self, entries: NDArray[np.void], room: int) -> None:
        """Check that bodies are contiguous and fill the answer."""
        lengths = entries["length"]
        ends = np.cumsum(lengths, dtype=np.uint64)
        total = int(ends[-1]) if len(entries) else 0
        if self._length is not None and total != room:
            raise self._invalid("the lengths of the items do not add up to that of the answer")
        if np.any(ends - lengths != entries["offset"]):
            raise self._invalid("the items are not contiguous")

    def _bodies(self, source: ByteSource, entries: NDArray[np.void]) -> None:
        """Read the items into shared buffers, each contiguous."""
        rows = entries.tolist()
        for stretch in _stretches(rows, SIZE):
            start = stretch[0][2]
            space = self._buffer(stretch[-1][2] + stretch[-1][3] - start)
            filled = 0
            for group in _stretches(stretch, _GROUP):
                end = group[-1][2] + group[-1][3] - start
                filled += _fill(source, space[filled:end])
                for position, index, offset, length, crc, status, flags in group:
                    if offset - start + length > filled:
                        raise self._broken("it ended inside an item's bytes")
                    self._item(position, index, space[offset - start : offset - start + length], crc, status, flags)

    def _attached_form(self, source: ByteSource, count: int) -> None:
        """Read the items from the files that come with their entries, part by part, into shared buffers.

        A part has as many entries as files have arrived: while they are read, the gateway opens the next ones. Items count as
        received once all entries are checked and the end record has verified them. An item whose file lacks bytes is not
        received.
        """
        assert self._files is not None
        space, kept, files, index = Space(self._buffer), Received(), list[int](), bytearray()
        room = self._limit
        first = 0
        try:
            while first < count:
                block = self._read(source, _ROW.size, "its index")
                files += self._files.take_descriptors()
                part = max(1, min(len(files), count - first))
                block += self._read(source, (part - 1) * _ROW.size, "its index")
                index += block
                # The other items' files are gone: these items are requested again.
                rows = [row for row in _ROW.iter_unpack(block) if row[5] == OK]
                if len(files) < len(rows):
                    raise self._broken(f"{kept.attached + len(files)} of {count} open files came with it")
                size = sum([row[3] for row in rows])
                if size > room:
                    raise self._invalid(f"items of {size} bytes in an answer of at most {room}")
                room -= size
                space.expected = size * (count - first) // max(1, len(rows))
                _read_files(rows, files, space, kept)
                close_all(files[: len(rows)])
                del files[: len(rows)]
                first += part
            self._checked(bytes(index), self._limit)
            self._end(source)
            files += self._files.take_descriptors()
            if files:
                raise self._broken(f"{kept.attached + len(files)} of {kept.attached} open files came with it")
        finally:
            close_all(files)
        received = self.received
        received.positions, received.data, received.flags = kept.positions, kept.data, kept.flags
        received.attached, received.corrupt = len(kept.positions), kept.corrupt

    def _frames_form(self, source: ByteSource) -> None:
        while True:
            head = self._read(source, _FRAME.size, "a frame's header")
            if head[:8] == _END.pack(_END_POSITION, b"LEND", 0, 0, 0, 0, 0, 0)[:8]:
                return self._end(source, head)
            if head[:8] == ARRIVE:
                if not self._passed.arrive(head):
                    raise self._broken(f"only {self._passed.count} open files came with it")
                continue
            self._crc = crc32(head, self._crc)
            position, index, length, crc, status, flags = _FRAME.unpack(head)
            self._check_frame(position, index, length)
            if flags & ATTACHED:
                self._attached_entry(source, head)
                continue
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

    def _attached_entry(self, source: ByteSource, head: bytes) -> None:
        """Read an entry from the files that it names."""
        position, _, length, _, _, flags = _FRAME.unpack(head)
        try:
            body, trailer = self._passed.read(lambda size: self._read(source, size, "an entry's places"), head, length)
        except ValueError as impossible:
            raise self._invalid(str(impossible)) from None
        self._crc = crc32(trailer, self._crc)
        self._count(length, OK)
        self.received.corrupt += body is None
        self.received.attached += body is not None
        if body is not None:
            self._keep(position, body, flags)

    def _check_frame(self, position: int, index: int, length: int) -> None:
        if position >= len(self._request) or self._request[position] != index:
            raise self._invalid(f"item {index} was not requested at position {position}")
        if self._seen[position]:
            raise self._invalid(f"duplicate position {position}")
        self._seen[position] = True
        self._budget -= _FRAME.size + length
        if self._budget < 0:
            raise self._invalid(f"an item of {length} bytes is more than an answer may hold")

    def _count(self, length: int, status: int) -> None:
        if status != OK:
            self._missing += 1
            return
        self._delivered += 1
        self._bytes += length
        if self._delivered > self._take:
            raise self._invalid(f"more than {self._take} items")

    def _item(self, position: int, index: int, body: memoryview, crc: int, status: int, flags: int) -> None:
        received = self.received
        if crc32(body) != crc:
            received.corrupt += 1
        elif status == OK:
            self._keep(position, body, flags)
        else:
            self._failures[position] = _failure(index, status, bytes(body))

    def _keep(self, position: int, body: memoryview, flags: int) -> None:
        received = self.received
        received.positions.append(position)
        received.data.append(body)
        received.flags.append(flags)

    def _end(self, source: ByteSource, head: bytes = b"") -> None:
        record = head + self._read(source, _END.size - len(head), "its end record")
        position, magic, size, delivered, missing, crc, status, _ = _END.unpack(record)
        if position != _END_POSITION or magic != b"LEND":
            raise self._damaged("the end record is missing")
        if crc != self._crc:
            raise self._damaged("its headers are damaged")
        if (size, delivered, missing) != (self._bytes, self._delivered, self._missing):
            raise self._broken(
                f"its end record counts {delivered} delivered, {missing} missing, {size} bytes, but there were "
                f"{self._delivered}, {self._missing}, {self._bytes}"
            )
        self.received.status = status
        self.received.failures = self._failures

    def _buffer(self, size: int) -> memoryview:
        try:
            return self._buffers.borrow(size)
        except MemoryError:
            raise self._invalid(f"out of memory for {size} bytes") from None

    def _read(self, source: ByteSource, size: int, what: str) -> bytes:
        buffer = bytearray(size)
        if _fill(source, memoryview(buffer)) < size:
            raise self._broken(f"it ended inside {what}")
        return bytes(buffer)

    def _distrust(self) -> None:
        """Drop everything: an unknown header is damaged, and a damaged status could turn an error text into an item."""
        received = self.received
        received.positions, received.data, received.flags = [], [], []

    def _broken(self, detail: str) -> TruncatedBatch:
        came = len(self.received.positions)
        return TruncatedBatch(came, max(0, min(self._take, len(self._request)) - came), detail)

    def _damaged(self, detail: str) -> TruncatedBatch:
        self._distrust()
        return self._broken(detail)

    def _invalid(self, detail: str) -> UnexpectedAnswer:
        self._distrust()
        return UnexpectedAnswer(self._endpoint, 200, detail)


def index_form(entries: Iterable[tuple[int, int, Sequence[Buffer]]]) -> bytes:
    """A body in the index form, for sending results: index, status and pieces of bytes of each."""
    rows: list[_Row] = []
    bodies: list[Buffer] = []
    offset = missing = 0
    for position, (index, status, pieces) in enumerate(entries):
        crc = length = 0
        for piece in pieces:
            crc = crc32(piece, crc)
            length += memoryview(piece).nbytes
        rows.append((position, index, offset, length, crc, status, 0))
        bodies += pieces
        offset += length
        missing += status != OK
    block = np.array(rows, _ENTRY).tobytes()
    head = _PREAMBLE.pack(b"LRDI", _VERSION, 0, len(rows), 0)
    end = _END.pack(_END_POSITION, b"LEND", offset, len(rows) - missing, missing, crc32(block), 0, 0)
    return b"".join([head, block, *bodies, end])


def _stretches(rows: list[_Row], size: int) -> Iterator[list[_Row]]:
    """Runs of items of about ``size`` bytes, at least one item each; empty items join the current run."""
    first = 0
    for at, row in enumerate(rows):
        if row[2] + row[3] - rows[first][2] > size and at > first:
            yield rows[first:at]
            first = at
    if first < len(rows):
        yield rows[first:]


def _fill(source: ByteSource, view: memoryview) -> int:
    """Read until the view is full or the source ends; returns the number of bytes."""
    filled = 0
    while filled < len(view):
        count = source.readinto(view[filled:])
        if not count:
            break
        filled += count
    return filled


def _read_files(rows: Sequence[_Row], files: Sequence[int], space: Space, kept: Received) -> None:
    """Read each item from its file, the first ones of ``files``."""
    places = space.places([row[3] for row in rows])
    positions, data, all_flags = kept.positions, kept.data, kept.flags
    for body, (position, _, offset, _, crc, _, flags), file in zip(places, rows, files, strict=False):
        if _filled(file, offset, body) and crc32(body) == crc:
            positions.append(position)
            data.append(body)
            all_flags.append(flags)
        else:
            kept.corrupt += 1
    kept.attached += len(rows)


def _filled(file: int, offset: int, view: memoryview) -> bool:
    """Fill a view from an open file; returns whether the file could be read and had all bytes."""
    size = len(view)
    try:
        filled = count = os.preadv(file, (view,), offset)
        while filled < size and count:
            filled += (count := os.preadv(file, (view[filled:],), offset + filled))
    except (OSError, OverflowError):
        return False
    return filled == size


def _failure(index: int, status: int, body: bytes) -> ItemFailure:
    try:
        said = json.loads(body) if body else {}
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    bucket, key, detail, code = (str(said.get(name, "")) for name in ("bucket", "key", "detail", "code"))
    return ItemFailure(
        index, status, bucket, key, detail, code, _number(said.get("http_status")), _number(said.get("retry_after"))
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_TOLD else 0
