"""Names of cached objects, level by level, as a listing with the delimiter ``/`` shows a bucket.

Each page reads about as many rows as it has names, because a folder is skipped to its end, however many objects it contains.
"""

from __future__ import annotations

from sqlite3 import Connection
from typing import NamedTuple

from gateway.model.keys import ObjectKey
from gateway.store.index.objects import after

_ROWS = 64


class CachedName(NamedTuple):
    """A folder, with its last slash and without a size; an object; or a bucket."""

    name: str
    size: int | None = None


def names(connection: Connection, place: ObjectKey, last: str, limit: int) -> list[CachedName]:
    """The first names after ``last``, in UTF-8 order.

    Args:
        connection: to read from.
        place: the origin, the bucket, and the prefix as its key; without a bucket, the buckets are listed.
        last: the last name of the page before; empty for the first page.
        limit: maximum number of names.
    """
    return _below(connection, place, last, limit) if place.bucket else _buckets(connection, place.origin, last, limit)


def _buckets(connection: Connection, origin: str, last: str, limit: int) -> list[CachedName]:
    listed: list[CachedName] = []
    statement = "SELECT min(bucket) FROM objects WHERE origin = ? AND bucket > ?"
    while len(listed) < limit and (row := connection.execute(statement, (origin, last)).fetchone())[0] is not None:
        last = row[0]
        listed.append(CachedName(last))
    return listed


def _below(connection: Connection, place: ObjectKey, last: str, limit: int) -> list[CachedName]:
    prefix, end = place.key, after(place.key)
    within, bounds = ("", []) if end is None else ("AND key < ?", [end])
    listed: list[CachedName] = []
    sign, start = _start(prefix, last)
    while start is not None and len(listed) < limit:
        rows = connection.execute(
            f"SELECT key, size FROM objects WHERE origin = ? AND bucket = ? AND key {sign} ? {within} ORDER BY key LIMIT ?",  # noqa: S608
            (place.origin, place.bucket, start, *bounds, _ROWS),
        ).fetchall()
        for key, size in rows:
            if listed and listed[-1].size is None and key.startswith(listed[-1].name):
                continue
            slash = key.find("/", len(prefix))
            listed.append(CachedName(key, size) if slash < 0 else CachedName(key[: slash + 1]))
        sign, start = _start(prefix, listed[-1].name) if len(rows) == _ROWS else ("", None)
    return listed[:limit]


def _start(prefix: str, last: str) -> tuple[str, str | None]:
    """Where the names after ``last`` begin: a comparison and its value; no value if there are none."""
    if not last:
        return ">=", prefix
    return (">=", after(last)) if "/" in last[len(prefix) :] else (">", last)
