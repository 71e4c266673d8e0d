"""Run lists: the bytes of an object that a loader's read fetched (docs/decisions/0063).

The items of a run are blobs of their own. The list says where in the object they belong, and has the bytes between them, such as
the headers and the padding of a TAR. Little-endian:

    head      magic, first byte of the run in the object, number of pieces
    lengths   of the pieces, which follow each other without a gap (4 bytes each); negative: the bytes are in ``rest``
    digests   of the pieces that are items (32 bytes each)
    rest      the bytes of the other pieces, deflated
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = b"LRDRUN01"
_HEAD = struct.Struct("<8sQI4x")
_DIGEST = 32
_LARGEST = 64 * 1024**2
"""The most bytes between the items of a run."""


class RunPiece(NamedTuple):
    """The bytes [start, stop) of an object: an item with this digest, or ``data`` if that is empty."""

    start: int
    stop: int
    digest: bytes = b""
    data: bytes = b""


def encode_run(pieces: Sequence[RunPiece]) -> bytes:
    """The list of some pieces; each begins where the previous one ends."""
    lengths = [piece.stop - piece.start if piece.digest else piece.start - piece.stop for piece in pieces]
    head = _HEAD.pack(MAGIC, pieces[0].start, len(pieces)) + struct.pack(f"<{len(lengths)}i", *lengths)
    digests = b"".join(piece.digest for piece in pieces)
    return head + digests + zlib.compress(b"".join(piece.data for piece in pieces), 1)


def decode_run(data: bytes) -> list[RunPiece]:
    """The pieces of a list.

    Raises:
        ValueError: it is not a run list.
    """
    try:
        magic, at, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("not a run list")
        lengths = struct.unpack_from(f"<{count}i", data, _HEAD.size)
        place = _HEAD.size + 4 * count
        end = place + _DIGEST * sum(length > 0 for length in lengths)
        rest = zlib.decompressobj().decompress(data[end:], _LARGEST)
    except (struct.error, zlib.error) as error:
        raise ValueError("a garbled run list") from error
    pieces, used = [], 0
    for length in lengths:
        if length > 0:
            pieces.append(RunPiece(at, at + length, data[place : place + _DIGEST]))
            place += _DIGEST
        else:
            pieces.append(RunPiece(at, at - length, data=rest[used : used - length]))
            used -= length
        at += abs(length)
    if used != len(rest) or place != end:
        raise ValueError("a garbled run list")
    return pieces


def joined(pieces: Sequence[RunPiece]) -> list[list[RunPiece]]:
    """Join pieces, in the order of their places, into lists without gaps; parts without an item are left out."""
    lists: list[list[RunPiece]] = []
    for piece in pieces:
        if not lists or lists[-1][-1].stop != piece.start:
            lists.append([])
        lists[-1].append(piece)
    return [run for run in lists if any(piece.digest for piece in run)]
