"""Finds the damaged rows of an index, and copies the sound ones into a new index.

Losing an index loses the cache: files without a row are removed. So a damaged index is read row by row, around pages that SQLite
cannot read, and the rows that pass the checks of seals.py are kept. They are trusted as little as possible: blobs are compared
with their digests when they are next opened, and objects count as never confirmed, so the origin is asked before one is served.
A deletion may have missed a row hidden by a damaged tree, and such a row must not return as the current version.

Applied purges are not copied, so all purges of the catalog are applied to the new index. All blobs enter the pool ``default``, in
the order of their ranks; the plan defines the other pools again.

Reading a million objects takes about half a minute. Until then the cache is not used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gateway.model.keys import ObjectKey
from gateway.store.files.failures import disk_faults
from gateway.store.index import blob_rows, seals
from gateway.store.index.schema import DEFAULT_POOL, PART

_PAGE = 512
_PREFIX = 7
"""Bytes of a digest that determine its place."""
_MARK = "origin:"
_SURROGATE = "surrogateescape"

Row = tuple[Any, ...]
_OBJECTS = (
    "SELECT id, origin, bucket, key, {seal}, confirmed_at, slot, etag, size, last_modified, headers, checksums, block_size "
    "FROM objects WHERE id > ? ORDER BY id LIMIT ?"
)
_TIES = "SELECT no, digest, {seal}, {part} FROM object_blocks WHERE object_id = ?"
_GRANTS = "SELECT identity, granted_at, {seal} FROM grants WHERE object_id = ?"
_BLOBS = "SELECT digest, size, crc32, rank, mtime_ns, boot, item FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?"

_COUNTED = ("target", "minimum", "bytes", "fresh", "ghosts", "fresh_ghosts", "retired", "blobs", "hits", "misses")
_BLOB = "INSERT OR IGNORE INTO blobs (digest, size, crc32, rank, mtime_ns, boot, item, pool) VALUES (?, ?, ?, ?, ?, 0, ?, ?)"
_OBJECT = (
    "INSERT INTO objects (origin, bucket, key, slot, etag, size, last_modified, headers, checksums, block_size, seal, "
    "confirmed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
)
_FORGET = "DELETE FROM objects WHERE origin = ? AND bucket = ? AND key = ?"
_TIE = "INSERT OR REPLACE INTO object_blocks (object_id, no, digest, seal, start, length, crc32) VALUES (?, ?, ?, ?, ?, ?, ?)"
_GRANT = "INSERT OR REPLACE INTO grants (object_id, identity, granted_at, seal) VALUES (?, ?, ?, ?)"
_DROP_UNTIED = (
    "DELETE FROM blobs WHERE item = 0 "
    "AND NOT EXISTS (SELECT 1 FROM object_blocks WHERE object_blocks.digest = blobs.digest)"
)


def _other_kinds(table: str, kinds: Mapping[str, str]) -> str:
    wrong = " OR ".join(f"typeof({column}) <> '{kind}'" for column, kind in kinds.items())
    return f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1"  # noqa: S608 - names of this module


_WRONG_KINDS = (
    _other_kinds(
        "pools", {"name": "text", "eviction": "text", **dict.fromkeys(_COUNTED, "integer"), "adapted": "real"}
    ),
    _other_kinds("blobs", {"digest": "blob", "rank": "real", **dict.fromkeys(("size", "pool", "item"), "integer")}),
)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The rows kept, and the number of rows or pages lost."""

    blobs: int
    objects: int
    lost: int


class _Copying:
    """Reads a damaged index; ``lost`` counts unsound rows and unreadable pages."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda text: text.decode("utf-8", _SURROGATE)
        self._connection = connection
        self.lost = 0
        # A schema that cannot be read fails here, not once for each row.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        sealed = self._all("SELECT 1 FROM pragma_table_info('objects') WHERE name = 'seal'", ())
        self._seal = "seal" if sealed else "NULL"
        parts = self._all("SELECT 1 FROM pragma_table_info('object_blocks') WHERE name = 'start'", ())
        self._part = ", ".join(PART) if parts else "NULL, NULL, NULL"

    def blobs(self) -> Iterator[Row]:
        """The sound rows of blobs, by digest."""
        for row in self._pages(_BLOBS, _DIGESTS):
            if seals.blob_is_sound(*row[:6]) and row[6] in (0, 1):
                yield row
            else:
                self.lost += 1

    def objects(self) -> Iterator[tuple[int, ObjectKey, Row]]:
        """The sound rows of objects with id, key and values."""
        for row_id, origin, bucket, name, seal, confirmed_at, *values in self._pages(
            _OBJECTS.format(seal=self._seal), _IDS
        ):
            key = ObjectKey(origin, bucket, name)
            if seals.object_is_sound(key, values, confirmed_at, seal) and all(map(_is_text, (*key, *values))):
                yield row_id, key, tuple(values)
            else:
                self.lost += 1

    def ties(self, row_id: int, blob_of: Callable[[bytes], Row | None]) -> list[tuple[int, bytes, int, int, Row]]:
        """The sound ties of an object to blobs that ``blob_of`` knows: number, digest, size and CRC-32, and the part."""
        ties = []
        for number, digest, seal, *part in self._all(_TIES.format(seal=self._seal, part=self._part), (row_id,)):
            if (blob := blob_of(digest) if seals.is_digest(digest) else None) is None:
                self.lost += not seals.is_digest(digest)
                continue
            size, crc = blob
            if seals.tie_is_sound(row_id, number, digest, size, crc, seal, tuple(part)):
                ties.append((number, digest, size, crc, tuple(part)))
            else:
                self.lost += 1
        return ties

    def blob(self, digest: bytes) -> Row | None:
        """Size and CRC-32 of a blob; ``None`` unless they are readable."""
        try:
            return _sizes(self._connection, digest)
        except (sqlite3.Error, UnicodeDecodeError):
            return None

    def grants(self, row_id: int) -> list[tuple[str, float]]:
        """The sound grants of an object."""
        grants = []
        for identity, granted_at, seal in self._all(_GRANTS.format(seal=self._seal), (row_id,)):
            if seals.grant_is_sound(row_id, identity, granted_at, seal) and _is_text(identity):
                grants.append((identity, granted_at))
            else:
                self.lost += 1
        return grants

    def marks(self) -> tuple[dict[str, int], set[str]]:
        """The store from which the objects of each origin came, and the origins whose store is unreadable."""
        kept, lost = {}, set()
        for name, value in self._all("SELECT name, value FROM meta", ()):
            if type(name) is not str or not _is_text(name):
                self.lost += 1
            elif name.startswith(_MARK):
                if type(value) is int:
                    kept[name] = value
                else:
                    lost.add(name.removeprefix(_MARK))
                    self.lost += 1
        return kept, lost

    def _all(self, statement: str, arguments: Row) -> list[Row]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            self.lost += 1
            return []

    def _pages(self, statement: str, place: _Places) -> Iterator[Row]:
        """Rows in the order of their first column, skipping unreadable ones."""
        last, size = place.first, _PAGE
        while True:
            try:
                rows = self._connection.execute(statement, (last, size)).fetchall()
            except (sqlite3.Error, UnicodeDecodeError):
                if size > 1:
                    size = 1
                    continue
                self.lost += 1
                beyond = self._beyond(statement, place, last)
                if beyond is None:
                    return
                last, size = beyond, _PAGE
                continue
            yield from rows
            if len(rows) < size:
                return
            following = rows[-1][0]
            if type(following) is not type(last) or following <= last:
                return  # a damaged tree is out of order; going on might never end
            last = following

    def _beyond(self, statement: str, place: _Places, last: Any) -> Any:
        """The first readable place after ``last``, found by doubling the distance and then bisecting."""
        start = low = place.number(last)
        step = 1
        while not self._readable(statement, place, high := start + step):
            low, step = high, 2 * step
        if high >= place.end:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._readable(statement, place, middle):
                high = middle
            else:
                low = middle
        return place.at(high)

    def _readable(self, statement: str, place: _Places, number: int) -> bool:
        """Whether the row at a place can be read; true at the end."""
        if number >= place.end:
            return True
        try:
            self._connection.execute(statement, (place.at(number), 1)).fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Places:
    """The order of a table's first column, as numbers below ``end``."""

    first: Any
    end: int
    number: Callable[[Any], int]
    at: Callable[[int], Any]


_IDS = _Places(0, 2**63, int, int)
_DIGESTS = _Places(
    b"",
    256**_PREFIX,
    lambda digest: int.from_bytes(digest[:_PREFIX].ljust(_PREFIX, b"\0")),
    lambda number: number.to_bytes(_PREFIX),
)


def _is_text(value: object) -> bool:
    """Whether a value is UTF-8, if it is a text; true for other types."""
    return type(value) is not str or not any(0xDC80 <= ord(letter) <= 0xDCFF for letter in value)


def salvage(old: Path, new: Path) -> Salvaged:
    """Copy the sound rows of the index ``old`` into the empty index ``new``, and close both.

    Raises:
        DiskFault: nothing can be read, or the new index cannot be written.
    """
    with disk_faults(), closing(_connect(old)) as source, closing(_connect(new)) as target:
        reader = _Copying(source)
        # Hold other workers' writes back, if the damaged index allows it: they would be lost.
        with suppress(sqlite3.Error, UnicodeDecodeError):
            source.execute("BEGIN IMMEDIATE")
        # Nobody reads the new file until it is complete, so it needs no journal.
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA foreign_keys = ON", "BEGIN IMMEDIATE"):
            target.execute(statement).fetchall()
        rescued = _copy(reader, target)
        target.execute("COMMIT")
        with suppress(sqlite3.Error, UnicodeDecodeError):
            source.execute("ROLLBACK")
    return rescued


def damage(path: Path, patience: float) -> int:
    """The number of damaged rows and pages of an index. It only reads, and may run beside a gateway.

    Raises:
        DiskFault: nothing can be read.
    """
    with disk_faults(), closing(_connect(path, patience)) as connection:
        reader = _Copying(connection)
        for _ in reader.blobs():
            pass
        for row_id, _, _ in reader.objects():
            reader.ties(row_id, reader.blob)
            reader.grants(row_id)
        reader.marks()
        return reader.lost


def unsound(connection: sqlite3.Connection) -> bool:
    """Whether a row of a pool or a blob has a value of the wrong kind; any other failure of an operation is a bug."""
    return any(connection.execute(statement).fetchone() for statement in _WRONG_KINDS)


def _connect(path: Path, patience: float = 2.0) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=patience, isolation_level=None)


def _copy(reader: _Copying, target: sqlite3.Connection) -> Salvaged:
    marks, unknown = reader.marks()
    target.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", marks.items())
    for digest, size, crc, rank, mtime_ns, _boot, item in reader.blobs():
        target.execute(_BLOB, (digest, size, crc, rank, mtime_ns, item, DEFAULT_POOL))
    known = partial(_sizes, target)
    objects = 0
    for row_id, key, values in reader.objects():
        ties = reader.ties(row_id, known)
        if not ties or key.origin in unknown:
            reader.lost += not ties
            continue
        # Of two rows with one key, the damaged tree hid the earlier one from deletion.
        objects += 1 - target.execute(_FORGET, key).rowcount
        new_id = target.execute(_OBJECT, (*key, *values, seals.object_seal(key, values))).lastrowid or 0
        for number, digest, size, crc, part in ties:
            seal = seals.tie_seal(new_id, number, digest, size, crc, part)
            target.execute(_TIE, (new_id, number, digest, seal, *part))
        for identity, granted_at in reader.grants(row_id):
            target.execute(_GRANT, (new_id, identity, granted_at, seals.grant_seal(new_id, identity, granted_at)))
    target.execute(_DROP_UNTIED)
    target.execute(blob_rows.COUNT_ELEMENTS)
    (blobs,) = target.execute("SELECT count(*) FROM blobs").fetchone()
    return Salvaged(blobs, objects, reader.lost)


def _sizes(connection: sqlite3.Connection, digest: bytes) -> Row | None:
    """Size and CRC-32 of a blob."""
    row: Row | None = connection.execute("SELECT size, crc32 FROM blobs WHERE digest = ?", (digest,)).fetchone()
    return row
