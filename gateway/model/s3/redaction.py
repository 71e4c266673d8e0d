"""Redaction of addresses for logs, by an allow-list.

A query parameter keeps its value only if its name is known to carry no secret. Everything else is redacted:
signatures, session tokens, customer keys (SSE-C), checksums, and anything that S3 or a client may add. Names are compared
decoded, as signatures are verified.

A digest is the right to read a blob (docs/security.md), so it is removed from every path, however the path is spelled:
percent-encoded, with more slashes, or below another prefix. The same holds for the files of blobs, whose names contain the
digest.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

REDACTED = "REDACTED"

_HARMLESS = frozenset(
    {
        # what a request is about
        "acl", "accelerate", "analytics", "attributes", "cors", "delete", "encryption", "id", "intelligent-tiering", "inventory",
        "legal-hold", "lifecycle", "location", "logging", "metrics", "notification", "object-lock", "ownershipcontrols",
        "partnumber", "policy", "policystatus", "publicaccessblock", "replication", "requestpayment", "restore", "retention",
        "select", "select-type", "session", "tagging", "torrent", "uploadid", "uploads", "versionid", "versioning", "versions",
        "website", "x-id",
        # listings
        "allow-unordered", "continuation-token", "delimiter", "encoding-type", "fetch-owner", "key-marker", "list-type",
        "marker", "max-keys", "max-parts", "max-uploads", "part-number-marker", "prefix", "start-after", "upload-id-marker",
        "version-id-marker",
        # what an answer should look like
        "response-cache-control", "response-content-disposition", "response-content-encoding", "response-content-language",
        "response-content-type", "response-expires",
        # the signature of a request and its validity
        "expires", "x-amz-algorithm", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-checksum-mode",
        "x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm", "x-amz-user-agent",
    }
)  # fmt: skip
_DECODINGS = 3
"""How often a path is decoded to find a digest: proxies may encode an encoded path again."""
_HEX64 = re.compile(r"[0-9a-f]{64}", re.IGNORECASE)
_BLOB = re.compile(r"(?<=blobs/)(?:[0-9a-f]{2}/)?[0-9a-f]{62,}", re.IGNORECASE)
_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/?#@]*@", re.IGNORECASE)


def redact_path(path: str) -> str:
    """A percent-encoded or plain path without its digest; unchanged if it has none."""
    plain = path
    for _ in range(_DECODINGS):
        if "%" not in plain:
            break
        plain = unquote(plain)
    if "blobs" not in plain.lower():
        return path
    segments = plain.split("/")
    own, after = False, 0
    for position, segment in enumerate(segments):
        if after and segment and (own or _HEX64.match(segment.strip())):
            return "/".join([*segments[:after], REDACTED])
        own = own or segment == "-"
        after = position + 1 if segment.lower() == "blobs" else after if not segment else 0
    return path


def redact_query(query: str) -> str:
    """A query string in which only harmless parameters keep their values."""
    return "&".join(map(_redact_parameter, query.split("&")))


def redact_address(text: str) -> str:
    """A request target or a URL without secrets in user part, path, query and fragment."""
    if not text:
        return text
    rest, hash_sign, _ = text.partition("#")
    path, question_mark, query = rest.partition("?")
    shown = _USER.sub(rf"\1{REDACTED}@", redact_path(path))
    if question_mark:
        shown += "?" + redact_query(query)
    return f"{shown}#{REDACTED}" if hash_sign else shown


def redact_text(text: str) -> str:
    """A line or traceback of a log without the digests in blob names."""
    return _BLOB.sub(REDACTED, text) if "blobs/" in text else text


def _redact_parameter(piece: str) -> str:
    name, equals, _ = piece.partition("=")
    if not piece or unquote_plus(name).lower() in _HARMLESS:
        return piece
    return f"{name}={REDACTED}" if equals else REDACTED
