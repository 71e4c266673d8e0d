"""Signature and rights of a request to the fake origin, implemented independently of gateway/model/s3/sigv4.py."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, unquote

_ALGORITHM = "AWS4-HMAC-SHA256"
_SKEW = timedelta(minutes=15)


class OriginRefusal(Exception):
    """The request is answered with this S3 error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message or code


@dataclass(frozen=True)
class OriginRequest:
    """One request as it arrived; header names in lower case, values stripped."""

    method: str
    raw_path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)

    def header(self, name: str) -> str:
        """The first value, or ``""``."""
        return next((value for candidate, value in self.headers if candidate == name), "")

    @property
    def bucket(self) -> str:
        """The decoded bucket, or ``""``."""
        return unquote(self.raw_path[1:].partition("/")[0])

    @property
    def key(self) -> str:
        """The decoded key, or ``""``."""
        return unquote(self.raw_path[1:].partition("/")[2])

    @property
    def parameters(self) -> dict[str, str]:
        """The query, decoded."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass(frozen=True)
class User:
    """A user of the fake origin; a ``session_token`` must come with every request if it is not empty."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""


def authenticate(asked: OriginRequest, users: Sequence[User]) -> str:
    """The access key that signed the request, or ``""`` for an unsigned one. Raises OriginRefusal for a wrong signature."""
    parameters = asked.parameters
    authorization = asked.header("authorization")
    if authorization:
        return _check_header(asked, authorization, users)
    if "X-Amz-Signature" in parameters:
        return _check_query(asked, parameters, users)
    return ""


def _check_header(asked: OriginRequest, authorization: str, users: Sequence[User]) -> str:
    algorithm, _, rest = authorization.partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if algorithm != _ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= set(fields):
        raise OriginRefusal(400, "AuthorizationHeaderMalformed")
    stamp = asked.header("x-amz-date")
    payload_hash = asked.header("x-amz-content-sha256")
    signed = fields["SignedHeaders"].split(";")
    must = {"host"} | {name for name, _ in asked.headers if name.startswith("x-amz-")}
    if not must <= set(signed):
        raise OriginRefusal(403, "AccessDenied", "There were headers present in the request which were not signed")
    user = _user(fields["Credential"], users)
    if user.session_token != asked.header("x-amz-security-token"):
        raise OriginRefusal(400, "InvalidToken")
    _check_time(stamp)
    _compare(asked, asked.query, fields["Credential"], signed, (stamp, payload_hash), fields["Signature"], user)
    if len(payload_hash) == 64 and payload_hash != hashlib.sha256(asked.body).hexdigest():
        raise OriginRefusal(400, "XAmzContentSHA256Mismatch")
    if payload_hash.startswith("STREAMING-"):
        raise OriginRefusal(411, "MissingContentLength")
    return user.access_key_id


def _check_query(asked: OriginRequest, parameters: dict[str, str], users: Sequence[User]) -> str:
    user = _user(parameters["X-Amz-Credential"], users)
    stamp = parameters["X-Amz-Date"]
    signed_at = _parse(stamp)
    if datetime.now(UTC) > signed_at + timedelta(seconds=int(parameters["X-Amz-Expires"])):
        raise OriginRefusal(403, "AccessDenied", "Request has expired")
    query = "&".join(part for part in asked.query.split("&") if not part.startswith("X-Amz-Signature="))
    signed = parameters["X-Amz-SignedHeaders"].split(";")
    stamp_and_hash = (stamp, "UNSIGNED-PAYLOAD")
    _compare(asked, query, parameters["X-Amz-Credential"], signed, stamp_and_hash, parameters["X-Amz-Signature"], user)
    return user.access_key_id


def _user(credential: str, users: Sequence[User]) -> User:
    for user in users:
        if credential.partition("/")[0] == user.access_key_id:
            return user
    raise OriginRefusal(403, "InvalidAccessKeyId")


def _parse(stamp: str) -> datetime:
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise OriginRefusal(403, "AccessDenied", "no valid date") from None


def _check_time(stamp: str) -> None:
    if abs(datetime.now(UTC) - _parse(stamp)) > _SKEW:
        raise OriginRefusal(403, "RequestTimeTooSkewed")


def _compare(
    asked: OriginRequest,
    query: str,
    credential: str,
    signed: list[str],
    stamp_and_hash: tuple[str, str],
    signature: str,
    user: User,
) -> None:
    stamp, payload_hash = stamp_and_hash
    pairs = sorted(part.partition("=")[::2] for part in query.split("&") if part)
    recoded = sorted((quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")) for name, value in pairs)
    lines = [f"{n}:{','.join(' '.join(v.split()) for c, v in asked.headers if c == n)}\n" for n in signed]
    canonical = "\n".join(
        [
            asked.method,
            quote(unquote(asked.raw_path), safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in recoded),
            "".join(lines),
            ";".join(signed),
            payload_hash,
        ]
    )
    day, region, service, end = credential.split("/")[1:]
    to_sign = "\n".join([_ALGORITHM, stamp, f"{day}/{region}/{service}/{end}", _sha256(canonical)])
    key = b"AWS4" + user.secret_access_key.encode()
    for step in (day, region, service, end):
        key = hmac.digest(key, step.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(key, to_sign.encode(), "sha256").hex(), signature):
        raise OriginRefusal(403, "SignatureDoesNotMatch")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
