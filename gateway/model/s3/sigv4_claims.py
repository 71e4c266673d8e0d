"""The claims of a request about its SigV4 signature: the Authorization header and the X-Amz-* query parameters, parsed.

A client repeats the first part of its Authorization header in every request of a day, so that part is parsed once and kept in a
bounded cache.

Sources: "Signature Calculations for the Authorization Header" and "Authenticating Requests: Using Query Parameters" in
the Amazon S3 API reference; the messages are those of S3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gateway.model.errors import S3Error
from gateway.model.s3.query import Pair
from gateway.model.s3.sigv4 import ALGORITHM, canonical_form, parse_amz_date

MAX_EXPIRES = 604_800
"""Longest validity of a presigned request, in seconds: a week."""

SCHEME_NOT_SUPPORTED = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
"""S3's message for Signature Version 2."""

X_AMZ_DATE_FORM = "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""

LONGEST_CACHED_CLAIM = 2048
QUERY_PARAMETERS = frozenset(
    {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
        "X-Amz-Content-Sha256",
    }
)
"""Names of the query parameters that belong to a presigned request's signature, not to the request itself."""

_REQUIRED_PARAMETERS = tuple(
    b"X-Amz-Algorithm X-Amz-Credential X-Amz-Signature X-Amz-Date X-Amz-SignedHeaders X-Amz-Expires".split()
)


_NEED_NO_SIGNATURE = frozenset(
    b"accept accept-encoding accept-language amz-sdk-invocation-id amz-sdk-request authorization connection content-length "
    b"content-type range traceparent tracestate user-agent x-amz-content-sha256".split()
)
"""The usual headers of a read that a signature need not cover (gateway/api/s3/auth.py)."""


class Claim(NamedTuple):
    """The claim of a signature: the signer, the day, the region, and the signed headers.

    ``scope`` is ``date/region/s3/aws4_request``; ``names`` are the signed headers as ordered, ``signed`` as a set. ``covered``
    are ``signed`` and the usual ones that need no signature; ``form`` is ``sigv4.canonical_form`` of ``names``.
    """

    access_key_id: str
    date: str
    region: str
    scope: bytes
    names: tuple[bytes, ...]
    signed: frozenset[bytes]
    covered: frozenset[bytes]
    form: bytes


class QueryClaim(NamedTuple):
    """The claim of the X-Amz-* parameters of a presigned request; ``expires`` in seconds after ``amz_date``."""

    claim: Claim
    signature: bytes
    amz_date: str
    expires: int
    session_token: bytes
    payload_hash: bytes


def parse_authorization(value: bytes) -> tuple[Claim, bytes]:
    """The claim and the signature of an ``Authorization: AWS4-HMAC-SHA256 ...`` header.

    Raises:
        S3Error: AuthorizationHeaderMalformed; InvalidRequest for SigV2, InvalidArgument for other schemes;
            NotImplemented for SigV4A.
    """
    fields = _authorization_fields(value)
    return _claim_of(fields), fields.get(b"Signature", b"")


@lru_cache(maxsize=1024)
def claim_before(head: bytes) -> Claim:
    """The claim of an Authorization header that ends in ``Signature=`` and 64 digits; ``head`` is the part before that, of at
    most ``LONGEST_CACHED_CLAIM`` bytes. Raises what ``parse_authorization`` raises.
    """
    return _claim_of(_authorization_fields(head + b"Signature=-"))


@lru_cache(maxsize=1024)
def dated_claim(head: bytes, amz_date: bytes) -> tuple[Claim, str, float | None]:
    """``claim_before(head)``, and x-amz-date (16 bytes) as text and in seconds since the epoch: requests by one signer in one
    second share these parts. The seconds are ``None`` if the date is invalid, or of another day than the claim.
    """
    claim, text = claim_before(head), amz_date.decode("latin-1")
    return claim, text, parse_amz_date(text) if claim.date == text[:8] else None


def _authorization_fields(value: bytes) -> dict[bytes, bytes]:
    scheme, _, rest = value.strip().partition(b" ")
    if scheme == b"AWS":
        raise S3Error("InvalidRequest", SCHEME_NOT_SUPPORTED)
    if scheme == b"AWS4-ECDSA-P256-SHA256":
        raise S3Error(
            "NotImplemented", explain="SigV4A (AWS4-ECDSA-P256-SHA256) is not supported; sign with AWS4-HMAC-SHA256."
        )
    if scheme != ALGORITHM:
        raise S3Error("InvalidArgument", "Unsupported Authorization Type", extra={"ArgumentName": "Authorization"})
    fields = dict(piece.strip().partition(b"=")[::2] for piece in rest.split(b","))
    missing = [name for name in (b"Credential", b"SignedHeaders", b"Signature") if not fields.get(name)]
    if missing:
        names = b", ".join(missing).decode()
        raise S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; it lacks {names}.")
    return fields


def _claim_of(fields: Mapping[bytes, bytes]) -> Claim:
    return _claim(
        fields[b"Credential"],
        fields[b"SignedHeaders"],
        "AuthorizationHeaderMalformed",
        "The authorization header is malformed; ",
    )


def _claim(credential: bytes, signed_headers: bytes, code: str, prefix: str) -> Claim:
    # Split from the right: an access key may contain slashes.
    parts = credential.decode("utf-8", "replace").rsplit("/", 4)
    if len(parts) != 5 or not all(parts[:4]) or parts[4] != "aws4_request":
        raise S3Error(
            code, f'{prefix}the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'
        )
    access_key_id, date, region, service, _ = parts
    if len(date) != 8 or not (date.isascii() and date.isdigit()):
        raise S3Error(code, f'{prefix}incorrect date format "{date}" in the credential; it must be "yyyyMMdd".')
    if service != "s3":
        raise S3Error(code, f'{prefix}incorrect service "{service}". This endpoint belongs to "s3".')
    names = tuple(signed_headers.split(b";"))
    signed = frozenset(names)
    if b"host" not in signed or len(signed) != len(names):
        raise S3Error(code, f"{prefix}SignedHeaders must name each signed header once, and host among them.")
    scope = f"{date}/{region}/s3/aws4_request".encode()
    return Claim(access_key_id, date, region, scope, names, signed, signed | _NEED_NO_SIGNATURE, canonical_form(names))


def parse_query_claim(pairs: Iterable[Pair]) -> QueryClaim:
    """The claim of a presigned request, from its decoded query parameters.

    Raises:
        S3Error: AuthorizationQueryParametersError; NotImplemented for SigV4A.
    """
    code = "AuthorizationQueryParametersError"
    fields = dict(pairs)
    if fields.get(b"X-Amz-Algorithm"):
        _check_algorithm(fields[b"X-Amz-Algorithm"])
    if not all(fields.get(name) for name in _REQUIRED_PARAMETERS):
        raise S3Error(
            code,
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
            "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
        )
    claim = _claim(fields[b"X-Amz-Credential"], fields[b"X-Amz-SignedHeaders"], code, "Error parsing the parameters; ")
    return QueryClaim(
        claim,
        fields[b"X-Amz-Signature"],
        fields[b"X-Amz-Date"].decode("latin-1"),
        _parse_expires(fields[b"X-Amz-Expires"]),
        fields.get(b"X-Amz-Security-Token", b""),
        fields.get(b"X-Amz-Content-Sha256", b""),
    )


def parse_form_claim(fields: Mapping[str, str]) -> tuple[Claim, bytes]:
    """The claim and the signature in the fields of a form, by lower-case name.

    Raises:
        S3Error: InvalidArgument, AuthorizationQueryParametersError; NotImplemented for SigV4A.
    """
    code = "AuthorizationQueryParametersError"
    for name in ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Signature"):
        if not fields.get(name.lower()):
            raise missing_field(name)
    _check_algorithm(fields["x-amz-algorithm"].encode())
    claim = _claim(fields["x-amz-credential"].encode(), b"host", code, "Error parsing the parameters; ")
    if parse_amz_date(fields["x-amz-date"]) is None:
        raise S3Error(code, X_AMZ_DATE_FORM)
    return claim, fields["x-amz-signature"].encode()


def missing_field(name: str) -> S3Error:
    """S3's error for a form that lacks a field, or has it after the file."""
    return S3Error(
        "InvalidArgument",
        f"Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the fields.",
        extra={"ArgumentName": name, "ArgumentValue": ""},
    )


def _check_algorithm(algorithm: bytes) -> None:
    if algorithm == b"AWS4-ECDSA-P256-SHA256":
        raise S3Error(
            "NotImplemented", explain="SigV4A (AWS4-ECDSA-P256-SHA256) is not supported; sign with AWS4-HMAC-SHA256."
        )
    if algorithm != ALGORITHM:
        raise S3Error("AuthorizationQueryParametersError", 'X-Amz-Algorithm only supports "AWS4-HMAC-SHA256".')


def _parse_expires(text: bytes) -> int:
    code = "AuthorizationQueryParametersError"
    if not text.removeprefix(b"-").isdigit() or len(text) > 18:
        raise S3Error(code, "X-Amz-Expires should be a number")
    if int(text) < 1:
        raise S3Error(code, "X-Amz-Expires must be at least one second")
    if int(text) > MAX_EXPIRES:
        raise S3Error(code, f"X-Amz-Expires must be less than a week (in seconds), that is {MAX_EXPIRES}")
    return int(text)
