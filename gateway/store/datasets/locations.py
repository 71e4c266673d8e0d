"""The locations of a tenant's copies of a dataset's items, read item by item from a mapped file; keys are not kept in memory."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.model.datasets import Location as Location
from gateway.store.datasets.layout import (
    HEADER,
    KEY_PAGE,
    KEYS,
    LOCATIONS_HEADER,
    LOCATIONS_MAGIC,
    LOCATIONS_MAGIC_1,
    ROW_PAGE,
    ROWS,
    Damaged,
)
from gateway.store.datasets.locations_1 import Locations1

_LARGEST_BODY = KEYS * (1024 + 2)


class Locations(Protocol):
    """The locations of one registration. The file stays open and readable while referenced, even after it was replaced."""

    items: int

    def of(self, index: int) -> Location:
        """The location of an item.

        Raises:
            IndexError: the index is out of range.
            Damaged: the file is malformed.
        """

    def between(self, start: int, stop: int) -> Iterator[Location]:
        """The locations of the items from ``start`` up to, not including, ``stop``.

        Raises:
            IndexError: an index is out of range.
            Damaged: the file is malformed.
        """

    def digest(self) -> bytes:
        """SHA-256 of the file: equal digests mean equal locations. Reads all of it; blocks."""

    def check(self) -> None:
        """Validate the whole file.

        Raises:
            Damaged: it is malformed.
        """


def open_locations(path: Path) -> Locations:
    """Open the file, in either version.

    Raises:
        Damaged: it is missing, or its size contradicts its header.
        OSError: it cannot be opened for another reason.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    try:
        head = os.pread(descriptor, HEADER, 0)
        if len(head) < HEADER or not head.startswith((LOCATIONS_MAGIC, LOCATIONS_MAGIC_1)):
            raise Damaged(f"{path} is not a list of locations")
        if head.startswith(LOCATIONS_MAGIC_1):
            return Locations1(path)
        return PackedLocations(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


def items_of(locations: Locations, bucket: str, key: str) -> list[int]:
    """The items in one object. Reads all keys, so it blocks.

    Raises:
        Damaged: the file is malformed.
    """
    if isinstance(locations, PackedLocations):
        return locations.items_of(bucket, key)
    places = enumerate(locations.between(0, locations.items))
    return [index for index, place in places if (place.bucket, place.key) == (bucket, key)]


class PackedLocations:
    """Locations of version 2.

    Args:
        table: the file.

    Raises:
        Damaged: its size contradicts its header.
    """

    def __init__(self, table: mmap.mmap | bytes) -> None:
        _, self.items, rows, keys, key_pages, names, size = LOCATIONS_HEADER.unpack_from(table)
        self._table = table
        self._keys = keys
        if names + size != len(table):
            raise Damaged("a list of locations does not have the length in its header")
        try:
            self._row_pages: NDArray[np.uint64] = np.frombuffer(table, "<u8", -(-self.items // ROWS), rows)
            self._key_pages: NDArray[np.uint64] = np.frombuffer(table, "<u8", -(-keys // KEYS), key_pages)
            buckets = json.loads(table[names:])
        except (ValueError, RecursionError) as error:
            raise Damaged("a list of locations has no buckets, or not all of its pages") from error
        if not isinstance(buckets, list) or not all(isinstance(name, str) for name in buckets):
            raise Damaged("a list of locations has no buckets")
        self._buckets: list[str] = buckets

    def of(self, index: int) -> Location:
        """The location of an item, read from a few places of the file."""
        if not 0 <= index < self.items:
            raise IndexError(f"item {index} of {self.items}")
        page, row = divmod(index, ROWS)
        try:
            at = int(self._row_pages[page])
            *least, first, second, third, fourth = ROW_PAGE.unpack_from(self._table, at)
            at, count, values = at + ROW_PAGE.size, min(ROWS, self.items - page * ROWS), []
            for smallest, width in zip(least, (first, second, third, fourth), strict=True):
                begin = at + row * width
                values.append(smallest + int.from_bytes(self._table[begin : begin + width], "little"))
                at += count * width
            key, bucket, offset, length = values
            return _location(self._buckets[bucket], self._key(key), offset, length)
        except (IndexError, ValueError, struct.error, zlib.error) as error:
            raise Damaged("the list of locations is garbled") from error

    def between(self, start: int, stop: int) -> Iterator[Location]:
        """The locations of some items, a page of rows and a page of keys at a time."""
        if not 0 <= start <= stop <= self.items:
            raise IndexError(f"items {start} to {stop} of {self.items}")
        number, keys = -1, [b""]
        for page in range(start // ROWS, -(-stop // ROWS)):
            columns = self.rows(page)
            first, last = max(0, start - page * ROWS), min(ROWS, stop - page * ROWS)
            for key, bucket, offset, length in zip(*(column[first:last].tolist() for column in columns), strict=True):
                if number != key // KEYS:
                    number = key // KEYS
                    keys = self.keys(number)
                try:
                    yield _location(self._buckets[bucket], keys[key % KEYS], offset, length)
                except (IndexError, ValueError) as error:
                    raise Damaged("the list of locations is garbled") from error

    def digest(self) -> bytes:
        """SHA-256 of the file."""
        return hashlib.sha256(self._table).digest()

    def rows(self, page: int) -> list[NDArray[np.uint64]]:
        """The columns of a page of rows: numbers of keys and of buckets, offsets and lengths as stored.

        Raises:
            Damaged: there is no such page.
        """
        try:
            at, count = int(self._row_pages[page]), min(ROWS, self.items - page * ROWS)
            head = ROW_PAGE.unpack_from(self._table, at)
            at, columns = at + ROW_PAGE.size, []
            for least, width in zip(head[:4], head[4:], strict=True):
                above: NDArray[Any] = (
                    np.frombuffer(self._table, f"<u{width}", count, at) if width else np.zeros(count, "u1")
                )
                columns.append(above.astype(np.uint64) + np.uint64(least))
                at += count * width
        except (IndexError, ValueError, TypeError, struct.error) as error:
            raise Damaged("the list of locations is garbled") from error
        return columns

    def keys(self, page: int) -> list[bytes]:
        """The keys on a page.

        Raises:
            Damaged: there is no such page.
        """
        try:
            common, body, count = self._key_page(page)
            ends = struct.unpack_from(f"<{count}H", body)
        except (IndexError, ValueError, struct.error, zlib.error) as error:
            raise Damaged("the list of locations is garbled") from error
        starts = (0, *ends[:-1])
        if list(ends) != sorted(ends) or len(body) != 2 * count + ends[-1]:
            raise Damaged("the list of locations is garbled")
        return [common + body[2 * count + start : 2 * count + end] for start, end in zip(starts, ends, strict=True)]

    def items_of(self, bucket: str, key: str) -> list[int]:
        """See ``items_of``."""
        if bucket not in self._buckets:
            return []
        number, wanted = self._buckets.index(bucket), key.encode()
        pages = (page for page in range(len(self._key_pages)) if wanted.startswith(self._common(page)))
        numbers = [KEYS * page + place for page in pages for place, of in enumerate(self.keys(page)) if of == wanted]
        items: list[int] = []
        for page in range(len(self._row_pages)) if numbers else ():
            keys, buckets, _, _ = self.rows(page)
            here = np.isin(keys, np.array(numbers, np.uint64)) & (buckets == number)
            items += (page * ROWS + np.flatnonzero(here)).tolist()
        return items

    def starts(self) -> dict[str, bytes]:
        """The longest common beginning of the keys in each bucket. Reads every page, so it blocks.

        Raises:
            Damaged: the file is malformed.
        """
        starts: dict[str, bytes] = {}
        for page in range(len(self._row_pages)):
            keys, buckets, _, _ = self.rows(page)
            for number in np.unique(buckets).tolist():
                if number >= len(self._buckets):
                    raise Damaged("the list of locations is garbled")
                bucket = self._buckets[number]
                for start in self._starts(np.unique(keys[buckets == number])):
                    starts[bucket] = common_start([starts.get(bucket, start), start])
        return starts

    def _starts(self, numbers: NDArray[np.uint64]) -> Iterator[bytes]:
        """The common beginnings of these keys on each page, from the page's head where all its keys are among them."""
        pages, counts = np.unique(numbers // KEYS, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            if page >= len(self._key_pages):
                raise Damaged("the list of locations is garbled")
            if count == min(KEYS, self._keys - page * KEYS):
                yield self._common(page)
            else:
                keys = self.keys(page)
                yield common_start([keys[key % KEYS] for key in numbers[numbers // KEYS == page].tolist()])

    def _common(self, page: int) -> bytes:
        """The common prefix of the keys on a page."""
        at = int(self._key_pages[page])
        try:
            size = KEY_PAGE.unpack_from(self._table, at)[0]
        except struct.error as error:
            raise Damaged("the list of locations is garbled") from error
        return bytes(self._table[at + KEY_PAGE.size : at + KEY_PAGE.size + size])

    def check(self) -> None:
        """Validate every page.

        Raises:
            Damaged: a page is malformed.
        """
        for page in range(len(self._row_pages)):
            keys, buckets, _, _ = self.rows(page)
            if int(keys.max()) >= self._keys or int(buckets.max()) >= len(self._buckets):
                raise Damaged("a list of locations names missing keys or buckets")
        for page in range(len(self._key_pages)):
            if not all(0 < len(key) <= 1024 for key in self.keys(page)):
                raise Damaged("a list of locations has invalid keys")

    def _key(self, number: int) -> bytes:
        page, place = divmod(number, KEYS)
        common, body, count = self._key_page(page)
        start, end = struct.unpack_from("<HH", body, 2 * place - 2) if place else (0, *struct.unpack_from("<H", body))
        return common + body[2 * count + start : 2 * count + end]

    def _key_page(self, page: int) -> tuple[bytes, bytes, int]:
        """The common prefix, the remainders of the keys, and the number of keys."""
        at = int(self._key_pages[page])
        size, deflated, length = KEY_PAGE.unpack_from(self._table, at)
        at += KEY_PAGE.size
        body = bytes(self._table[at + size : at + size + min(length, _LARGEST_BODY)])
        if deflated:
            body = zlib.decompressobj().decompress(body, _LARGEST_BODY)
        return bytes(self._table[at : at + size]), body, min(KEYS, self._keys - page * KEYS)


def common_start(keys: list[bytes]) -> bytes:
    """The longest common beginning of keys."""
    first, last = min(keys), max(keys)
    return first[
        : next((at for at, (byte, other) in enumerate(zip(first, last, strict=False)) if byte != other), len(first))
    ]


def _location(bucket: str, key: bytes, offset: int, length: int) -> Location:
    """The location for an offset and a length as stored: plus one, 0 for none."""
    return Location(bucket, key.decode(), offset - 1 if offset else None, length - 1 if length else None)
