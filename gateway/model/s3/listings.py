"""The objects in the document of a listing, read while it passes: ListObjects in both versions, and ListObjectVersions.

Only the elements that tell one version of an object from another are parsed, and unknown parts are skipped: a missed object loses
only its freshness. Memory is bounded by ``LONGEST_ROW``, and work by ``MOST_ROWS``. Entities other than XML's own, comments and
attributes are not part of these documents ("ListObjectsV2" in the S3 API reference).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

LONGEST_ROW = 32 * 1024
"""The most bytes of an object's element: a key of 1,024 bytes, percent-encoded, with room for an owner and checksums."""
MOST_ROWS = 100_000
"""The most objects of one document; a page of S3 has 1,000."""
_OPENING = re.compile(rb"<(Contents|Version|DeleteMarker)>")
_ENTITY = re.compile(r"&(#x?[0-9A-Fa-f]{1,6}|[a-z]{2,4});")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


class SeenVersion(NamedTuple):
    """A store's statement about the current version of an object.

    ``etag`` is empty, ``size`` -1 and ``modified`` ``None`` if not stated; ``modified`` is in seconds since the epoch. ``gone``:
    the object does not exist.
    """

    key: str
    etag: str = ""
    size: int = -1
    modified: float | None = None
    gone: bool = False


class ListingScanner:
    """Finds the objects of one document that arrives in pieces; ``encoded``: its keys may be percent-encoded."""

    def __init__(self, *, encoded: bool) -> None:
        self._encoded = encoded
        self._rest = b""
        self._rows = 0

    def feed(self, piece: bytes) -> list[SeenVersion]:
        """The objects completed by this piece."""
        if self._rows >= MOST_ROWS:
            return []
        data = self._rest + piece
        sightings: list[SeenVersion] = []
        position = 0
        while (opening := _OPENING.search(data, position)) is not None:
            closing = data.find(b"</%b>" % opening[1], opening.end())
            if closing < 0:
                position = opening.start()
                break
            position = closing
            self._rows += 1
            if closing - opening.end() <= LONGEST_ROW:
                sightings += self._sightings(opening[1], data[opening.end() : closing])
        else:
            position = max(position, len(data) - len(b"<DeleteMarker>"))
        self._rest = data[position:]
        if len(self._rest) > LONGEST_ROW:
            self._rest = b""  # no element of an object is that long
        return sightings

    def _sightings(self, kind: bytes, row: bytes) -> list[SeenVersion]:
        key = _text(row, b"Key")
        if not key or (kind != b"Contents" and _text(row, b"IsLatest") != "true"):
            return []
        # Stores differ on "+", and on whether they encode keys at all.
        keys = {key, unquote(key), unquote_plus(key)} if self._encoded else (key,)
        if kind == b"DeleteMarker":
            return [SeenVersion(name, gone=True) for name in keys]
        size = _text(row, b"Size") or ""
        length = int(size) if size.isascii() and size.isdigit() and len(size) < 19 else -1
        etag, modified = (_text(row, b"ETag") or "").strip(), iso_time(_text(row, b"LastModified") or "")
        return [SeenVersion(name, etag, length, modified) for name in keys]


def iso_time(text: str) -> float | None:
    """A time of a listing in seconds since the epoch; ``None`` if it cannot be read or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        return None


def _text(row: bytes, name: bytes) -> str | None:
    """The text of an element; ``None`` if it is missing, or holds anything but text."""
    _, opened, rest = row.partition(b"<%b>" % name)
    text, closed, _ = rest.partition(b"</%b>" % name)
    if not opened or not closed or b"<" in text:
        return None
    try:
        plain = _ENTITY.sub(_character, text.decode("utf-8"))
        plain.encode()  # a reference may name half a character
        return plain
    except (ValueError, OverflowError):
        return None


def _character(entity: re.Match[str]) -> str:
    name = entity[1]
    if not name.startswith("#"):
        return _ENTITIES.get(name, entity[0])
    return chr(int(name[2:], 16) if name.startswith("#x") else int(name[1:]))
