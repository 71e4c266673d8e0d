"""AWS Signature Version 2 in the query string: ``AWSAccessKeyId``, ``Expires`` and ``Signature``.

botocore still presigns so for custom endpoints. It moves x-amz-* headers, Content-MD5 and Content-Type into the
query after signing them as headers, so parameters of those names count as headers here.

The scheme signs only the sub-resources that its list names; a parameter outside it can be added to a presigned URL by
whoever holds it. The list below therefore contains every S3 sub-resource there is today: a request with one that its
signer left out is refused rather than honoured.

Source: "Signing and Authenticating REST Requests" (Signature Version 2) in the Amazon S3 developer guide.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.model.errors import S3Error
from gateway.model.sigv4 import Pair, query_pairs

QUERY_PARAMETERS = frozenset({"AWSAccessKeyId", "Expires", "Signature", "x-amz-security-token"})
"""Names of the query parameters that belong to the signature, not to what the request asks for."""

_SUB_RESOURCES = frozenset(
    b"abac accelerate acl analytics attributes cors defaultObjectAcl delete encryption intelligent-tiering inventory "
    b"legal-hold lifecycle location logging metadataConfiguration metadataTable metrics notification object-lock "
    b"ownershipControls partNumber policy policyStatus publicAccessBlock renameObject replication requestPayment "
    b"restore retention select select-type session storageClass tagging torrent uploadId uploads versionId versioning "
    b"versions website response-content-type response-content-language response-expires response-cache-control "
    b"response-content-disposition response-content-encoding".split()
)


class QueryClaim(NamedTuple):
    """What the parameters say; ``expires`` in seconds since the epoch, ``signature`` in base64."""

    access_key_id: str
    expires: int
    signature: bytes


def parse_query_claim(pairs: Iterable[Pair]) -> QueryClaim:
    """The claim in decoded query parameters.

    Raises:
        S3Error: AccessDenied when one of the three parameters is missing, repeated or not readable.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in (b"AWSAccessKeyId", b"Expires", b"Signature"):
            if name in fields:
                raise S3Error("AccessDenied", explain=f"The query parameter {name.decode()} is there more than once.")
            fields[name] = value
    if len(fields) != 3 or not all(fields.values()):
        raise S3Error(
            "AccessDenied", "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        )
    expires = fields[b"Expires"]
    if not expires.isdigit() or len(expires) > 18:
        raise S3Error(
            "AccessDenied", f"Invalid date (should be seconds since epoch): {expires.decode('utf-8', 'replace')}"
        )
    return QueryClaim(fields[b"AWSAccessKeyId"].decode("utf-8", "replace"), int(expires), fields[b"Signature"])


def string_to_sign(
    method: bytes, raw_path: bytes, query: bytes, headers: Mapping[bytes, bytes], bucket: str = ""
) -> bytes:
    """The text that is signed.

    Args:
        method: upper-case HTTP method.
        raw_path: percent-encoded path as sent.
        query: percent-encoded parameters as sent.
        headers: lower-case names with raw values, repeated ones joined with ",".
        bucket: the bucket named by the Host header, empty in path style.
    """
    fields = dict(headers)
    expires = b""
    for name, value in query_pairs(query):
        lower = name.lower()
        if name == b"Expires":
            expires = value
        elif lower.startswith(b"x-amz-") or lower in (b"content-md5", b"content-type"):
            fields.setdefault(lower, value)
    amz = sorted((name, value) for name, value in fields.items() if name.startswith(b"x-amz-"))
    resource = (b"/" + bucket.encode() if bucket else b"") + raw_path + _signed_sub_resources(query)
    lines = [method, fields.get(b"content-md5", b"").strip(), fields.get(b"content-type", b"").strip(), expires]
    lines += [name + b":" + value.strip() for name, value in amz]
    return b"\n".join([*lines, resource])


def _signed_sub_resources(query: bytes) -> bytes:
    pieces = [piece.partition(b"=") for piece in query.split(b"&")]
    chosen = sorted((piece for piece in pieces if piece[0] in _SUB_RESOURCES), key=lambda piece: piece[0])
    # Values are signed decoded, and a parameter without "=" is signed without it: "?acl".
    return b"?" * bool(chosen) + b"&".join(name + equals + unquote_to_bytes(value) for name, equals, value in chosen)


def signature(secret_access_key: str, text: bytes) -> bytes:
    """The base64 HMAC-SHA1 of a string to sign."""
    return b64encode(hmac.digest(secret_access_key.encode(), text, "sha1"))
