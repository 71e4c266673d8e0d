"""Requests for objects between nodes, as text: the address, and the headers of the answer.

``GET|HEAD /-/peer/v1/objects/{origin}/{bucket}/{key}``, each part percent-encoded completely, so that a key with
slashes, dots or a "+" is one segment of the path and cannot be normalised on the way.

There are three kinds of answers. With ``x-larder-cache`` it is the answer for the client, as the receiving node's own S3 edge
would give it; with ``x-larder-error`` as well, it is an S3 error that the asking node renders, as only it knows the client's
request. Status 421 with ``x-larder-forward`` means that the cache cannot answer the read, with the reason and whether it counts
as a miss. Any other answer is treated as a failure of the node.

A node that has become home of an object asks its previous home with ``Cache-Control: only-if-cached`` (RFC 9111, 5.2.1.7): unless
the object is resident, fresh and granted there, the answer is 421, and nothing is fetched.

``POST`` to the same address reads the object into the asked node's cache in the background, and is answered 202. With
``x-larder-uploaded`` its body is an upload that the store has accepted, so that node need not read the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from gateway.model.keys import ObjectKey, is_bucket_name
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.sigv4 import PLAIN_PATH

OBJECTS = "/-/peer/v1/objects/"
CACHE = "x-larder-cache"
FORWARD = "x-larder-forward"
ERROR = "x-larder-error"
MISDIRECTED = 421
ASKED = (
    b"range",
    b"if-range",
    b"if-match",
    b"if-none-match",
    b"if-modified-since",
    b"if-unmodified-since",
    b"x-amz-request-payer",
)
"""The headers of a client's request that are passed on unchanged; the constants below express the rest."""
FORCED = ("cache-control", "no-cache")
CHECKED = ("x-amz-checksum-mode", "ENABLED")
RESIDENT = ("cache-control", "only-if-cached")
"""Requests an object only if it is available at once; ``AGE`` in the answer is the seconds since its confirmation."""
AGE = "x-larder-age"
_REASON = re.compile(r"[a-z]+(-[a-z]+)*")
_REASONS = frozenset(Reason)
_GENERAL = {
    Outcome.MISS: Reason.COLD,
    Outcome.STALE: Reason.ORIGIN_DOWN,
    Outcome.BYPASS: Reason.NOT_A_READ,
}
"""Replaces a reason that this version does not know. A hit needs none."""
_KEPT = 1024
"""Buckets whose address is cached, and cache statuses; every request and answer has them."""
UPLOADED = "x-larder-uploaded"
LONGEST_ERROR = 16 * 1024
"""The most bytes of the document of ``x-larder-error``: the extra elements of the S3 error."""


def error_document(extra: Mapping[str, str]) -> bytes:
    """Encode the document of an error."""
    return json.dumps(dict(extra)).encode()


def read_error(document: bytes) -> dict[str, str]:
    """Parse the result of ``error_document``; empty for an empty document: the answer to a HEAD has no body.

    Raises:
        ValueError: the document is malformed.
    """
    try:
        extra = json.loads(document or b"{}")
    except RecursionError:
        extra = None
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise ValueError("the document of an error must map names to strings")
    return extra


class CacheStatus(NamedTuple):
    """The cache status reported by a node."""

    outcome: Outcome
    reason: Reason | None = None

    def __str__(self) -> str:
        return self.outcome.value if self.reason is None else f"{self.outcome.value}; reason={self.reason.value}"

    @classmethod
    @lru_cache(maxsize=_KEPT)
    def read(cls, text: str) -> CacheStatus:
        """Parse the result of ``str``, also of another version: reasons are added, and a fleet is upgraded node by node.

        Raises:
            ValueError: the text is malformed.
        """
        word, semicolon, reason = text.partition("; reason=")
        outcome = Outcome(word)
        if not semicolon:
            return cls(outcome)
        if reason not in _REASONS and _REASON.fullmatch(reason):
            return cls(outcome, _GENERAL.get(outcome))
        return cls(outcome, Reason(reason))


class Accepted(NamedTuple):
    """An upload that the store has accepted: ``etag`` and ``version`` are from the store's answer, empty if it has none.

    ``checksums`` are the headers in which the store may return its checksums.
    """

    etag: str
    version: str
    checksums: tuple[str, ...] = ()

    def __str__(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: str) -> Accepted:
        """Parse the result of ``str``.

        Raises:
            ValueError: the text is malformed.
        """
        try:
            stated = json.loads(text)
        except RecursionError:
            stated = None
        match stated:
            case [str() as etag, str() as version, list() as names] if all(isinstance(name, str) for name in names):
                return cls(etag, version, tuple(names))
        raise ValueError(f"{UPLOADED} must be an ETag, a version and names of headers")


def object_path(key: ObjectKey) -> str:
    """The address of an object at another node."""
    name = key.key
    plain = not name.encode().translate(None, PLAIN_PATH)
    return _bucket_path(key.origin, key.bucket) + (name.replace("/", "%2F") if plain else quote(name, safe=""))


@lru_cache(maxsize=_KEPT)
def _bucket_path(origin: str, bucket: str) -> str:
    return f"{OBJECTS}{quote(origin, safe='')}/{quote(bucket, safe='')}/"


def object_of(raw_path: bytes) -> ObjectKey:
    """The object of an address.

    Raises:
        ValueError: it is not an address of an object.
    """
    parts = raw_path.removeprefix(OBJECTS.encode()).split(b"/")
    if not raw_path.startswith(OBJECTS.encode()) or len(parts) != len(ObjectKey._fields):
        raise ValueError("the address must be /-/peer/v1/objects/{origin}/{bucket}/{key}")
    origin, bucket, name = (unquote_to_bytes(part).decode("utf-8") for part in parts)
    if not is_bucket_name(bucket) or not name:
        raise ValueError("the address lacks a bucket or a key")
    return ObjectKey(origin, bucket, name)
