"""Importance on the wire: the part of a job's scores, and of its next list, that one home is responsible for.

Little-endian: ``LDIM``, version u16 = 2, flags u16 (bit 0: whole, bit 1: of all homes), sequence u64, base u64, epoch u32,
items u32, rows u32; then one zlib stream of a table with one row for each item that has a new score or is drawn: its index (u32,
ascending, as the difference to the row before), its score (float16, finite, >= 0; ``UNSCORED`` without a new one), and how often
it is drawn (u8, saturating; 0 if it is not). An item has one row for both, as most have both.

Columns follow each other, in byte planes: all lowest bytes of a column, then all second bytes. Scores do not repeat, but some
bytes are frequent, and planes put these together. So zlib only looks for runs of one byte (``Z_RLE``), which takes a seventh of
the time and avoids chance matches that cost more than they save. A million items of eight homes take at most 1.9 MB: the client
sends scores in steps of 1/64.

The header gives the size of the decompressed stream, so nothing larger is ever allocated. ``larder.training.importance_wire`` is
the client's encoder; ``tests/wire/importance.json`` has golden vectors for both.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SCORED = 10_000_000
"""Items of a dataset that can be scored: decoding takes 7 bytes for each."""

_MAGIC = b"LDIM"
_VERSION = 2
_WHOLE = 1
_OF_ALL = 2
_HEADER = struct.Struct("<4sHHQQIII")
_WINDOW, _MEMORY = 15, 8
"""zlib's defaults: bits of the window, and memory level; ``longest`` holds for these."""
UNSCORED = 0xFFFF
"""The bits that mean "no score"."""
_INDEX, _SCORE, _ROW = 4, 2, 7
"""Bytes of an index, of a score, and of a row."""


class MalformedPart(ValueError):
    """The bytes are not a valid part; ``field`` is the first invalid field."""

    def __init__(self, field: str, detail: str) -> None:
        self.field, self.detail = field, detail
        super().__init__(f"{field}: {detail}")


@dataclass(frozen=True, slots=True, eq=False)
class ScorePart:
    """Scores that changed since ``base``, and items drawn in the next epoch.

    Attributes:
        sequence: the sender's number of this part.
        base: the part that this one adds to; meaningless if ``whole``.
        epoch: the sender's.
        whole: it replaces all earlier parts.
        of_all: the sender sends the items of all homes to one gateway, instead of sending each home its own.
        scored: indices, ascending, distinct.
        scores: of these items, float16, finite and not negative (SHADE's rank score, section 4.2).
        listed: distinct items of the next epoch's list, ascending.
        draws: how often each is drawn, 1 to 255.
    """

    sequence: int
    base: int
    epoch: int
    whole: bool
    of_all: bool
    scored: NDArray[np.uint32]
    scores: NDArray[np.float16]
    listed: NDArray[np.uint32]
    draws: NDArray[np.uint8]

    def only(self, scored: NDArray[np.bool_], listed: NDArray[np.bool_]) -> ScorePart:
        """The part restricted to some items, by position."""
        return ScorePart(
            self.sequence,
            self.base,
            self.epoch,
            self.whole,
            self.of_all,
            self.scored[scored],
            self.scores[scored],
            self.listed[listed],
            self.draws[listed],
        )


def longest(items: int) -> int:
    """The most bytes of a part for a dataset of ``items`` items."""
    raw = _ROW * items
    # zlib's overhead for incompressible data: 5 bytes per 16 KiB, and its header (zlib.h, deflateBound).
    return _HEADER.size + raw + 5 * (raw // 16_383 + 1) + 11


def encode(part: ScorePart, items: int) -> bytes:
    """The bytes of a part, for the home of its items."""
    rows = np.union1d(part.scored, part.listed)
    scores, draws = np.full(len(rows), UNSCORED, np.uint16), np.zeros(len(rows), np.uint8)
    scores[np.searchsorted(rows, part.scored)] = part.scores.view(np.uint16)
    draws[np.searchsorted(rows, part.listed)] = part.draws
    flags = (_WHOLE if part.whole else 0) | (_OF_ALL if part.of_all else 0)
    head = _HEADER.pack(_MAGIC, _VERSION, flags, part.sequence, part.base, part.epoch, items, len(rows))
    return head + _deflated(_planes(_differences(rows)) + _planes(scores) + draws.tobytes())


def decode(body: bytes, items: int) -> ScorePart:
    """Parse a part.

    Args:
        body: as received.
        items: of the dataset.

    Raises:
        MalformedPart: not a valid part for this dataset; no more than ``items`` allows has been allocated.
    """
    if len(body) < _HEADER.size:
        raise MalformedPart("body", f"has {len(body)} bytes; its header alone has {_HEADER.size}")
    magic, version, flags, sequence, base, epoch, stated, rows = _HEADER.unpack_from(body)
    if magic != _MAGIC:
        raise MalformedPart("magic", "is not LDIM")
    if version != _VERSION:
        raise MalformedPart("version", f"is {version}; this gateway reads version {_VERSION}")
    if flags & ~(_WHOLE | _OF_ALL):
        raise MalformedPart("flags", f"has unknown bits: {flags:#x}")
    if stated != items:
        raise MalformedPart("items", f"says {stated}; the dataset has {items}")
    if not sequence:
        raise MalformedPart("sequence", "must be 1 or more")
    if rows > items:
        raise MalformedPart("rows", f"says {rows} items; the dataset has {items}")
    raw = np.frombuffer(_inflated(body[_HEADER.size :], _ROW * rows), np.uint8)
    indices = _indices(_column(raw[: _INDEX * rows], _INDEX, "<u4"), items)
    bits = _column(raw[_INDEX * rows : (_INDEX + _SCORE) * rows], _SCORE, "<u2")
    draws = raw[(_INDEX + _SCORE) * rows :]
    scored, listed = bits != UNSCORED, draws > 0
    scores = bits[scored].view(np.float16)
    if not np.isfinite(scores).all() or (scores < 0).any():
        raise MalformedPart("scores", "must be finite and not negative")
    if not (scored | listed).all():
        raise MalformedPart("rows", "must each have a score, or a number of draws of 1 or more")
    return ScorePart(
        sequence,
        base,
        epoch,
        bool(flags & _WHOLE),
        bool(flags & _OF_ALL),
        indices[scored],
        scores,
        indices[listed],
        draws[listed],
    )


def _deflated(raw: bytes) -> bytes:
    deflater = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_RLE)
    return deflater.compress(raw) + deflater.flush()


def _inflated(stream: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed reveals an excess; a limit of 0 would mean no limit.
        raw = inflater.decompress(stream, size + 1)
    except zlib.error as error:
        raise MalformedPart("body", f"is not a zlib stream after its header: {error}") from None
    if len(raw) != size or not inflater.eof:
        raise MalformedPart("body", f"must hold {size} bytes once decompressed, as its header says, and nothing more")
    if inflater.unused_data:
        raise MalformedPart("body", f"goes on for {len(inflater.unused_data)} bytes after its zlib stream")
    return raw


def _planes(column: NDArray[Any]) -> bytes:
    """The bytes of a column, all lowest bytes first."""
    little = column.astype(column.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()


def _column(planes: NDArray[np.uint8], width: int, kind: str) -> NDArray[Any]:
    """The column with these planes, in this machine's byte order."""
    column = np.ascontiguousarray(planes.reshape(width, -1).T).view(kind).reshape(-1)
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def _differences(indices: NDArray[Any]) -> NDArray[Any]:
    return np.diff(indices, prepend=indices[:1] * 0).astype(np.uint32, copy=False)


def _indices(differences: NDArray[np.uint32], items: int) -> NDArray[np.uint32]:
    """The indices with these differences; the first difference is the first index itself."""
    if not len(differences):
        return np.empty(0, dtype=np.uint32)
    if not differences[1:].all():
        raise MalformedPart("rows", "the indices must ascend")
    indices = np.cumsum(differences, dtype=np.uint64)
    # In 64 bits, no sum of 32-bit differences overflows.
    if int(indices[-1]) >= items:
        raise MalformedPart("rows", f"has the index {int(indices[-1])}; the dataset has {items} items")
    return indices.astype(np.uint32)
