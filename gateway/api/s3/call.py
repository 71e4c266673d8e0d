"""One request on its way through the S3 edge: what arrived, the principal, and the bucket and key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from gateway.api.s3.auth import Authenticated
from gateway.engine.objects.cold import Answer as OriginAnswer
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey, Principal, is_bucket_name
from gateway.model.s3.query import require_valid_escapes
from gateway.model.s3.request_headers import PAYER, REQUESTER
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.exchange import StreamedResponse

MAX_KEY_BYTES = 1024


@dataclass(slots=True)
class S3Call:
    """A verified request.

    ``bucket`` is empty for requests about the service; ``key`` is ``None`` for requests about a bucket. ``raw_key`` is the key
    as the client spelled it. ``request``, ``query`` and ``names`` are those of ``resource_of``. ``plain`` says that it is a plain
    GET of a whole object: no range, no condition, and nothing that asks for a check. ``sent`` and ``begun`` are of ``Trace``.
    """

    request: WireRequest
    auth: Authenticated
    bucket: str
    raw_key: bytes
    key: ObjectKey | None
    query: str
    names: frozenset[str]
    plain: bool = False
    sent: StreamedResponse | None = None
    begun: asyncio.Future[OriginAnswer] | None = None

    @property
    def resource(self) -> str:
        """The path for error documents and logs."""
        return self.request.raw_path.decode("ascii", "replace")

    @property
    def wants_checksums(self) -> bool:
        """Whether the answer must include the object's checksums."""
        return (self.request.fields.get(b"x-amz-checksum-mode") or b"").upper() == b"ENABLED"

    def paying(self) -> S3Call:
        """This call with the client's acceptance of the charges of a requester-pays bucket; the same call if the client does not
        accept them."""
        if self.request.method not in ("GET", "HEAD") or self.request.fields.get(PAYER, b"").strip() != REQUESTER:
            return self
        return replace(self, auth=self.auth._replace(principal=self.auth.principal.paying()))

    @property
    def reader(self) -> Principal:
        """The caller as the reader of a later read, who accepts the same charges."""
        pays = self.request.fields.get(PAYER, b"").strip() == REQUESTER
        return self.auth.principal.paying() if pays else self.auth.principal

    @property
    def keys(self) -> tuple[ObjectKey, ...]:
        """The object; if the path has a bare "+", also the object meant by stores that read "+" as a space, as S3 does."""
        if self.key is None:
            return ()
        if b"+" not in self.raw_key:
            return (self.key,)
        return self.key, self.key._replace(key=decode_key(self.raw_key.replace(b"+", b" ")))

    @property
    def origin_path(self) -> str:
        """The path-style path towards the origin, spelled as the client spelled it."""
        raw_key = self.raw_key.decode("ascii")
        return f"/{self.bucket}/{raw_key}" if raw_key else f"/{self.bucket}"


def parameter(query: str, name: str) -> bytes:
    """The decoded value of a query parameter; empty if it is absent."""
    for piece in query.split("&"):
        given, _, value = piece.partition("=")
        if unquote_to_bytes(given) == name.encode():
            return unquote_to_bytes(value)
    return b""


def decode_key(raw_key: bytes) -> str:
    """A key from its percent-encoded form.

    Raises:
        S3Error: InvalidURI if it is not UTF-8 or an escape is invalid, KeyTooLongError beyond 1,024 bytes.
    """
    plain = raw_key
    if b"%" in raw_key:
        # radosgw reads a path with an invalid escape as "/", the list of all buckets.
        require_valid_escapes(raw_key)
        plain = unquote_to_bytes(raw_key)
    if len(plain) > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", extra={"Size": str(len(plain)), "MaxSizeAllowed": str(MAX_KEY_BYTES)})
    try:
        return plain.decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", explain="The key is not UTF-8.") from None


@lru_cache(maxsize=1024)
def check_bucket(bucket: str) -> None:
    """Refuse strings that cannot be bucket names.

    Raises:
        S3Error: InvalidBucketName.
    """
    if not is_bucket_name(bucket):
        raise S3Error("InvalidBucketName", extra={"BucketName": bucket})


def resource_of(request: WireRequest, signature: frozenset[str]) -> tuple[WireRequest, str, frozenset[str]]:
    """Normalize a request: headers that presigning moved into the query become headers again.

    Returns:
        The request with those headers; the query string without them and without the parameters of the signature; the names of
        the remaining parameters.

    Raises:
        S3Error: InvalidArgument if a header and the parameter of its name differ; as ``Query.divided``.
    """
    if not request.query:
        return request, "", frozenset()
    query, moved = request.parameters.divided(signature)
    fields = request.fields
    for name, value in moved.items():
        if fields.get(name, value).strip() != value.strip():
            raise S3Error(
                "InvalidArgument", explain=f"The header {name.decode()} and the query parameter of that name differ."
            )
    if moved:
        headers = [*request.headers, *((name, value) for name, value in moved.items() if name not in fields)]
        request = replace(request, headers=headers)
    return request, query.text, query.names
