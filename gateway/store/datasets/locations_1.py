"""Locations in version 1 of the file: a record per item, and every key in full. Still read, but not written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.model.datasets import Location
from gateway.store.datasets.layout import HEADER, LOCATIONS_HEADER_1, LOCATIONS_MAGIC_1, NONE, RECORD, Damaged
from gateway.store.files.blobs import read_contents

_PAGE = 4096


class Locations1:
    """The locations of one registration. The file stays open and readable while referenced, even after it was replaced.

    Args:
        path: the file.

    Raises:
        Damaged: it is missing, or its size contradicts its header.
        OSError: it cannot be opened for another reason.
    """

    def __init__(self, path: Path) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Damaged(f"{path} is missing") from error
        head = os.pread(self._fd, HEADER, 0)
        if len(head) < HEADER or not head.startswith(LOCATIONS_MAGIC_1):
            raise Damaged(f"{path} is not a list of locations")
        _, self.items, keys, buckets = LOCATIONS_HEADER_1.unpack(head)
        self._keys = HEADER + RECORD.size * self.items
        end = self._end = self._keys + keys
        if os.fstat(self._fd).st_size != end + buckets:
            raise Damaged(f"{path} does not have the length in its header")
        try:
            self._buckets: list[str] = json.loads(os.pread(self._fd, buckets, end))
        except ValueError as error:
            raise Damaged(f"{path} has no list of buckets") from error

    def of(self, index: int) -> Location:
        """The location of an item: two small reads, in practice from the page cache.

        Raises:
            IndexError: the index is out of range.
            Damaged: the file is malformed.
        """
        return next(self.between(index, index + 1))

    def digest(self) -> bytes:
        """SHA-256 of the file."""
        return read_contents(self._fd).digest

    def between(self, start: int, stop: int) -> Iterator[Location]:
        """The locations of the items from ``start`` up to, not including, ``stop``, read in pages.

        Raises:
            IndexError: an index is out of range.
            Damaged: the file is malformed.
        """
        if not 0 <= start <= stop <= self.items:
            raise IndexError(f"items {start} to {stop} of {self.items}")
        for first in range(start, stop, _PAGE):
            yield from self._page(first, min(stop, first + _PAGE))

    def check(self) -> None:
        """Validate every record.

        Raises:
            Damaged: a record is malformed.
        """
        end = 0
        for start in range(0, self.items, _PAGE):
            count = min(_PAGE, self.items - start)
            for position, _, _, bucket, size in RECORD.iter_unpack(
                os.pread(self._fd, RECORD.size * count, HEADER + RECORD.size * start)
            ):
                if position != end or bucket >= len(self._buckets):
                    raise Damaged("its locations are garbled")
                end += size
        if end != self._end - self._keys:
            raise Damaged("its keys do not match its locations")

    def _page(self, start: int, stop: int) -> Iterator[Location]:
        count = stop - start
        records = os.pread(self._fd, RECORD.size * count, HEADER + RECORD.size * start)
        if len(records) < RECORD.size * count:
            raise Damaged("the list of locations is truncated")
        first = RECORD.unpack_from(records)[0]
        last = RECORD.unpack_from(records, RECORD.size * (count - 1))
        keys = os.pread(self._fd, last[0] + last[4] - first, self._keys + first)
        for position, offset, length, bucket, size in RECORD.iter_unpack(records):
            try:
                name, key = self._buckets[bucket], keys[position - first : position - first + size].decode()
            except (IndexError, UnicodeDecodeError) as error:
                raise Damaged("the list of locations is garbled") from error
            yield Location(name, key, None if offset == NONE else offset, None if length == NONE else length)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
