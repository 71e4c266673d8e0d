"""The body of ``PUT /-/v1/jobs/{job}/importance``: scores of items, and how often each comes in the next epoch's list.

Little-endian: a header, then one zlib stream of a table. It has one row for each item that has a new score or is in the list:

===========  ===========================================================================================
id           uint32, ascending, as the difference to the row before (of the first to 0)
score        float16, finite and not negative (SHADE, FAST 2023, section 4.2, Eq. 6); 0xFFFF: no new one
count        uint8; 0: the item is not in the list; 255 stands for more
===========  ===========================================================================================

Columns follow each other, each in byte planes: all lowest bytes, then all second bytes. Scores do not repeat, but some bytes are
frequent, and planes put these together. zlib only looks for runs of one byte, which is fast and gives the smallest result.

Ids take more space with every home: one home has all items, whose differences are 1; with eight homes, the ids of each take 4.4
bits per item. `coarse` scores make room for that. They keep the order of items whose ranks in a mini-batch differ by more than 2
%, and only decide what the cache keeps: the list is drawn from exact scores.

A *whole* body replaces everything sent before. Any other body changes the state after the part with number ``base``, except that
its list is always complete. Parts are numbered per job, dataset and receiving node, so sending one again does nothing. A part *of
all* homes goes to one gateway, which passes it on.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MEDIA_TYPE = "application/octet-stream"
MAGIC = b"LDIM"
VERSION = 2
WHOLE = 1
"""Flag: the body replaces all that was sent before."""
OF_ALL = 2
"""Flag: one gateway gets the items of all homes."""
HEADER = struct.Struct("<4sHHQQIII")
STEPS = 64
"""Steps per unit of the sent scores: two bits less than a float16 has between 4 and 8."""
UNSCORED = 0xFFFF
"""The bits that mean "no score"."""
_MAX_COUNT = 255
_WINDOW, _MEMORY = 15, 8
"""zlib's defaults: bits of the window, and memory level."""


class ImportancePart(NamedTuple):
    """The share of a report for one node.

    Args:
        sequence: number of this part.
        base: number of the part that it continues; 0 for none.
        epoch: epoch of the list.
        items: number of items of the dataset.
        scored: ascending ids of the items whose scores follow.
        scores: of these, aligned.
        listed: ascending ids of the items in the list.
        counts: how often each comes, in the same order; at least 1.
        whole: whether it replaces all that was sent before.
        of_all: whether it has the items of all homes, for one gateway to pass on.
    """

    sequence: int
    base: int
    epoch: int
    items: int
    scored: NDArray[np.uint32]
    scores: NDArray[np.float16]
    listed: NDArray[np.uint32]
    counts: NDArray[np.integer]
    whole: bool = False
    of_all: bool = False


def coarse(scores: NDArray[np.float16]) -> NDArray[np.float16]:
    """Scores for sending, rounded to ``STEPS`` per unit; NaN stays."""
    return np.asarray(np.rint(scores.astype(np.float32) * STEPS) / STEPS, np.float16)


def encode(part: ImportancePart) -> bytes:
    """The body of a part."""
    rows = np.union1d(part.scored, part.listed).astype(np.uint32)
    scores, counts = np.full(len(rows), UNSCORED, np.uint16), np.zeros(len(rows), np.uint8)
    scores[np.searchsorted(rows, part.scored)] = part.scores.view(np.uint16)
    counts[np.searchsorted(rows, part.listed)] = np.minimum(part.counts, _MAX_COUNT)
    flags = (WHOLE if part.whole else 0) | (OF_ALL if part.of_all else 0)
    header = HEADER.pack(MAGIC, VERSION, flags, part.sequence, part.base, part.epoch, part.items, len(rows))
    differences = np.diff(rows, prepend=np.uint32(0))
    return header + _deflated(_planes(differences) + _planes(scores) + counts.tobytes())


def _deflated(raw: bytes) -> bytes:
    deflater = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_RLE)
    return deflater.compress(raw) + deflater.flush()


def _planes(column: NDArray[np.unsignedinteger]) -> bytes:
    little = column.astype(column.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()
