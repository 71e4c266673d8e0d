"""AWS Signature Version 4 in a request's headers, as S3 reads it: for S3 stores and for a gateway's own addresses.

Paths are signed exactly as they are sent, never normalised: "//" and ".." are legal in keys. Source: "Signature Calculations
for the Authorization Header: Transferring Payload in a Single Chunk" in the Amazon S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import BinaryIO
from urllib.parse import quote

from larder.http.credentials import Credentials

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_PIECE = 1 << 20
_ALGORITHM = "AWS4-HMAC-SHA256"


@lru_cache(maxsize=16)
def signing_key(secret_access_key: str, date: str, region: str) -> bytes:
    """The key of one day (YYYYMMDD) and region for S3, derived from the secret."""
    key = ("AWS4" + secret_access_key).encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def object_path(bucket: str, key: str = "") -> str:
    """The path-style address of a bucket or object, percent-encoded as it is sent and signed."""
    path = f"/{bucket}/{key}" if key else f"/{bucket}"
    return quote(path.encode("utf-8", "surrogateescape"), safe="/~")


def payload_hash_of(file: BinaryIO) -> str:
    """The hex SHA-256 of a file from its position to its end."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def encode_query(parameters: Iterable[tuple[str, str]]) -> str:
    """Parameters as they are sent: encoded and in the order in which they are signed."""
    encoded = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in parameters)
    return "&".join(f"{name}={value}" for name, value in encoded)


def sign(
    credentials: Credentials,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload_hash: str,
    moment: datetime | None = None,
) -> dict[str, str]:
    """The headers to send: those given, and the ones that carry time, payload hash, session token and signature.

    Args:
        credentials: of the caller.
        method: upper-case HTTP method.
        path: percent-encoded, as it will be sent.
        query: from ``encode_query``; empty for none.
        headers: all of them are signed; ``Host`` must be among them.
        payload_hash: hex SHA-256 of the body, or ``UNSIGNED_PAYLOAD``.
        moment: when the request is made; now when left out.
    """
    amz_date = (moment or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    sent = {**headers, "x-amz-content-sha256": payload_hash, "x-amz-date": amz_date}
    if credentials.session_token:
        sent["x-amz-security-token"] = credentials.session_token
    fields = sorted((name.lower(), " ".join(value.split())) for name, value in sent.items())
    names = ";".join(name for name, _ in fields)
    block = "".join(f"{name}:{value}\n" for name, value in fields)
    canonical = f"{method}\n{path}\n{query}\n{block}\n{names}\n{payload_hash}"
    date = amz_date[:8]
    scope = f"{date}/{credentials.region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{amz_date}\n{scope}\n{hashlib.sha256(canonical.encode('latin-1')).hexdigest()}"
    key = signing_key(credentials.secret_access_key, date, credentials.region)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    sent["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return sent
