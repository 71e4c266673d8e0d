"""Outcomes of requests, and reasons why they were not plain hits: the words of the cache-status header, logs and metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Outcome(StrEnum):
    """The cache's outcome for one request."""

    HIT = "HIT"
    MISS = "MISS"
    STALE = "STALE"
    BYPASS = "BYPASS"


_WARM = "Read it once, or warm up its prefix before it is needed."


class Reason(StrEnum):
    """Why a request was not a plain hit. Every member has its name in the header, its meaning, and a way to reduce its number."""

    meaning: str
    change: str

    def __new__(cls, name: str, meaning: str = "", change: str = "") -> Self:
        """A reason; ``meaning`` and ``change`` are sentences for operators."""
        reason = str.__new__(cls, name)
        reason._value_ = name
        reason.meaning, reason.change = meaning, change
        return reason

    @classmethod
    def of(cls, name: str) -> Reason | None:
        """The reason of a name; ``None`` if this version does not know it."""
        return cls(name) if name in set(cls) else None

    COLD = "cold", "No bytes of the object are in the cache.", _WARM
    EVICTED = (
        "evicted",
        "The object was in the cache and was evicted.",
        "Give the node more cache.capacity, pin the prefix, or spare the cache from what is read once (cache = false).",
    )
    PARTIAL = "partial", "Some of the wanted blocks are not in the cache: they were never read, or evicted.", _WARM
    RANGE = (
        "range",
        "A small range of a large object was read without the rest of its block, which is not in the cache.",
        "Nothing, if each range is read once. Warm up an object whose ranges are read in random order many times.",
    )
    JOINED = "joined", "Another request was already fetching the object; both share one read of the origin."
    MOVED = (
        "moved",
        "The bytes came from the cache of the object's previous owner; the origin was not asked.",
        "Nothing: after nodes join or leave, each object moves once, when it is read.",
    )
    REVALIDATED = (
        "revalidated",
        "The bytes came from the cache after the origin had confirmed them, or had allowed this key to read them.",
        'Give the rule a longer freshness and grant, or authorization = "prefix"; "immutable" for objects that never change.',
    )
    CHANGED = "changed", "The origin had a newer object than the cache.", "Nothing: the object was changed."
    NOT_FOUND = "not-found", "The origin has no such object.", "Find out which client asks for missing objects."
    REFUSED = (
        "refused",
        "The origin, or the allow-list of the access key, refused this caller.",
        "Grant the key access, if it should have it.",
    )
    INVALID = "invalid", "The request was malformed, or not allowed in this form.", "See the error that the client got."
    ORIGIN_ERROR = "origin-error", "The origin failed or could not be reached.", "Check the origin."
    STARTING = (
        "starting",
        "The gateway had not read its catalog of access keys yet, and refused all requests.",
        "Check the database that database.url names.",
    )
    ORIGIN_DOWN = (
        "origin-down",
        "Served past its freshness, within stale_if_error: the origin could not be reached.",
        "Check the origin.",
    )
    NOT_A_READ = "not-a-read", "Only plain GET and HEAD of objects are answered from the cache."
    SUBRESOURCE = (
        "sub-resource",
        "A query parameter asked for something other than the plain current object (versionId, acl, ...).",
        "Read without it, if the client can.",
    )
    HEADER = (
        "header",
        "A request header asked for something other than the plain current object (SSE-C, request payer, ...).",
        "Read without it, if the client can.",
    )
    RANGE_FORM = (
        "range-form",
        "Several ranges, or a range of something other than bytes: the origin answers these itself.",
        "Have the client ask for one range at a time.",
    )
    ENCODING = (
        "encoding",
        'Stores read the spelling of the key differently (a bare "+"), so the origin answers.',
        "Have the client percent-encode it.",
    )
    RULE = "rule", "A rule says cache = false.", "Change the rule, if the object should be cached."
    CACHE_CONTROL = (
        "cache-control",
        "The object itself says no-store or private.",
        "Upload it with another Cache-Control.",
    )
    NO_VALIDATOR = (
        "no-validator",
        "The origin gave no strong ETag or no length, so newer bytes could not be recognised.",
        "Use an origin that gives both.",
    )
    TOO_LARGE = "too-large", "The object is larger than half of the cache.", "Give the node more cache.capacity."
    NO_SPACE = (
        "no-space",
        "No room could be made in the cache.",
        "Give the node more cache.capacity, or free space on its file system.",
    )
    DISK = "disk", "The cache disk is failing; reads go to the origin until it recovers.", "Check the disk."
    OVERLOAD = (
        "overload",
        "Too many fills at once; the bytes were not kept.",
        "Raise cache.max_fills if disk and origin can take more, or add nodes.",
    )
    RATE_LIMIT = (
        "rate-limit",
        "The tenant has reached its limit of requests or bytes per second.",
        "Give the tenant higher limits, or fewer readers.",
    )
    WRITE_RACE = "write-race", "The object was written while it was read, so the bytes were not kept."
