"""Writes a dataset's files, batch of rows by batch of rows, in the form that layout.py describes.

Digests and lengths are first written at full width, because the shorter form is known only after the last row; the rest is
written once. Final bytes count against a budget as they are written, so an oversized result fails early.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from array import array
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.dataset_quota import Limit
from gateway.store.datasets import layout
from gateway.store.datasets.columns import BadFile, Columns
from gateway.store.datasets.index import total_of
from gateway.store.datasets.layout import NONE, IndexForm, width_of
from gateway.store.datasets.locations import common_start

KNOWN_KEYS = 2**19
"""Keys that are remembered in order to be stored once; after that many, remembering starts over."""
_BLOCK = 2**20
_SHORT = 16


class Budget:
    """The number of final bytes that may still be written, and the free space to leave in the file system."""

    def __init__(self, output: int, reserve: int) -> None:
        self._left = output
        self._reserve = reserve

    def spend(self, size: int) -> None:
        """Charge final bytes to the budget.

        Raises:
            BadFile: the budget is exceeded.
        """
        self._left -= size
        if self._left < 0:
            raise BadFile("The converted file takes more space than the tenant may use.", Limit.BYTES)

    def check_room(self, size: int, path: Path) -> None:
        """Check that the reserve stays free.

        Raises:
            OSError: ENOSPC if ``size`` more bytes would use the reserve.
        """
        status = os.statvfs(path.parent)
        if status.f_bavail * status.f_frsize < self._reserve + size:
            raise OSError(errno.ENOSPC, "the reserve of the file system is reached")


class Output:
    """A file written at given positions.

    Args:
        path: of the file, which must not exist.
        budget: shared by all files of the job; ``put`` is not charged.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.path = path
        self.end = 0
        self._budget = budget

    def put(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes at a position."""
        left = memoryview(data)
        self._budget.check_room(len(left), self.path)
        while left:
            written = os.pwrite(self._fd, left, position)
            left = left[written:]
            position += written
        self.end = max(self.end, position)

    def add(self, data: bytes | memoryview) -> None:
        """Write bytes at the end."""
        self.put(self.end, data)

    def read(self, dtype: Any, count: int, position: int = 0) -> NDArray[Any]:
        """Map the written bytes."""
        if not count:
            return np.empty(0, dtype)
        return np.memmap(self.path, dtype, "r", position, (count,))

    def finish(self) -> None:
        """Sync the file, so that a crash of the machine leaves no hole."""
        os.fsync(self._fd)
        os.close(self._fd)

    def discard(self) -> None:
        """Remove it."""
        os.close(self._fd)
        self.path.unlink()


def bytes_of(numbers: NDArray[Any]) -> memoryview:
    """The bytes of an array."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


class IndexWriter:
    """Writes ``index`` and ``states``.

    Args:
        folder: receives the files; its parent, the draft, receives temporary files.
        items: the number of rows to come.
        budget: of the job.
        members: adjacent rows of a sample.
    """

    def __init__(self, folder: Path, items: int, budget: Budget, members: int = 1) -> None:
        budget.spend(layout.states_size(items))
        self._items = items
        self._members = members
        self._folder = folder
        self._budget = budget
        self._all_digests = Output(folder.parent / "digests.tmp", budget)
        self._all_lengths = Output(folder.parent / "lengths.tmp", budget)
        self._digests, self._lengths = sha256(), sha256()
        self._size = 0
        self._least, self._largest = NONE, 0

    def add(self, columns: Columns) -> None:
        """Add the next rows."""
        digests, lengths = bytes_of(columns.digests), bytes_of(columns.lengths)
        self._digests.update(digests)
        self._lengths.update(lengths)
        self._all_digests.add(digests)
        self._size += total_of(columns.lengths)
        stored = columns.lengths + np.uint64(1)
        if len(stored):
            self._least, self._largest = min(self._least, int(stored.min())), max(self._largest, int(stored.max()))
        self._all_lengths.add(bytes_of(stored))

    def finish(self) -> dict[str, Any]:
        """Write the files; returns the description of the dataset."""
        items = self._items
        digests = self._all_digests.read(np.uint8, 32 * items).reshape(items, 32)
        prefixes, order = sort_digests(digests)
        fresh = _first_of_equals(digests, order)
        distinct = int(np.count_nonzero(fresh))
        width = 0 if self._least == self._largest else width_of(self._largest)
        form = IndexForm(items, distinct if 2 * distinct <= items else items, width)
        self._budget.spend(form.size)
        file = Output(self._folder / layout.INDEX, self._budget)
        identity = self._digests.digest()
        file.put(0, layout.INDEX_HEADER.pack(layout.INDEX_MAGIC, items, self._size.to_bytes(16, "little"), identity))
        file.put(layout.HEADER, layout.INDEX_FORM.pack(form.distinct, width, self._members))
        if form.plain:
            _write_plain(file, form, digests, prefixes, order)
        else:
            del prefixes
            _write_repeated(file, form, digests, order, fresh)
        self._write_lengths(file, form)
        file.finish()
        self._all_digests.discard()
        self._all_lengths.discard()
        self._write_states()
        tag = layout.tag_of(identity, self._lengths, self._members)
        return {"id": identity.hex(), "tag": tag, "items": items, "size": self._size}

    def _write_lengths(self, file: Output, form: IndexForm) -> None:
        if not form.length_width:
            file.put(form.lengths, self._largest.to_bytes(8, "little"))
            return
        stored = self._all_lengths.read(np.uint64, self._items)
        width = form.length_width
        for start in range(0, self._items, _BLOCK):
            file.put(form.lengths + width * start, bytes_of(stored[start : start + _BLOCK].astype(f"<u{width}")))
        used = form.lengths + width * self._items
        file.put(used, bytes(form.size - used))

    def _write_states(self) -> None:
        states = Output(self._folder / layout.STATES, self._budget)
        for piece in layout.empty_states(self._items):
            states.add(piece)
        states.finish()


def sort_digests(digests: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The sorted prefixes, and the items in that order: by digest, equal ones by index."""
    words = digests.reshape(-1).view(">u8").reshape(-1, 4)
    prefixes = words[:, 0].astype(np.uint64)
    order = np.argsort(prefixes, kind="stable").astype(np.uint32)
    prefixes = prefixes[order]
    again = np.flatnonzero(prefixes[1:] == prefixes[:-1])
    if len(again):
        # Only equal prefixes need the rest of the digest; without an attack, only duplicates have equal prefixes.
        tied = np.union1d(again, again + 1)
        items = order[tied]
        rest = words[items]
        order[tied] = items[np.lexsort((items, rest[:, 3], rest[:, 2], rest[:, 1], rest[:, 0]))]
    return prefixes, order


def _first_of_equals(digests: NDArray[np.uint8], order: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """For each item in order, whether its digest differs from the previous one's."""
    words = digests.reshape(-1).view(np.uint64).reshape(-1, 4)
    fresh = np.ones(len(order), bool)
    for start in range(1, len(order), _BLOCK):
        stop = min(len(order), start + _BLOCK)
        fresh[start:stop] = (words[order[start:stop]] != words[order[start - 1 : stop - 1]]).any(axis=1)
    return fresh


def _write_plain(
    file: Output,
    form: IndexForm,
    digests: NDArray[np.uint8],
    prefixes: NDArray[np.uint64],
    order: NDArray[np.uint32],
) -> None:
    for start in range(0, form.items, _BLOCK):
        file.put(form.digests + 32 * start, bytes_of(digests[start : start + _BLOCK]))
    file.put(form.second, bytes_of(prefixes))
    file.put(form.third, bytes_of(order))


def _write_repeated(
    file: Output,
    form: IndexForm,
    digests: NDArray[np.uint8],
    order: NDArray[np.uint32],
    fresh: NDArray[np.bool_],
) -> None:
    first = order[fresh]
    for start in range(0, form.distinct, _BLOCK):
        file.put(form.digests + 32 * start, bytes_of(digests[first[start : start + _BLOCK]]))
    file.put(form.second, bytes_of(order))
    if form.number_width:
        numbers = np.empty(form.items, f"<u{form.number_width}")
        numbers[order] = np.cumsum(fresh, dtype=np.uint32) - np.uint32(1)
        file.put(form.third, bytes_of(numbers))


class LocationsWriter:
    """Writes ``locations``.

    Args:
        path: of the file.
        budget: of the job.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self._file = Output(path, budget)
        self._file.put(0, bytes(layout.HEADER))
        self._budget = budget
        self._items = 0
        self._row_pages, self._key_pages = array("Q"), array("Q")
        self._rows: NDArray[np.uint64] = np.empty((0, 4), np.uint64)
        self._numbers: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._count = 0

    def add(self, columns: Columns) -> None:
        """Add the next rows."""
        keys = np.array([self._number(key) for key in columns.keys], np.uint64)
        step = np.uint64(1)
        new = (keys[columns.key_numbers], columns.buckets, columns.offsets + step, columns.lengths + step)
        rows = np.concatenate([self._rows, np.column_stack(new).astype(np.uint64)])
        whole = len(rows) - len(rows) % layout.ROWS
        for start in range(0, whole, layout.ROWS):
            self._write_rows(rows[start : start + layout.ROWS])
        self._rows = rows[whole:]
        self._items += len(columns.lengths)

    def finish(self, buckets: dict[str, int]) -> None:
        """Write the remaining pages."""
        if len(self._rows):
            self._write_rows(self._rows)
        if self._keys:
            self._write_keys()
        rows = self._append(bytes(-self._file.end % 8) + self._row_pages.tobytes()) - 8 * len(self._row_pages)
        keys = self._append(self._key_pages.tobytes()) - 8 * len(self._key_pages)
        names = json.dumps(list(buckets)).encode()
        place = self._append(names) - len(names)
        head = layout.LOCATIONS_HEADER.pack(
            layout.LOCATIONS_MAGIC, self._items, rows, self._count, keys, place, len(names)
        )
        self._file.put(0, head)
        self._file.finish()

    def _number(self, key: bytes) -> int:
        # Long keys are remembered by hash, so that memory does not depend on their length.
        known = key if len(key) <= _SHORT else blake2b(key, digest_size=_SHORT).digest()
        number = self._numbers.get(known)
        if number is None:
            if len(self._numbers) >= KNOWN_KEYS:
                self._numbers.clear()
            number = self._numbers[known] = self._count
            self._count += 1
            self._keys.append(key)
            if len(self._keys) == layout.KEYS:
                self._write_keys()
        return number

    def _write_keys(self) -> None:
        keys, self._keys = self._keys, []
        self._key_pages.append(self._append(page := pack_keys(keys)) - len(page))

    def _write_rows(self, rows: NDArray[np.uint64]) -> None:
        page = pack_rows(rows)
        self._row_pages.append(self._append(page) - len(page))

    def _append(self, data: bytes) -> int:
        """Append data; returns the end of the file."""
        self._budget.spend(len(data))
        self._file.add(data)
        return self._file.end


def pack_rows(rows: NDArray[np.uint64]) -> bytes:
    """Encode a page of rows."""
    least = rows.min(axis=0)
    above = rows - least
    widths = [width_of(int(largest)) for largest in above.max(axis=0)]
    columns = [above[:, number].astype(f"<u{width}").tobytes() for number, width in enumerate(widths) if width]
    return b"".join([layout.ROW_PAGE.pack(*least.tolist(), *widths), *columns])


def pack_keys(keys: list[bytes]) -> bytes:
    """Encode a page of keys."""
    common = common_start(keys)
    size = len(common)
    rests = [key[size:] for key in keys]
    ends = np.cumsum([len(rest) for rest in rests], dtype=np.uint32).astype("<u2")
    body = ends.tobytes() + b"".join(rests)
    deflated = zlib.compress(body, 1)
    worth = 4 * len(deflated) <= len(body)
    body = deflated if worth else body
    return layout.KEY_PAGE.pack(size, worth, len(body)) + common + body
