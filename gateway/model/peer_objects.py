"""How one node asks another for an object, as text: the address, and what the answer says in headers of its own.

``GET|HEAD /-/peer/v1/objects/{origin}/{bucket}/{key}``, each part percent-encoded with nothing left as it is, so that a key with
slashes, dots or a "+" in it is one segment of the path and nobody on the way can normalise it.

The answer is one of three. With ``x-larder-cache`` it is the answer to the client, as the asked node's own S3 edge would give it;
with ``x-larder-error`` besides, an S3 error that the asking node words itself, as only it knows the client's request. Status 421
with ``x-larder-forward`` says that the read is not for the cache, why, and whether that counts as a miss. Anything else is a node
that cannot answer.

A node that has become home of an object asks its former home with ``Cache-Control: only-if-cached`` (RFC 9111, 5.2.1.7): what is
not resident, fresh and granted there is answered 421 and never fetched.

``POST`` to the same address has the object read into the asked node's cache, in the background, and is answered 202.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from gateway.model.keys import ObjectKey, is_bucket_name
from gateway.model.outcomes import Outcome, Reason

OBJECTS = "/-/peer/v1/objects/"
CACHE = "x-larder-cache"
FORWARD = "x-larder-forward"
ERROR = "x-larder-error"
MISDIRECTED = 421
ASKED = (b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since")
"""The headers of a client's request that are asked on, byte for byte; what else it may say is asked in the words below."""
FORCED = ("cache-control", "no-cache")
CHECKED = ("x-amz-checksum-mode", "ENABLED")
RESIDENT = ("cache-control", "only-if-cached")
"""Asks for an object only if it can be given at once; the answer tells in ``AGE`` how many seconds ago it was confirmed."""
AGE = "x-larder-age"
LONGEST_ERROR = 16 * 1024
"""Bytes of the document that goes with ``x-larder-error``: what S3 tells of the error besides its code."""


def error_document(extra: Mapping[str, str]) -> bytes:
    """The document of an error."""
    return json.dumps(dict(extra)).encode()


def read_error(document: bytes) -> dict[str, str]:
    """Read what ``error_document`` made; nothing, from nothing: the answer to a HEAD has no body.

    Raises:
        ValueError: it is something else.
    """
    try:
        extra = json.loads(document or b"{}")
    except RecursionError:
        extra = None
    if not isinstance(extra, dict) or not all(isinstance(value, str) for value in extra.values()):
        raise ValueError("the document of an error holds texts by name")
    return extra


class CacheStatus(NamedTuple):
    """What a node says its cache did."""

    outcome: Outcome
    reason: Reason | None = None

    def __str__(self) -> str:
        return self.outcome.value if self.reason is None else f"{self.outcome.value}; reason={self.reason.value}"

    @classmethod
    def read(cls, text: str) -> CacheStatus:
        """Read what ``str`` made.

        Raises:
            ValueError: it is something else.
        """
        outcome, semicolon, reason = text.partition("; reason=")
        return cls(Outcome(outcome), Reason(reason) if semicolon else None)


def object_path(key: ObjectKey) -> str:
    """The address of an object at its home."""
    return OBJECTS + "/".join(quote(part, safe="") for part in key)


def object_of(raw_path: bytes) -> ObjectKey:
    """The object that an address is about.

    Raises:
        ValueError: it is not an address of an object.
    """
    parts = raw_path.removeprefix(OBJECTS.encode()).split(b"/")
    if not raw_path.startswith(OBJECTS.encode()) or len(parts) != len(ObjectKey._fields):
        raise ValueError("the address is not /-/peer/v1/objects/{origin}/{bucket}/{key}")
    origin, bucket, name = (unquote_to_bytes(part).decode("utf-8") for part in parts)
    if not is_bucket_name(bucket) or not name:
        raise ValueError("the address names no bucket, or no key")
    return ObjectKey(origin, bucket, name)
