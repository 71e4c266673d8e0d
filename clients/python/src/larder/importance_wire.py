"""The body of ``PUT /-/v1/jobs/{job}/importance``: scores of items, and how often each comes in the next epoch's list.

Little-endian: a header, then one zlib stream with four columns back to back.

===========  ===========================================================================================
scored ids   uint32 each, ascending, as differences to the one before (the first to 0)
scores       float16 each, finite and not negative (SHADE, FAST 2023, section 4.2, Eq. 6)
listed ids   uint32 each, as above: the distinct items of the list
counts       uint8 each, at least 1; 255 stands for more
===========  ===========================================================================================

A *whole* body replaces all that was sent before; any other changes what the part with number ``base`` left, except that the list
is always complete. Parts are numbered per job, dataset and receiving node, so sending one again does nothing.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MEDIA_TYPE = "application/octet-stream"
MAGIC = b"LDIM"
VERSION = 1
WHOLE = 1
"""Flag: the body replaces all that was sent before."""
HEADER = struct.Struct("<4sHHQQIIII")
_MAX_COUNT = 255


class ImportancePart(NamedTuple):
    """One node's part of a report.

    Args:
        sequence: number of this part.
        base: number of the part that it continues; 0 for none.
        epoch: epoch of the list.
        items: number of items of the dataset.
        scored: ascending ids of the items whose scores follow.
        scores: of these, aligned.
        listed: ascending ids of the items in the list.
        counts: how often each comes, aligned; at least 1.
        whole: whether it replaces all that was sent before.
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


def encode(part: ImportancePart) -> bytes:
    """The body of a part."""
    header = HEADER.pack(
        MAGIC,
        VERSION,
        WHOLE if part.whole else 0,
        part.sequence,
        part.base,
        part.epoch,
        part.items,
        len(part.scored),
        len(part.listed),
    )
    columns = [
        _differences(part.scored),
        part.scores.astype("<f2"),
        _differences(part.listed),
        np.minimum(part.counts, _MAX_COUNT).astype(np.uint8),
    ]
    return header + zlib.compress(b"".join(column.tobytes() for column in columns))


def _differences(ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.diff(ids, prepend=np.uint32(0)).astype("<u4")
