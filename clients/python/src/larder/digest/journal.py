"""The journal of a build, in a file beside its result, so that a killed build resumes.

An SQLite database, ``FILE.partial``, with one row per object. A row is written once its object was read completely, and survives
kill -9. The database is locked while it is open, so that two builds cannot write one file.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from larder.base.errors import DigestFileError
from larder.base.later import Self
from larder.base.tar import split_name

_FORMAT = "1"
_ITEM = struct.Struct("<qq32s")
_WHOLE = -1
_CREATE = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # `listed` is the number of the run that last saw the object in the store's listing.
    "CREATE TABLE objects (key BLOB PRIMARY KEY, etag TEXT NOT NULL, size INTEGER NOT NULL, listed INTEGER NOT NULL,"
    " items BLOB NOT NULL, members TEXT) WITHOUT ROWID",
)


class ItemDigest(NamedTuple):
    """One item of an object; ``offset`` is ``None`` when it is the whole object, ``member`` its name inside a TAR."""

    offset: int | None
    length: int
    digest: bytes
    member: str | None = None


class Object(NamedTuple):
    """A read object: its items, ordered by offset, valid while its ETag and size are unchanged."""

    key: str
    etag: str
    size: int
    items: tuple[ItemDigest, ...]


class Journal:
    """The objects that builds of one digest file have read. For one thread; close it or use it in a ``with``.

    Args:
        path: path of the database; created if missing.
        purpose: of the build (bucket, kind of items); a journal of another purpose is refused.
        fresh: discard an existing journal.

    Raises:
        DigestFileError: another build has it open, it belongs to another purpose, or it is damaged.
    """

    def __init__(self, path: Path, purpose: str, *, fresh: bool = False) -> None:
        self.path = path
        self._database = sqlite3.connect(path, timeout=0)
        try:
            self._prepare(purpose, fresh)
        except sqlite3.Error as error:
            self._database.close()
            if "locked" in str(error):
                raise DigestFileError(f"{path}: another build of this digest file is running") from error
            raise DigestFileError(f"{path} is damaged, remove it to begin again: {error}") from error
        except BaseException:
            self._database.close()
            raise
        self._open = True

    def _prepare(self, purpose: str, fresh: bool) -> None:
        database = self._database
        # Exclusive before WAL: SQLite then needs no shared memory file, and keeps other processes out.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("BEGIN EXCLUSIVE")
        if fresh:
            database.execute("DROP TABLE IF EXISTS facts")
            database.execute("DROP TABLE IF EXISTS objects")
        if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _CREATE:
                database.execute(statement)
            self._set_fact("format", _FORMAT)
            self._set_fact("purpose", purpose)
        if self._fact("format") != _FORMAT:
            raise DigestFileError(f"{self.path} was written by another version of larder: remove it to begin again")
        if self._fact("purpose") != purpose:
            raise DigestFileError(
                f"{self.path} is of an unfinished build of {self._fact('purpose')}, not of {purpose}: finish that one first,"
                " remove the file, or build another digest file"
            )
        self._run = int(self._fact("run") or 0) + 1
        self._set_fact("run", str(self._run))
        database.commit()

    @property
    def filled(self) -> bool:
        """Whether ``fill`` was called, by this build or by the build that it resumes."""
        return self._fact("filled") is not None

    def fill(self, objects: Iterable[Object]) -> None:
        """Add objects of an earlier digest file; the journal's own objects are newer and stay."""
        rows = (_to_row(read, 0) for read in objects)
        self._database.executemany("INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._set_fact("filled", "yes")
        self._database.commit()

    def confirm(self, key: str, etag: str, size: int) -> bool:
        """Whether the object was read before and is unchanged; if so, it belongs to this run."""
        update = self._database.execute(
            "UPDATE objects SET listed = ? WHERE key = ? AND etag = ? AND size = ?",
            (self._run, _bytes(key), etag, size),
        )
        return update.rowcount == 1

    def record(self, read: Object) -> None:
        """Store a read object durably."""
        self._database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)", _to_row(read, self._run))
        self._database.commit()

    def forget(self, key: str) -> None:
        """Remove an object that the store no longer has."""
        self._database.execute("DELETE FROM objects WHERE key = ?", (_bytes(key),))

    def objects(self) -> Iterator[Object]:
        """This run's objects, in the order of their keys' bytes."""
        return self._objects("key")

    def samples(self) -> Iterator[tuple[str, dict[str, Object]]]:
        """This run's objects, by sample and by their names in it."""
        self._database.create_function("sample", 1, lambda key: _bytes(split_name(_text(key))[0]), deterministic=True)
        # A sample's keys need not be adjacent: "a.cls" < "a.d/x.cls" < "a.jpg".
        ordered = self._objects("sample(key), key")
        for name, objects in groupby(ordered, lambda read: split_name(read.key)[0]):
            yield name, {split_name(read.key)[1]: read for read in objects}

    def _objects(self, order: str) -> Iterator[Object]:
        query = f"SELECT key, etag, size, items, members FROM objects WHERE listed = ? ORDER BY {order}"  # noqa: S608 - ours
        for key, etag, size, items, members in self._database.execute(query, (self._run,)):
            yield Object(_text(key), etag, size, unpacked(items, members))

    def close(self) -> None:
        """Close the database and keep it for the next build, unless it has no object. Harmless if already closed."""
        if self._open:
            self._open = False
            empty = self._database.execute("SELECT 1 FROM objects").fetchone() is None
            self._database.commit()
            self._database.close()
            if empty:
                remove(self.path)

    def discard(self) -> None:
        """Close and remove the database, once the digest file is written."""
        self.close()
        remove(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fact(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def _set_fact(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def remove(path: Path) -> None:
    """Remove a journal with the files that SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _to_row(read: Object, run: int) -> tuple[bytes, str, int, int, bytes, str | None]:
    items, members = packed(read.items)
    return _bytes(read.key), read.etag, read.size, run, items, members


def packed(items: Iterable[ItemDigest]) -> tuple[bytes, str | None]:
    """Items as bytes, and their members' names as JSON if they have names."""
    items = tuple(items)
    data = b"".join(
        _ITEM.pack(_WHOLE if item.offset is None else item.offset, item.length, item.digest) for item in items
    )
    named = any(item.member is not None for item in items)
    return data, json.dumps([item.member for item in items], ensure_ascii=False) if named else None


def unpacked(data: bytes, members: str | None) -> tuple[ItemDigest, ...]:
    """The inverse of ``packed``."""
    fields = list(_ITEM.iter_unpack(data))
    names = json.loads(members) if members else [None] * len(fields)
    return tuple(
        ItemDigest(None if offset == _WHOLE else offset, length, digest, name)
        for (offset, length, digest), name in zip(fields, names, strict=True)
    )


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
