"""Results of pipelines: their names, and the body in which clients send them.

A result is an element at a mark, as the client encoded it. It is named by its tenant, the fingerprint of the functions before
the mark, the content of the dataset's registration (digests and locations of all items: functions may see an item's key) and the
index of the item. All but the index make up a *collection*, which is stored like an object whose blocks are its results. Its
origin has an empty name, which no configured origin can have, so no S3 request leads to it.

The results of a PUT are written to *pages*: blobs with the bytes of many results, one after the other.

The body of a PUT has the index form of a batch answer (``frames.py``): entries, elements, end record. An entry with a status
other than OK has no bytes; it ends the sender's claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple
from zlib import crc32

from gateway.model.errors import LarderError
from gateway.model.frames import END, END_MAGIC, END_POSITION, ENTRY, INDEX_MAGIC, PREAMBLE, VERSION, ItemStatus
from gateway.model.keys import ObjectKey

MOST_RESULTS = 1024
"""Results of one request."""
MOST_BYTES = 64 * 1024**2
"""Bytes of elements in one request or answer."""
PAGE = 4 * 1024**2
"""Bytes of the largest page with several results. A page is verified, and leaves the cache, as a whole."""
LONGEST_BODY = PREAMBLE.size + MOST_RESULTS * ENTRY.size + MOST_BYTES + END.size
"""Bytes."""
MOST_VERSIONS = 1000
"""Results of one item."""
_ORIGIN = ""
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[A-Za-z0-9._-]{1,64}")


class PutResult(StrEnum):
    """The outcome of one element of a PUT."""

    STORED = "stored"
    KNOWN = "known"
    """The item already has a result; the first one stays."""
    FULL = "full"
    """Its pool has no room: no result is evicted for another of the same pool."""
    TOO_LARGE = "too-large"
    """It is larger than the setting ``results.largest``."""
    DAMAGED = "damaged"
    """Its bytes do not match its CRC."""
    GIVEN_UP = "given-up"
    """It has no bytes: its claim has ended."""
    UNAVAILABLE = "unavailable"
    """The cache disk, or its home node, does not accept it now."""


class MalformedResults(LarderError):
    """A body is not in the index form; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ReceivedResult:
    """One entry of a body. ``data`` is ``None`` for a damaged element, and for one with another status than OK."""

    position: int
    index: int
    status: ItemStatus
    crc32: int
    data: memoryview | None


class Element(NamedTuple):
    """A result in memory."""

    data: memoryview
    crc32: int


@dataclass(frozen=True, slots=True)
class Collection:
    """The results of one mark over one registration. ``content`` identifies the items and their locations, in hex."""

    tenant: str
    dataset: str
    fingerprint: str
    content: str

    @property
    def name(self) -> str:
        """A name that is unique to the tenant, registration and fingerprint: the pool's hash, ``/`` and 64 bits in hex."""
        return f"{pool_of(self.tenant, self.dataset, self.fingerprint)}/{_hash(self.content)[:16]}"


def pool_of(tenant: str, dataset: str, fingerprint: str) -> str:
    """The name of the results of one fingerprint over a tenant's dataset: 128 bits in hex."""
    return _hash(tenant, dataset, fingerprint)[:32]


def _hash(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def is_fingerprint(text: str) -> bool:
    """Whether a text has the form of a fingerprint: 64 lower-case hex digits."""
    return _FINGERPRINT.fullmatch(text) is not None


def is_owner(text: str) -> bool:
    """Whether a text can be the owner of a claim."""
    return _OWNER.fullmatch(text) is not None


def collection_key(collection: str) -> ObjectKey:
    """The key that the results of a collection are stored under."""
    pool, _, content = collection.partition("/")
    return ObjectKey(_ORIGIN, pool, content)


def earlier_key(collection: str, index: int) -> ObjectKey:
    """The key under which releases before pages stored a result, as an object of its own."""
    key = collection_key(collection)
    return key._replace(key=f"{key.key}/{index}")


def pages_of(sizes: Mapping[int, int]) -> list[list[int]]:
    """The results of each page: at most ``PAGE`` bytes, unless one result has more.

    Args:
        sizes: bytes by index, in the order of the request.
    """
    pages: list[list[int]] = []
    room = 0
    for index, size in sizes.items():
        if not pages or size > room:
            pages.append([])
            room = PAGE
        pages[-1].append(index)
        room -= size
    return pages


def result_place(pool: str) -> ObjectKey:
    """Origin and bucket of the results of a pool, and an empty prefix, which all their keys have."""
    return ObjectKey(_ORIGIN, pool, "")


def is_result(key: ObjectKey) -> bool:
    """Whether a key is that of a result."""
    return key.origin == _ORIGIN


def read_results(body: bytes | memoryview) -> list[ReceivedResult]:
    """The entries of a body in the index form, with their elements.

    Raises:
        MalformedResults: the body has another form, is truncated, or its end record does not match.
    """
    view = memoryview(body)
    if len(view) < PREAMBLE.size + END.size:
        raise MalformedResults(f"{len(view)} bytes are less than a preamble and an end record")
    magic, version, flags, count, _ = PREAMBLE.unpack_from(view)
    if magic != INDEX_MAGIC or version != VERSION or flags:
        raise MalformedResults(f"preamble: must be {INDEX_MAGIC!r} of version {VERSION}, not {magic!r} of {version}")
    if count > MOST_RESULTS:
        raise MalformedResults(f"preamble: at most {MOST_RESULTS} results, not {count}; send several requests")
    start = PREAMBLE.size + count * ENTRY.size
    if start + END.size > len(view):
        raise MalformedResults(f"it ends inside its {count} entries")
    block, bodies = view[PREAMBLE.size : start], view[start : len(view) - END.size]
    results = list(_entries(block, bodies))
    missing = sum(result.status is not ItemStatus.OK for result in results)
    expected = (END_POSITION, END_MAGIC, len(bodies), count - missing, missing, crc32(block))
    if END.unpack_from(view, len(view) - END.size)[:6] != expected:
        raise MalformedResults(
            "its end record does not fit: it must count bytes, entries and the CRC-32 of all entries"
        )
    return results


def _entries(block: memoryview, bodies: memoryview) -> Iterator[ReceivedResult]:
    end, seen = 0, set[int]()
    for position, index, offset, length, crc, status, _ in ENTRY.iter_unpack(block):
        if position in seen:
            raise MalformedResults(f"entry at position {position}: comes twice")
        seen.add(position)
        if offset != end or (length and status):
            raise MalformedResults(f"entry at position {position}: elements must be contiguous, and failures empty")
        end += length
        if end > len(bodies):
            raise MalformedResults(f"entry at position {position}: {length} bytes are more than the body has")
        try:
            known = ItemStatus(status)
        except ValueError:
            raise MalformedResults(f"entry at position {position}: unknown status {status}") from None
        data = bodies[offset:end]
        whole = known is ItemStatus.OK and crc32(data) == crc
        yield ReceivedResult(position, index, known, crc, data if whole else None)
    if end != len(bodies):
        raise MalformedResults(f"the entries' elements have {end} bytes, the body {len(bodies)}")
