"""How a request was answered, and why it was not a hit: the vocabulary of the cache-status header, logs and metrics."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What the cache did for one request."""

    HIT = "HIT"
    MISS = "MISS"
    STALE = "STALE"
    BYPASS = "BYPASS"


class Reason(StrEnum):
    """Why a request was not simply a hit. Every member is documented in docs/s3-compatibility.md."""

    COLD = "cold"
    """No bytes of this object are in the cache."""
    PARTIAL = "partial"
    """Some of the wanted blocks are not in the cache."""
    JOINED = "joined"
    """Another request was already fetching the object; this one shares that origin read."""
    REVALIDATED = "revalidated"
    """The bytes were served from the cache after the origin confirmed them during this request."""
    CHANGED = "changed"
    """The origin has a newer object than the cache had."""
    NOT_FOUND = "not-found"
    """The origin answered that there is no such object."""
    REFUSED = "refused"
    """The origin refused this caller."""
    ORIGIN_ERROR = "origin-error"
    """The origin failed or could not be reached."""
    ORIGIN_DOWN = "origin-down"
    """Served past its freshness, within stale_if_error, because the origin could not be reached."""
    NOT_A_READ = "not-a-read"
    """Only plain GET and HEAD of objects are answered from the cache."""
    SUBRESOURCE = "sub-resource"
    """A query parameter asks for something other than the plain current object."""
    HEADER = "header"
    """A request header asks for something other than the plain current object (SSE-C, request payer, ...)."""
    RANGE_FORM = "range-form"
    """A Range that is answered by the origin itself: several ranges, or not a byte range."""
    ENCODING = "encoding"
    """The key is spelled in a way that stores read differently (a bare "+"), so the origin answers it."""
    RULE = "rule"
    """A rule says cache = false."""
    CACHE_CONTROL = "cache-control"
    """The object itself says no-store or private."""
    NO_VALIDATOR = "no-validator"
    """The origin gave no strong ETag or no length, so the bytes cannot be told from newer ones."""
    TOO_LARGE = "too-large"
    """The object is larger than half the cache."""
    NO_SPACE = "no-space"
    """No room could be made in the cache."""
    DISK = "disk"
    """The cache disk is failing; reads go straight to the origin until it recovers."""
    OVERLOAD = "overload"
    """Too many fills at once; reads come first."""
    WRITE_RACE = "write-race"
    """The object was written while it was being read, so what was read was not kept."""
