"""Summarises a digest file without showing digests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from larder.digest.file import NONE, DigestFile


@dataclass(frozen=True)
class Summary:
    """The numbers of a digest file.

    Args:
        file: its path.
        id: of the dataset.
        items: rows.
        bytes: sum of the known lengths.
        unknown_lengths: items whose length is not in the file.
        parts: items that have an offset, so may be part of a larger object.
        buckets: items of each bucket.
        sizes: items by length: entry ``(upper, count)`` counts lengths below ``upper`` and at least the previous ``upper``. The
            bounds are powers of two; 1 is for empty items.
        duplicates: items with the same bytes as an earlier item.
        duplicate_bytes: their part of ``bytes``.
        members: names of the members of a sample, if each member is an item; otherwise empty.
    """

    file: str
    id: str
    items: int
    bytes: int
    unknown_lengths: int
    parts: int
    buckets: dict[str, int]
    sizes: list[tuple[int, int]]
    duplicates: int
    duplicate_bytes: int
    members: tuple[str, ...] = ()


def summarize(file: DigestFile) -> Summary:
    """Count the contents of a digest file."""
    known = file.lengths[file.lengths != NONE]
    repeated = _repeated(file.digests)
    counted = pc.value_counts(file.buckets)
    return Summary(
        str(file.path),
        file.id,
        len(file),
        file.size,
        len(file) - len(known),
        int((file.offsets != NONE).sum()),
        {entry["values"]: entry["counts"] for entry in counted.to_pylist()},
        _histogram(known),
        int(repeated.sum()),
        int(np.maximum(file.lengths[repeated], 0).sum()),
        file.members,
    )


def _repeated(digests: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Marks the rows that have the digest of an earlier row."""
    keys = np.ascontiguousarray(digests).view("V32").ravel() if len(digests) else np.zeros(0, "V32")
    _, first = np.unique(keys, return_index=True)
    repeated = np.ones(len(digests), bool)
    repeated[first] = False
    return repeated


def _histogram(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    if not len(lengths):
        return []
    # frexp gives the number of binary digits; lengths beyond 2**53 round, which moves no item by more than one bar.
    exponents = np.where(lengths > 0, np.frexp(lengths.astype(np.float64))[1], 0)
    counts = np.bincount(exponents)
    lowest = int(np.flatnonzero(counts)[0])
    return [(1 << exponent, int(count)) for exponent, count in enumerate(counts) if exponent >= lowest]
