"""Importance on the wire: the part of a job's scores, and of its next list, that one home is responsible for.

Little-endian: ``LDIM``, version u16 = 1, flags u16 (bit 0: whole), sequence u64, base u64, epoch u32, items u32, scored u32,
listed u32; then one zlib stream of, back to back, the scored indices (u32, ascending, as first differences), their scores
(float16, finite, >= 0), the listed indices (as the scored ones), and how often each is drawn (u8, >= 1, saturating).

The header gives the size of the decompressed stream, so nothing larger is ever allocated. ``larder.importance_wire`` is the
client's encoder; ``tests/wire/importance.json`` has golden vectors for both.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SCORED = 10_000_000
"""Items of a dataset that can be scored: decoding takes 11 bytes for each."""

_MAGIC = b"LDIM"
_VERSION = 1
_WHOLE = 1
_HEADER = struct.Struct("<4sHHQQIIII")
_LEVEL = 6
_PER_SCORED = 6
_PER_LISTED = 5
"""Bytes of the decompressed stream."""


class MalformedPart(ValueError):
    """The bytes are not a valid part; ``field`` is the first invalid field."""

    def __init__(self, field: str, detail: str) -> None:
        self.field = field
        super().__init__(f"{field}: {detail}")


@dataclass(frozen=True, slots=True, eq=False)
class ScorePart:
    """Scores that changed since ``base``, and items drawn in the next epoch.

    Attributes:
        sequence: the sender's number of this part.
        base: the part that this one adds to; meaningless if ``whole``.
        epoch: the sender's.
        whole: it replaces all earlier parts.
        scored: indices, ascending, distinct.
        scores: of these items, float16, finite and not negative (SHADE's rank score, section 4.2).
        listed: distinct items of the next epoch's list, ascending.
        draws: how often each is drawn, 1 to 255.
    """

    sequence: int
    base: int
    epoch: int
    whole: bool
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
            self.scored[scored],
            self.scores[scored],
            self.listed[listed],
            self.draws[listed],
        )


def longest(items: int) -> int:
    """Most bytes of a part for a dataset of ``items`` items."""
    raw = (_PER_SCORED + _PER_LISTED) * items
    # zlib's overhead for incompressible data: 5 bytes per 16 KiB, and its header (zlib.h, deflateBound).
    return _HEADER.size + raw + 5 * (raw // 16_383 + 1) + 11


def encode(part: ScorePart, items: int) -> bytes:
    """The bytes of a part, for the home of its items."""
    head = _HEADER.pack(
        _MAGIC,
        _VERSION,
        _WHOLE if part.whole else 0,
        part.sequence,
        part.base,
        part.epoch,
        items,
        len(part.scored),
        len(part.listed),
    )
    columns = (
        _differences(part.scored),
        part.scores.astype("<f2", copy=False),
        _differences(part.listed),
        part.draws,
    )
    return head + zlib.compress(b"".join(column.tobytes() for column in columns), _LEVEL)


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
    magic, version, flags, sequence, base, epoch, stated, scored, listed = _HEADER.unpack_from(body)
    if magic != _MAGIC:
        raise MalformedPart("magic", "is not LDIM")
    if version != _VERSION:
        raise MalformedPart("version", f"is {version}; this gateway reads version {_VERSION}")
    if flags & ~_WHOLE:
        raise MalformedPart("flags", f"has unknown bits: {flags:#x}")
    if stated != items:
        raise MalformedPart("items", f"says {stated}; the dataset has {items}")
    if not sequence:
        raise MalformedPart("sequence", "must be 1 or more")
    for name, count in (("scored", scored), ("listed", listed)):
        if count > items:
            raise MalformedPart(name, f"says {count} items; the dataset has {items}")
    raw = memoryview(_inflated(body[_HEADER.size :], _PER_SCORED * scored + _PER_LISTED * listed))
    scores = np.frombuffer(raw, "<f2", scored, 4 * scored)
    draws = np.frombuffer(raw, np.uint8, listed, _PER_SCORED * scored + 4 * listed)
    if not np.isfinite(scores).all() or (scores < 0).any():
        raise MalformedPart("scores", "must be finite and not negative")
    if not draws.all():
        raise MalformedPart("counts", "must be 1 or more")
    return ScorePart(
        sequence,
        base,
        epoch,
        bool(flags & _WHOLE),
        _indices("scored", np.frombuffer(raw, "<u4", scored), items),
        scores.astype(np.float16),
        _indices("listed", np.frombuffer(raw, "<u4", listed, _PER_SCORED * scored), items),
        draws,
    )


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


def _differences(indices: NDArray[Any]) -> NDArray[Any]:
    return np.diff(indices, prepend=indices[:1] * 0).astype("<u4", copy=False)


def _indices(name: str, differences: NDArray[np.uint32], items: int) -> NDArray[np.uint32]:
    """The indices that ascend by these differences; the first is the first index itself."""
    if not len(differences):
        return np.empty(0, dtype=np.uint32)
    if not differences[1:].all():
        raise MalformedPart(name, "the indices must ascend")
    found = np.cumsum(differences, dtype=np.uint64)
    # In 64 bits, no sum of 32-bit differences overflows.
    if int(found[-1]) >= items:
        raise MalformedPart(name, f"has the index {int(found[-1])}; the dataset has {items} items")
    return found.astype(np.uint32)
