"""Operations on objects, their blocks and their grants. Each takes a connection: in a transaction, or for reading.

The statements are plain SQL for the driver, because they are on the path of every miss: with SQLAlchemy's result objects,
recording a small object took 150 us of CPU instead of 45. recording.py writes new objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import NamedTuple

from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, Header, ObjectMeta, ObjectRecord
from gateway.policies.reads.freshness import latest
from gateway.store.index import seals
from gateway.store.index.schema import DEFAULT_POOL, listed
from gateway.store.shared.generations import slots_of

_OBJECT = "id, confirmed_at, seal, slot, etag, size, last_modified, headers, checksums, block_size"
_SELECT = f"SELECT {_OBJECT} FROM objects WHERE origin = ? AND bucket = ? AND key = ?"  # noqa: S608
_ROW_ID = "SELECT id FROM objects WHERE origin = ? AND bucket = ? AND key = ?"
_REFRESH = "UPDATE objects SET last_modified = ?, headers = ?, checksums = ?, confirmed_at = ?, slot = ?, seal = ? WHERE id = ?"
_DROP_UNTIED = (
    "DELETE FROM blobs WHERE digest = ? AND item = 0 "
    "AND NOT EXISTS (SELECT 1 FROM object_blocks b WHERE b.digest = blobs.digest)"
)
_PAGE = 500
MOST_TIES = 20_000
"""Ties that one transaction deletes or follows: a collection of results has as many as its dataset has items."""
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Recorded(NamedTuple):
    """The row after recording, if there is one, and the digests that may have lost their rows."""

    record: ObjectRecord | None
    loose: tuple[bytes, ...] = ()


class CachedObject(NamedTuple):
    """Everything needed to serve an object: its row, its grants by identity, and the blobs of its blocks by number."""

    record: ObjectRecord
    grants: dict[str, float]
    blobs: dict[int, BlobRef]


class PrefixTotals(NamedTuple):
    """The number of objects, and their bytes in the cache; shared blobs count once per object."""

    objects: int = 0
    bytes: int = 0

    def plus(self, other: PrefixTotals) -> PrefixTotals:
        """The sum of both totals."""
        return PrefixTotals(self.objects + other.objects, self.bytes + other.bytes)


class Forgotten(NamedTuple):
    """The number of deleted objects, the digests of blobs deleted with them, and whether some objects may be left."""

    objects: int
    loose: list[bytes]
    more: bool


encode = json.JSONEncoder(separators=(",", ":")).encode
"""Headers as ASCII text, because they may contain bytes that are not UTF-8, decoded to surrogates, which SQLite refuses."""


def _decode(text: str) -> tuple[Header, ...]:
    return tuple((name, value) for name, value in json.loads(text))


def lookup(connection: Connection, key: ObjectKey) -> ObjectRecord | None:
    """The row of a key."""
    row = connection.execute(_SELECT, (key.origin, key.bucket, key.key)).fetchone()
    if row is None:
        return None
    row_id, confirmed_at, seal, *values = row
    if not seals.object_is_sound(key, values, confirmed_at, seal):
        raise seals.damaged("the row of an object")
    _slot, etag, size, last_modified, headers, checksums, block_size = values
    try:
        meta = ObjectMeta(
            etag, size, last_modified, _decode(headers), None if checksums is None else _decode(checksums)
        )
    except (ValueError, TypeError) as error:
        raise seals.damaged("the row of an object") from error
    return ObjectRecord(row_id, meta, block_size, confirmed_at)


def blocks(connection: Connection, row_id: int, first: int, last: int) -> dict[int, BlobRef]:
    """The cached blobs among blocks ``first`` to ``last``, inclusive."""
    rows = connection.execute(
        "SELECT b.no, b.digest, blobs.size, blobs.crc32, b.seal FROM object_blocks b JOIN blobs ON blobs.digest = b.digest "
        "WHERE b.object_id = ? AND b.no BETWEEN ? AND ?",
        (row_id, first, last),
    ).fetchall()
    if not all(seals.tie_is_sound(row_id, *row) for row in rows):
        raise seals.damaged("the row of a block")
    return {no: BlobRef(digest, size, crc32) for no, digest, size, crc32, _ in rows}


def present(connection: Connection, keys: Sequence[ObjectKey]) -> set[ObjectKey]:
    """The keys that have a row."""
    existing: set[ObjectKey] = set()
    for origin, bucket, names in _pages(keys):
        marks, padded = listed(names)
        statement = f"SELECT key FROM objects WHERE origin = ? AND bucket = ? AND key IN ({marks})"  # noqa: S608 - "?" only
        for (key,) in connection.execute(statement, (origin, bucket, *padded)):
            existing.add(ObjectKey(origin, bucket, key))
    return existing


def versions(connection: Connection, keys: Sequence[ObjectKey]) -> dict[ObjectKey, ObjectMeta]:
    """ETag, size and time of the keys that have a row."""
    known: dict[ObjectKey, ObjectMeta] = {}
    for origin, bucket, names in _pages(keys):
        marks, padded = listed(names)
        statement = (
            "SELECT key, etag, size, last_modified FROM objects "  # noqa: S608 - "?" only
            f"WHERE origin = ? AND bucket = ? AND key IN ({marks})"
        )
        for key, etag, size, last_modified in connection.execute(statement, (origin, bucket, *padded)):
            known[ObjectKey(origin, bucket, key)] = ObjectMeta(etag, size, last_modified)
    return known


def expire(connection: Connection, keys: Sequence[ObjectKey]) -> None:
    """Revoke the confirmations of these keys."""
    connection.executemany(
        "UPDATE objects SET confirmed_at = 0 WHERE origin = ? AND bucket = ? AND key = ?", [tuple(key) for key in keys]
    )


def _pages(keys: Iterable[ObjectKey]) -> Iterator[tuple[str, str, list[str]]]:
    """Keys by origin and bucket, at most ``_PAGE`` at a time."""
    places: dict[tuple[str, str], list[str]] = {}
    for origin, bucket, key in keys:
        places.setdefault((origin, bucket), []).append(key)
    for (origin, bucket), names in places.items():
        for start in range(0, len(names), _PAGE):
            yield origin, bucket, names[start : start + _PAGE]


def known(connection: Connection, asked: Sequence[tuple[ObjectKey, int]]) -> list[CachedObject | None]:
    """The rows of keys with their grants and a limited number of their first blocks; ``None`` for a key without a row.

    If many clients read new data, most keys that are looked up together have no row: those cost one statement.
    """
    keys = [key for key, _ in asked]
    rows = set(keys) if len(keys) == 1 else present(connection, keys)
    return [_known(connection, key, most) if key in rows else None for key, most in asked]


def _known(connection: Connection, key: ObjectKey, most: int) -> CachedObject | None:
    row = lookup(connection, key)
    if row is None:
        return None
    return CachedObject(
        row, grants(connection, row.row_id), blocks(connection, row.row_id, 0, min(row.block_count, most) - 1)
    )


def refresh(
    connection: Connection, key: ObjectKey, old: ObjectRecord, meta: ObjectMeta, confirmed_at: float, now: float
) -> ObjectRecord:
    """Update a key's row ``old`` from another answer of the origin."""
    # ``None`` means that the answer could not carry checksums, not that there are none.
    checksums = old.meta.checksums if meta.checksums is None else meta.checksums
    row = ObjectRecord(
        old.row_id, replace(meta, checksums=checksums), old.block_size, latest(old.confirmed_at, confirmed_at, now)
    )
    values = sealed(key, row.meta, row.block_size)
    _slot, _etag, _size, last_modified, headers, stored, _block_size, seal = values
    connection.execute(_REFRESH, (last_modified, headers, stored, row.confirmed_at, _slot, seal, row.row_id))
    return row


def sealed(key: ObjectKey, meta: ObjectMeta, block_size: int) -> tuple[int, str, int, str, str, str | None, int, int]:
    """The values of an object's row, from slot to block size, and their checksum."""
    checksums = None if meta.checksums is None else encode(meta.checksums)
    values = (
        slots_of(key)[0],
        meta.etag,
        meta.size,
        meta.last_modified,
        encode(meta.headers),
        checksums,
        block_size,
    )
    return *values, seals.object_seal(key, values)


def confirm(connection: Connection, key: ObjectKey, meta: ObjectMeta, confirmed_at: float, now: float) -> None:
    """Record that the origin confirmed the object again; ignored if the row is for another version."""
    old = lookup(connection, key)
    if old is not None and (old.meta.etag, old.meta.size) == (meta.etag, meta.size):
        refresh(connection, key, old, meta, confirmed_at, now)


def forget(connection: Connection, keys: Sequence[ObjectKey]) -> list[bytes]:
    """Delete the rows of these keys; returns the digests of blobs deleted with them."""
    row_ids = [row[0] for key in keys for row in connection.execute(_ROW_ID, key)]
    return drop_untied(connection, delete(connection, row_ids))


def forget_page(connection: Connection, place: ObjectKey, exact: bool) -> Forgotten:
    """Delete up to 500 objects below a prefix, or if ``exact`` the object with that key; of their ties, see ``MOST_TIES``."""
    within, bounds = _at(place.key) if exact else _below(place.key)
    rows = connection.execute(
        f"SELECT id FROM objects WHERE origin = ? AND bucket = ? AND {within} ORDER BY key LIMIT ?",  # noqa: S608
        (place.origin, place.bucket, *bounds, _PAGE),
    ).fetchall()
    return _forget_some(connection, [row[0] for row in rows])


def forget_origin_page(connection: Connection, origin: str) -> Forgotten:
    """Like ``forget_page``, for all objects of an origin."""
    rows = connection.execute("SELECT id FROM objects WHERE origin = ? LIMIT ?", (origin, _PAGE)).fetchall()
    return _forget_some(connection, [row[0] for row in rows])


def _forget_some(connection: Connection, row_ids: Sequence[int]) -> Forgotten:
    """Delete objects until ``MOST_TIES`` ties are deleted; of one that has more, some ties."""
    digests, left = list[bytes](), MOST_TIES
    for done, row_id in enumerate(row_ids):
        ties = connection.execute(
            "SELECT no, digest FROM object_blocks WHERE object_id = ? ORDER BY no LIMIT ?", (row_id, left)
        ).fetchall()
        digests += [digest for _, digest in ties]
        if len(ties) == left:
            connection.execute("DELETE FROM object_blocks WHERE object_id = ? AND no <= ?", (row_id, ties[-1][0]))
            more = connection.execute("SELECT 1 FROM object_blocks WHERE object_id = ?", (row_id,)).fetchone()
            if more is None:
                connection.execute("DELETE FROM objects WHERE id = ?", (row_id,))
            return Forgotten(done + (more is None), drop_untied(connection, digests), more=True)
        left -= len(ties)
        connection.execute("DELETE FROM objects WHERE id = ?", (row_id,))
    return Forgotten(len(row_ids), drop_untied(connection, digests), more=len(row_ids) == _PAGE)


def origin_mark(connection: Connection, origin: str) -> int | None:
    """The mark of an origin, written by ``mark_origin``."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (f"origin:{origin}",)).fetchone()
    if row is not None and type(row[0]) is not int:
        raise seals.damaged("the mark of an origin")
    return None if row is None else int(row[0])


def mark_origin(connection: Connection, origin: str, mark: int) -> None:
    """Record which store the objects of an origin came from."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"origin:{origin}", mark))


def delete_rows(connection: Connection, row_ids: Sequence[int]) -> list[bytes]:
    """Delete objects by id; returns the digests of blobs deleted with them."""
    return drop_untied(connection, delete(connection, row_ids))


def delete_slots(connection: Connection, slots: Sequence[int]) -> list[bytes]:
    """Delete every object whose key is in one of these slots; returns the digests of blobs deleted with them.

    Results of pipelines stay: no write changes them.
    """
    ids: list[int] = []
    for slot in slots:
        ids += [row[0] for row in connection.execute("SELECT id FROM objects WHERE slot = ? AND origin <> ''", (slot,))]
    return delete_rows(connection, ids)


def delete(connection: Connection, row_ids: Iterable[int]) -> list[bytes]:
    """Delete objects, their ties and grants; returns the digests to which they were tied."""
    digests: list[bytes] = []
    for row_id in row_ids:
        rows = connection.execute("SELECT digest FROM object_blocks WHERE object_id = ?", (row_id,))
        digests += [row[0] for row in rows]
        connection.execute("DELETE FROM objects WHERE id = ?", (row_id,))
    return digests


def tied(connection: Connection, row_id: int, numbers: Iterable[int]) -> list[bytes]:
    """The digests of some blocks of an object."""
    rows = connection.execute(
        "SELECT digest FROM object_blocks WHERE object_id = ? AND no IN (SELECT value FROM json_each(?))",
        (row_id, json.dumps(list(numbers))),
    )
    return [row[0] for row in rows]


def drop_untied(connection: Connection, digests: Iterable[bytes]) -> list[bytes]:
    """Delete the blobs among ``digests`` that belong to no object and are not items; returns their digests."""
    return [digest for digest in dict.fromkeys(digests) if connection.execute(_DROP_UNTIED, (digest,)).rowcount]


def grants(connection: Connection, row_id: int) -> dict[str, float]:
    """The grants of an object: times by identity, in seconds since the epoch."""
    rows = connection.execute("SELECT identity, granted_at, seal FROM grants WHERE object_id = ?", (row_id,)).fetchall()
    if not all(seals.grant_is_sound(row_id, *row) for row in rows):
        raise seals.damaged("the row of a grant")
    return {row[0]: row[1] for row in rows}


def grant(connection: Connection, row_id: int, identity: str, now: float) -> None:
    """Record a grant, if the object still has its row."""
    connection.execute(
        "INSERT OR REPLACE INTO grants (object_id, identity, granted_at, seal) SELECT id, ?, ?, ? FROM objects WHERE id = ?",
        (identity, now, seals.grant_seal(row_id, identity, now), row_id),
    )


def revoke(connection: Connection, row_id: int, identity: str) -> None:
    """Forget a grant."""
    connection.execute("DELETE FROM grants WHERE object_id = ? AND identity = ?", (row_id, identity))


def withdraw_page(connection: Connection, origin: str, bucket: str, after: str) -> str | None:
    """Forget the grants of up to 500 objects of a bucket after the key ``after``; returns the last key, ``None`` at the end."""
    rows = connection.execute(
        "SELECT id, key FROM objects WHERE origin = ? AND bucket = ? AND key > ? ORDER BY key LIMIT ?",
        (origin, bucket, after, _PAGE),
    ).fetchall()
    connection.executemany("DELETE FROM grants WHERE object_id = ?", [(row[0],) for row in rows])
    return rows[-1][1] if rows else None


def disbelieve(connection: Connection, now: float) -> int:
    """Revoke confirmations and grants with times after ``now``; returns their number."""
    confirmed = connection.execute("UPDATE objects SET confirmed_at = 0 WHERE confirmed_at > ?", (now,)).rowcount
    return confirmed + connection.execute("DELETE FROM grants WHERE granted_at > ?", (now,)).rowcount


def held(connection: Connection, place: ObjectKey, exact: bool) -> PrefixTotals:
    """The totals of the objects below a prefix, or if ``exact`` of the object with that key."""
    within, bounds = _at(place.key) if exact else _below(place.key)
    row = connection.execute(
        "SELECT count(DISTINCT o.id), coalesce(sum(coalesce(b.length, blobs.size)), 0) FROM objects o "  # noqa: S608
        "JOIN object_blocks b ON b.object_id = o.id JOIN blobs ON blobs.digest = b.digest "
        f"WHERE o.origin = ? AND o.bucket = ? AND {within}",
        (place.origin, place.bucket, *bounds),
    ).fetchone()
    return PrefixTotals(int(row[0]), int(row[1]))


def held_below(connection: Connection, place: ObjectKey, limit: int) -> int:
    """Bytes in ``default`` of the first ``limit`` objects below a prefix that ends in ``/``, or of the object with that key."""
    within, bounds = _at(place.key) if place.key and not place.key.endswith("/") else _below(place.key)
    (size,) = connection.execute(
        "SELECT coalesce(sum(size), 0) FROM (SELECT DISTINCT digest, size FROM "  # noqa: S608
        f"(SELECT id FROM objects WHERE origin = ? AND bucket = ? AND {within} ORDER BY key LIMIT ?) "
        "JOIN object_blocks ON object_id = id JOIN blobs USING (digest) WHERE pool = ?)",
        (place.origin, place.bucket, *bounds, limit, DEFAULT_POOL),
    ).fetchone()
    return int(size)


def _at(key: str) -> tuple[str, list[str]]:
    """The condition that a key is this one, and its arguments."""
    return "key = ?", [key]


def _below(prefix: str) -> tuple[str, list[str]]:
    """The condition that a key begins with a prefix, and its arguments."""
    end = after(prefix)
    return ("key >= ?", [prefix]) if end is None else ("key >= ? AND key < ?", [prefix, end])


def after(prefix: str) -> str | None:
    """The smallest text greater than every text with this prefix, in UTF-8 order; ``None`` if there is none."""
    for place in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[place]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST:
            return prefix[:place] + chr(following)
    return None
