"""Compares two digest files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from larder.digest.file import NONE, DigestFile

_AT_ONCE = 1 << 16
"""Rows compared at a time."""


class Difference(NamedTuple):
    """One item in which the files differ.

    Args:
        kind: ``"added"`` (only the second file has it), ``"removed"`` (only the first), or ``"changed"`` (its digest or its
            length differs).
        bucket: where the item is.
        key: likewise.
        offset: likewise; 0 where the file has none.
    """

    kind: str
    bucket: str
    key: str
    offset: int


@dataclass
class Comparison:
    """Numbers of equal and different items; complete once all differences were consumed.

    Args:
        same: items that both files have.
        counts: number of differences, by kind.
        reordered: whether they list the same items in another order, which makes them different datasets.
    """

    same: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"added": 0, "removed": 0, "changed": 0})
    reordered: bool = False

    @property
    def equal(self) -> bool:
        """Whether the files list the same items in the same order."""
        return not self.reordered and not any(self.counts.values())


class _Side:
    """A cursor over the items of one file, sorted by place."""

    def __init__(self, file: DigestFile) -> None:
        self.file = file
        self._order = _by_place(file)
        self._places = self._all()
        self.index = -1
        self.place: tuple[bytes, bytes, int] | None = None
        self.next()

    def next(self) -> None:
        """Advance to the next item; ``place`` is ``None`` after the last."""
        self.index, self.place = next(self._places, (-1, None))

    def _all(self) -> Iterator[tuple[int, tuple[bytes, bytes, int]]]:
        for start in range(0, len(self._order), _AT_ONCE):
            rows = self._order[start : start + _AT_ONCE]
            taken = pa.array(rows)
            buckets = self.file.buckets.take(taken).to_pylist()
            keys = self.file.keys.take(taken).to_pylist()
            offsets = np.maximum(self.file.offsets[rows], 0).tolist()
            for index, bucket, key, offset in zip(rows.tolist(), buckets, keys, offsets, strict=True):
                yield index, (bucket.encode(), key.encode(), offset)


def differences(first: DigestFile, second: DigestFile, comparison: Comparison) -> Iterator[Difference]:
    """The items that differ, ordered by bucket, key and offset, which identify an item; a whole object has offset 0.

    A place that a file lists several times is compared that many times.

    Args:
        first: the earlier file.
        second: the later file.
        comparison: receives the counts.
    """
    old, new = _Side(first), _Side(second)
    while old.place is not None or new.place is not None:
        if new.place is None or (old.place is not None and old.place < new.place):
            yield _difference("removed", old, comparison)
            old.next()
        elif old.place is None or new.place < old.place:
            yield _difference("added", new, comparison)
            new.next()
        else:
            if _same(old, new):
                comparison.same += 1
            else:
                yield _difference("changed", new, comparison)
            old.next()
            new.next()
    comparison.reordered = not any(comparison.counts.values()) and first.id != second.id


def _difference(kind: str, side: _Side, comparison: Comparison) -> Difference:
    assert side.place is not None
    comparison.counts[kind] += 1
    bucket, key, offset = side.place
    return Difference(kind, bucket.decode(), key.decode(), offset)


def _same(old: _Side, new: _Side) -> bool:
    lengths = int(old.file.lengths[old.index]), int(new.file.lengths[new.index])
    unknown = NONE in lengths
    return old.file.digest(old.index) == new.file.digest(new.index) and (unknown or lengths[0] == lengths[1])


def _by_place(file: DigestFile) -> NDArray[np.int64]:
    """The rows ordered by bucket, key, offset and length, then by their order in the file."""
    table = pa.table(
        {
            "bucket": file.buckets.cast(pa.large_string()).cast(pa.large_binary()),
            "key": file.keys.cast(pa.large_binary()),
            "offset": np.maximum(file.offsets, 0),
            "length": file.lengths,
            "row": np.arange(len(file)),
        }
    )
    order = [(name, "ascending") for name in ("bucket", "key", "offset", "length", "row")]
    rows: NDArray[np.int64] = table.sort_by(order)["row"].to_numpy()
    return rows
