"""The parameters of a request, decoded once: signing, classification and forwarding use this one form.

Stores decode differently. radosgw decodes a whole ``name=value`` before it looks for the "=", so it reads ``acl%3Dx`` as ``acl``;
it skips a second "?"; some servers end a parameter at ";", or take the first or the last of two. Others replace bytes that are
not UTF-8 before they check a signature, which then fails as if the gateway's key were wrong. So a query is refused if its escapes
are invalid, a value is not UTF-8, a name contains a character that no S3 name has, a name appears twice, or a name differs from a
known one only in case. Accepted queries are encoded again towards the origin, every byte escaped except the unreserved ones.

Presigning moves headers into the query; ``divided`` restores them.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gateway.model.errors import S3Error
from gateway.model.s3.request_headers import is_forwarded

OVERRIDES = frozenset(
    b"response-content-type response-content-language response-expires response-cache-control "
    b"response-content-disposition response-content-encoding".split()
)
"""Each replaces a header of the answer to a read (AWS, GetObject)."""

SUB_RESOURCES = OVERRIDES | frozenset(
    b"abac accelerate acl analytics annotation attributes cors defaultObjectAcl delete encryption intelligent-tiering "
    b"inventory legal-hold lifecycle location logging metadataAnnotationTable metadataConfiguration "
    b"metadataInventoryTable metadataJournalTable metadataTable metrics notification object-lock ownershipControls "
    b"partNumber policy policyStatus publicAccessBlock renameObject replication requestPayment restore retention select "
    b"select-type session storageClass tagging torrent uploadId uploads versionId versioning versions website".split()
)
"""Aspects of an object or bucket that a request can address instead of the object or bucket itself."""

PAGING = frozenset(
    b"allow-unordered continuation-token delimiter encoding-type fetch-owner key-marker list-type marker max-buckets max-keys "
    b"max-parts max-uploads part-number-marker prefix start-after upload-id-marker version-id-marker x-id".split()
)
"""Position and form of a listing; and ``x-id``, which repeats the operation's name."""

_OTHERS = frozenset(b"append AWSAccessKeyId Expires id position Signature".split())
_BY_LOWER_CASE = {name.lower(): name for name in SUB_RESOURCES | PAGING | _OTHERS}
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NAME = re.compile(rb"[A-Za-z0-9!#$'*.^_`|~-]+")
_AMZ = b"x-amz-"
_MOVED = frozenset({b"content-md5", b"content-type", b"x-amz-api-version", b"x-amz-user-agent"})

Pair = tuple[bytes, bytes]


def query_pairs(query: bytes) -> list[Pair]:
    """The decoded parameters in the order sent; without "=" a value is empty; empty parts are dropped."""
    pairs = []
    for piece in query.replace(b"+", b"%20").split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return pairs


class Query(NamedTuple):
    """The parameters in the order sent, no name twice; ``bare`` are the names that were sent without "="."""

    pairs: tuple[Pair, ...] = ()
    bare: frozenset[bytes] = frozenset()

    @classmethod
    def read(cls, query: bytes) -> Query:
        """Parse a query string; "+" is a space, empty parts are dropped.

        Raises:
            S3Error: InvalidURI for invalid escapes and values that are not UTF-8, InvalidRequest for names.
        """
        require_valid_escapes(query)
        pairs = tuple(query_pairs(query))
        seen = set()
        for name, value in pairs:
            if not _is_text(value):
                raise S3Error("InvalidURI")
            if not _NAME.fullmatch(name):
                raise _refusal(name, "is not an S3 parameter")
            if (spelled := _BY_LOWER_CASE.get(name.lower(), name)) != name:
                raise _refusal(name, f"must be spelled {_text(spelled)!r}")
            if name in seen:
                raise _refusal(name, "appears more than once")
            seen.add(name)
        bare = frozenset(unquote_to_bytes(piece) for piece in query.split(b"&") if b"=" not in piece)
        return cls(pairs, bare)

    @property
    def names(self) -> frozenset[str]:
        """The names of the parameters."""
        return frozenset(_text(name) for name, _ in self.pairs)

    @property
    def text(self) -> str:
        """The unambiguous query string of the parameters."""
        return "&".join(
            _encoded(name) if name in self.bare else f"{_encoded(name)}={_encoded(value)}" for name, value in self.pairs
        )

    def divided(self, signature: frozenset[str]) -> tuple[Query, dict[bytes, bytes]]:
        """Split off the headers that were moved into the query; the parameters of the signature are dropped.

        Checksums stay in the query: the presigner does not know the body.

        Raises:
            S3Error: NotImplemented for an ``x-amz-*`` parameter that is not an S3 header, InvalidRequest for one that appears in
                two spellings.
        """
        kept: list[Pair] = []
        moved: dict[bytes, bytes] = {}
        for name, value in self.pairs:
            lower = name.lower()
            if _text(name) in signature:
                continue
            if lower in moved:
                raise _refusal(name, "appears more than once")
            if lower in _MOVED or (lower.startswith(_AMZ) and _is_movable(lower)):
                moved[lower] = value
            elif lower.startswith(_AMZ) and not is_forwarded(lower):
                raise S3Error("NotImplemented", extra={"Parameter": _text(name)})
            else:
                kept.append((name, value))
        return Query(tuple(kept), self.bare), moved


def require_valid_escapes(text: bytes) -> None:
    """Refuse a "%" that is not followed by two hexadecimal digits.

    Raises:
        S3Error: InvalidURI.
    """
    if b"%" in text and _BAD_ESCAPE.search(text):
        raise S3Error("InvalidURI")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_movable(name: bytes) -> bool:
    checksum = name.startswith(b"x-amz-checksum-") and name != b"x-amz-checksum-mode"
    return is_forwarded(name) and not checksum and name != b"x-amz-sdk-checksum-algorithm"


def _refusal(name: bytes, why: str) -> S3Error:
    return S3Error("InvalidRequest", explain=f"The parameter {_text(name)} {why}.")


def _encoded(text: bytes) -> str:
    return quote_from_bytes(text, safe="")


def _text(name: bytes) -> str:
    return name.decode("latin-1")
