"""One request on its way through the S3 edge: what arrived, who asks, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.api.s3.auth import Authenticated
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey, is_bucket_name
from gateway.model.wire import WireRequest

MAX_KEY_BYTES = 1024


@dataclass(slots=True)
class Exchange:
    """A verified request.

    ``bucket`` is empty for requests about the service; ``key`` is ``None`` for requests about a bucket. ``raw_key`` is the key
    as the client spelled it. ``query`` is the query string without the parameters of the signature; ``names`` are the
    parameter names in it.
    """

    request: WireRequest
    auth: Authenticated
    bucket: str
    raw_key: bytes
    key: ObjectKey | None
    query: str
    names: frozenset[str]

    @property
    def resource(self) -> str:
        """The path for error documents and logs."""
        return self.request.raw_path.decode("ascii", "replace")

    @property
    def wants_checksums(self) -> bool:
        """Whether the answer is to tell the object's checksums; presigning moves the header into the query."""
        mode = self.request.header(b"x-amz-checksum-mode") or parameter(self.query, "x-amz-checksum-mode")
        return mode.upper() == b"ENABLED"

    @property
    def keys(self) -> tuple[ObjectKey, ...]:
        """The object, and where the path has a bare "+" also the one of stores that read it as a space, as S3 does."""
        if self.key is None:
            return ()
        if b"+" not in self.raw_key:
            return (self.key,)
        return self.key, self.key._replace(key=decode_key(self.raw_key.replace(b"+", b" ")))

    @property
    def origin_path(self) -> str:
        """The path towards the origin, path style, spelled as the client spelled it."""
        raw_key = self.raw_key.decode("ascii")
        return f"/{self.bucket}/{raw_key}" if raw_key else f"/{self.bucket}"


def parameter(query: str, name: str) -> bytes:
    """The first value of a query parameter, decoded; empty when it is not there."""
    for piece in query.split("&"):
        given, _, value = piece.partition("=")
        if unquote_to_bytes(given) == name.encode():
            return unquote_to_bytes(value)
    return b""


def decode_key(raw_key: bytes) -> str:
    """A key from its percent-encoded form.

    Raises:
        S3Error: InvalidURI when it is not UTF-8, KeyTooLongError beyond 1,024 bytes.
    """
    plain = unquote_to_bytes(raw_key)
    if len(plain) > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", extra={"Size": str(len(plain)), "MaxSizeAllowed": str(MAX_KEY_BYTES)})
    try:
        return plain.decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", explain="The key is not UTF-8.") from None


def check_bucket(bucket: str) -> None:
    """Refuse what can be no bucket name.

    Raises:
        S3Error: InvalidBucketName.
    """
    if not is_bucket_name(bucket):
        raise S3Error("InvalidBucketName", extra={"BucketName": bucket})


def strip_query(query: bytes, own: frozenset[str]) -> tuple[str, frozenset[str]]:
    """Remove the signature's parameters from a raw query string; what remains keeps its order and spelling."""
    if not query:
        return "", frozenset()
    kept, names = [], set()
    for piece in query.decode("ascii", "replace").split("&"):
        if not piece:
            continue
        name = unquote_to_bytes(piece.partition("=")[0].replace("+", " ")).decode("utf-8", "replace")
        if name not in own:
            kept.append(piece)
            names.add(name)
    return "&".join(kept), frozenset(names)
