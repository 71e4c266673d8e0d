"""AWS Signature Version 2 in the query string: ``AWSAccessKeyId``, ``Expires`` and ``Signature``.

botocore still presigns with it for custom endpoints. It moves x-amz-* headers, Content-MD5 and Content-Type into the
query after signing them as headers, so parameters of those names count as headers here.

The scheme signs only the sub-resources on its list; the holder of a presigned URL can add any other parameter. So every S3
sub-resource is signed here. The only other accepted parameters are those of listings, which the scheme leaves unsigned.

Source: "Signing and Authenticating REST Requests" (Signature Version 2) in the Amazon S3 developer guide.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.model.errors import S3Error
from gateway.model.s3.query import PAGING, SUB_RESOURCES, Pair, Query

QUERY_PARAMETERS = frozenset({"AWSAccessKeyId", "Expires", "Signature", "x-amz-security-token"})
"""Names of the query parameters that belong to the signature, not to the request itself."""

_CLAIM = (b"AWSAccessKeyId", b"Expires", b"Signature")
_ACCEPTED = SUB_RESOURCES | PAGING | frozenset(_CLAIM)


class SigV2QueryClaim(NamedTuple):
    """The claim of the parameters; ``expires`` in seconds since the epoch, ``signature`` in base64."""

    access_key_id: str
    expires: int
    signature: bytes


def parse_query_claim(pairs: Iterable[Pair]) -> SigV2QueryClaim:
    """The claim in decoded query parameters.

    Raises:
        S3Error: AccessDenied if one of the three parameters is missing or invalid, or a parameter is unknown to the
            scheme.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in _CLAIM:
            fields[name] = value
        elif name not in _ACCEPTED and not _is_header(name.lower()):
            raise S3Error(
                "AccessDenied",
                explain="There were query parameters present in the request which were not signed.",
                extra={"ParametersNotSigned": name.decode("latin-1")},
            )
    if len(fields) != 3 or not all(fields.values()):
        raise S3Error(
            "AccessDenied", "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        )
    expires = fields[b"Expires"]
    if not expires.isdigit() or len(expires) > 18:
        raise S3Error(
            "AccessDenied", f"Invalid date (should be seconds since epoch): {expires.decode('utf-8', 'replace')}"
        )
    return SigV2QueryClaim(fields[b"AWSAccessKeyId"].decode("utf-8", "replace"), int(expires), fields[b"Signature"])


def string_to_sign(
    method: bytes, raw_path: bytes, query: Query, headers: Mapping[bytes, bytes], bucket: str = ""
) -> bytes:
    """The text that is signed.

    Args:
        method: upper-case HTTP method.
        raw_path: percent-encoded path as sent.
        query: the parameters.
        headers: lower-case names with raw values, repeated ones joined with ",".
        bucket: the bucket named by the Host header, empty in path style.
    """
    fields = dict(headers)
    expires = b""
    for name, value in query.pairs:
        lower = name.lower()
        if name == b"Expires":
            expires = value
        elif _is_header(lower):
            fields.setdefault(lower, value)
    amz = sorted((name, value) for name, value in fields.items() if name.startswith(b"x-amz-"))
    resource = (b"/" + bucket.encode() if bucket else b"") + raw_path + _signed_sub_resources(query)
    lines = [method, fields.get(b"content-md5", b"").strip(), fields.get(b"content-type", b"").strip(), expires]
    lines += [name + b":" + value.strip() for name, value in amz]
    return b"\n".join([*lines, resource])


def _signed_sub_resources(query: Query) -> bytes:
    chosen = sorted(pair for pair in query.pairs if pair[0] in SUB_RESOURCES)
    # Values are signed decoded, and a parameter sent without "=" is signed without it: "?acl".
    signed = [name if name in query.bare else name + b"=" + value for name, value in chosen]
    return b"?" * bool(signed) + b"&".join(signed)


def _is_header(lower: bytes) -> bool:
    return lower.startswith(b"x-amz-") or lower in (b"content-md5", b"content-type")


def signature(secret_access_key: str, text: bytes) -> bytes:
    """The base64 HMAC-SHA1 of a string to sign."""
    return b64encode(hmac.digest(secret_access_key.encode(), text, "sha1"))
