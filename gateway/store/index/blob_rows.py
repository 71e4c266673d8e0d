"""Operations on the rows of blobs: eviction order, use, verification, counts.

Files are removed only here, by ``remove_files``, and only while the transaction holds the write lock and the blob has no
row. ``recording.record`` checks the files under the same lock. So an eviction and a new fill of the same bytes are ordered:
either the fill's row protects the file, or the fill sees that the file is gone and is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any, NamedTuple

from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef
from gateway.store.index import pool_rows, seals
from gateway.store.index.pool_rows import Entering, NewBlob
from gateway.store.index.schema import NODE, listed
from gateway.store.index.victims import EvictionGoal, victims

_STEADY, _STEADY_AT = "steady:", "steady-at:"
"""Prefixes of names in ``meta`` for datasets whose residents replace each other: their bytes, and when these were noted."""
_COUNT = (
    "UPDATE blobs SET elements = (SELECT count(DISTINCT start << 32 | length) FROM object_blocks "
    "WHERE object_blocks.digest = blobs.digest) WHERE "
)
COUNT_ELEMENTS = f"{_COUNT} digest IN (SELECT digest FROM object_blocks WHERE start IS NOT NULL)"  # noqa: S608
"""Counts the elements of all pages."""


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob's row. ``boot`` is the start during which the file of ``mtime_ns`` was verified."""

    digest: bytes
    size: int
    crc32: int
    mtime_ns: int
    boot: int

    @property
    def ref(self) -> BlobRef:
        """The blob itself."""
        return BlobRef(self.digest, self.size, self.crc32)


@dataclass(frozen=True, slots=True)
class Counts:
    """The totals of the node's blobs: bytes and number."""

    size: int
    blobs: int


class Evicted(NamedTuple):
    """Deleted rows: digests and sizes of the blobs, the objects that lost their last block, and the sizes of the blobs that
    belonged to an ended pool.
    """

    blobs: list[tuple[bytes, int]]
    objects: list[ObjectKey]
    ended: Sequence[int] = ()

    @property
    def size(self) -> int:
        """Bytes of the blobs."""
        return sum(size for _, size in self.blobs)


class Kept(NamedTuple):
    """A committed blob file. ``boot`` is the start during which the file of ``mtime_ns`` was verified."""

    ref: BlobRef
    path_of: Callable[[bytes], str]
    mtime_ns: int
    boot: int

    @property
    def path(self) -> str:
        """The path of the file, computed in the index's thread, the only one that needs it."""
        return self.path_of(self.ref.digest)


def find(connection: Connection, digest: bytes) -> BlobRow | None:
    """The row of a blob."""
    row = connection.execute(
        "SELECT digest, size, crc32, mtime_ns, boot FROM blobs WHERE digest = ?", (digest,)
    ).fetchone()
    return None if row is None else as_row(row)


def find_many(connection: Connection, digests: Sequence[bytes]) -> list[BlobRow]:
    """The existing rows of at most 500 blobs."""
    marks, padded = listed(digests)
    statement = f"SELECT digest, size, crc32, mtime_ns, boot FROM blobs WHERE digest IN ({marks})"  # noqa: S608 - "?" only
    return [as_row(row) for row in connection.execute(statement, padded)]


def as_row(values: Sequence[Any]) -> BlobRow:
    """A row with these values.

    Raises:
        DiskFault: CORRUPT if no version of Larder wrote them.
    """
    digest, size, crc32, mtime_ns, boot = values
    if not seals.blob_is_sound(digest, size, crc32, 0.0, mtime_ns, boot):
        raise seals.damaged("the row of a blob")
    return BlobRow(digest, size, crc32, mtime_ns, boot)


def held(connection: Connection, digests: Sequence[bytes]) -> set[bytes]:
    """The digests among at most 500 whose blobs have a row."""
    marks, padded = listed(digests)
    statement = f"SELECT digest FROM blobs WHERE digest IN ({marks})"  # noqa: S608 - "?" only
    return {digest for (digest,) in connection.execute(statement, padded)}


def fit(connection: Connection, sizes: Mapping[bytes, int], capacity: int) -> bool:
    """Whether the node would stay within its capacity if the blobs that it lacks were added; ``sizes`` is by digest."""
    new = sizes.keys() - held(connection, tuple(sizes))
    return not new or counts(connection).size + sum(sizes[digest] for digest in new) <= capacity


def entered(blob: Kept, mtime_ns: int, entry: Entering, *, item: bool = False, elements: int = 1) -> NewBlob:
    """A blob about to enter a pool, with the modification time of its file."""
    boot = blob.boot if mtime_ns == blob.mtime_ns else 0
    return NewBlob(blob.ref.digest, blob.ref.size, blob.ref.crc32, mtime_ns, boot, entry, item, elements)


def count_elements(connection: Connection, digests: Sequence[bytes]) -> None:
    """Count the elements of these blobs again if they are pages, because some have been replaced."""
    pages = "EXISTS (SELECT 1 FROM object_blocks WHERE digest = blobs.digest AND start >= 0)"
    connection.executemany(f"{_COUNT} digest = ? AND {pages}", [(digest,) for digest in dict.fromkeys(digests)])


def counts(connection: Connection) -> Counts:
    """The stored totals."""
    row = connection.execute("SELECT bytes, blobs FROM pools WHERE id = ?", (NODE,)).fetchone()
    return Counts(row[0], row[1])


def born(connection: Connection) -> int:
    """When this index was created, in nanoseconds since the epoch."""
    value = connection.execute("SELECT value FROM meta WHERE name = 'born'").fetchone()
    return int(value[0])


def want(connection: Connection, size: int) -> None:
    """Ask the keeper for room for ``size`` bytes."""
    connection.execute(
        "INSERT INTO meta VALUES ('wanted', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        (size,),
    )


def wanted(connection: Connection) -> int:
    """The largest request for room since ``take_wanted``."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'wanted'").fetchone()
    return 0 if row is None else int(row[0])


def take_wanted(connection: Connection) -> int:
    """Return ``wanted`` and clear it before making room, so that requests that arrive meanwhile stay for the next sweep."""
    size = wanted(connection)
    connection.execute("DELETE FROM meta WHERE name = 'wanted'")
    return size


def note_steady(connection: Connection, tag: str, size: int, now: float) -> None:
    """Record how many bytes are held by a dataset whose items replace each other (residency by demand)."""
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        ((f"{_STEADY}{tag}", size), (f"{_STEADY_AT}{tag}", int(now))),
    )


def steady(connection: Connection, since: float) -> int:
    """The bytes of all datasets recorded by ``note_steady`` since ``since``."""
    (size,) = connection.execute(
        "SELECT coalesce(sum(sizes.value), 0) FROM meta AS times JOIN meta AS sizes "
        "ON sizes.name = ? || substr(times.name, ?) WHERE times.name >= ? AND times.name < ? AND times.value >= ?",
        (_STEADY, len(_STEADY_AT) + 1, _STEADY_AT, f"{_STEADY_AT}~", since),
    ).fetchone()
    return int(size)


def note_verified(connection: Connection, digest: bytes, mtime_ns: int, boot: int) -> None:
    """Record that the file with that modification time was verified during this start."""
    connection.execute("UPDATE blobs SET mtime_ns = ?, boot = ? WHERE digest = ?", (mtime_ns, boot, digest))


def evict(connection: Connection, goal: EvictionGoal) -> Evicted:
    """Delete the rows of the next blobs in the eviction order."""
    others, ended = victims(connection, goal)
    return _evict(connection, ended + others)._replace(ended=[size for _, size in ended])


def evict_pool(connection: Connection, name: str, limit: int) -> Evicted:
    """Delete the rows of at most ``limit`` blobs of a pool."""
    return _evict(connection, pool_rows.lowest(connection, name, limit))


def evict_items(connection: Connection, digests: Sequence[bytes]) -> Evicted:
    """Delete the rows of these blobs, and of objects that have no other block."""
    marks, padded = listed(digests)
    statement = f"SELECT digest, size FROM blobs WHERE digest IN ({marks})"  # noqa: S608 - "?" only
    return _evict(connection, connection.execute(statement, padded).fetchall())


def _evict(connection: Connection, chosen: list[tuple[bytes, int]]) -> Evicted:
    return Evicted(chosen, [key for digest, _ in chosen for key in _untie(connection, digest)])


def _untie(connection: Connection, digest: bytes) -> list[ObjectKey]:
    """Delete a blob with all its ties; returns the objects that lose their last block, which are deleted too."""
    lost = []
    holders = connection.execute("SELECT DISTINCT object_id FROM object_blocks WHERE digest = ?", (digest,)).fetchall()
    connection.execute("DELETE FROM object_blocks WHERE digest = ?", (digest,))
    for holder in holders:
        orphan = connection.execute(
            "SELECT origin, bucket, key FROM objects "
            "WHERE id = ? AND NOT EXISTS (SELECT 1 FROM object_blocks WHERE object_id = objects.id)",
            holder,
        ).fetchone()
        if orphan is not None:
            lost.append(ObjectKey(*orphan))
            connection.execute("DELETE FROM objects WHERE id = ?", holder)
    connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
    return lost


def _drop(connection: Connection, digests: Sequence[bytes]) -> int:
    """Delete blobs with all their ties, and objects that lose their last block; returns the number of blobs with a row."""
    known = [digest for digest in digests if find(connection, digest) is not None]
    for digest in digests:
        _untie(connection, digest)
    return len(known)


def remove_files(
    connection: Connection,
    digests: Sequence[bytes],
    remove: Callable[[bytes], bool],
) -> int:
    """Unlink, by ``remove``, the files of blobs without a row; returns their number."""
    return sum(remove(digest) for digest in digests if find(connection, digest) is None)


def drop_wrong(connection: Connection, digest: bytes, path: str, wrong: tuple[int, int] | None) -> int:
    """Drop a blob whose file is corrupt (``wrong``: its device and inode) or missing (``None``).

    Nothing is dropped if the path now leads to a newer file. Returns the number of blobs with a row.
    """
    try:
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino)
    except FileNotFoundError:
        identity = None
    return _drop(connection, [digest]) if identity == wrong else 0


def drop_broken(connection: Connection, digests: Sequence[bytes], path_of: Callable[[bytes], str]) -> list[bytes]:
    """Drop blobs whose file is missing or differs in size from the row; returns their digests."""
    broken = []
    for digest in digests:
        row = find(connection, digest)
        if row is None:
            continue
        try:
            whole = os.stat(path_of(digest)).st_size == row.size
        except FileNotFoundError:
            whole = False
        if not whole:
            broken.append(digest)
    _drop(connection, broken)
    return broken


def in_shards(connection: Connection, shards: range) -> dict[bytes, int]:
    """Digests and sizes of the blobs whose first byte is in ``shards``, a range of step 1."""
    low = bytes([shards.start])
    high = bytes([shards.stop]) if shards.stop < 256 else b"\xff" * 33
    rows = connection.execute("SELECT digest, size FROM blobs WHERE digest >= ? AND digest < ?", (low, high)).fetchall()
    return {row[0]: row[1] for row in rows}
