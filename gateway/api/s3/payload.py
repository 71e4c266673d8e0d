"""Turns a client's body into one that any origin accepts.

The form announced in x-amz-content-sha256 decides between three ways:

- A plain body is passed through. With a hex hash it is hashed on the way, and its last piece is held back until the
  hash matches: the origin was promised a length, so without that piece the upload never completes there.
- Signed chunks are unwrapped on the way, and the last piece is held back until the last chunk's signature is verified.
- With a trailer, the checksum follows the bytes, but S3's plain form wants it in a header. The body is therefore
  read whole, verified, and sent as a plain one with an x-amz-checksum-* header. Old origins refuse trailers too.

An empty body has no last piece to hold back, so it is verified before anything is sent. A small body is gathered and verified
first: however slow the client is, the origin gets it in one message with its head, and never sees a wrong one. Most uploads are
plain; a gathered plain body is hashed in one piece.

Sources: "Signature Calculations ... Transferring Payload in Multiple Chunks", "... Including Trailing Headers" and
"Checking object integrity" in the Amazon S3 documentation; RFC 9112, section 6 for the length of a body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import sha256

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.spool import Spool, SpoolPlace
from gateway.model.errors import S3Error
from gateway.model.holders import HOLDER
from gateway.model.objects import Header
from gateway.model.s3 import checksums
from gateway.model.s3.aws_chunked import ChunkDecoder, PayloadForm
from gateway.model.s3.sigv4 import UNSIGNED_PAYLOAD, RawHeader
from gateway.server.received import counted

REPLACED_HEADERS = frozenset(
    {
        "content-encoding",
        "content-length",
        "expect",
        "transfer-encoding",
        "x-amz-content-sha256",
        "x-amz-decoded-content-length",
        "x-amz-trailer",
    }
)
"""Client headers (lower case) that must not be forwarded with a prepared body; ``PreparedBody.headers`` replaces them."""

SMALL = 256 * 1024
"""Bytes of the largest body for ``PreparedBody.gather``: as many as the server buffers of a request."""
_MOST_LENGTH_DIGITS = 18
_ABOUT_BODIES = frozenset(
    {
        b"content-encoding", b"content-length", b"content-md5", b"transfer-encoding", b"x-amz-decoded-content-length",
        b"x-amz-trailer",
    }
)  # fmt: skip
_CHECKSUM = checksums.PREFIX.encode()


class PreparedBody:
    """A body in the form sent to the origin.

    ``headers`` are sent in addition to the client's own, except those in ``dropped`` (lower case). ``length`` in bytes becomes
    Content-Length, and ``payload_hash`` is signed. ``whole`` is the gathered body.
    """

    def __init__(
        self, length: int, payload_hash: str, headers: Sequence[Header], source: AsyncIterator[bytes] | _Plain | Spool
    ) -> None:
        self.length = length
        self.payload_hash = payload_hash
        self.headers = tuple(headers)
        self.dropped = REPLACED_HEADERS
        self.whole: bytes | None = None
        self._source = source

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes to send.

        Raises:
            S3Error: while iterating, before the last piece: the body does not match its signature or hash. The
                connection to the origin must then be broken off, and the client gets this error.
        """
        source = self._source
        return source.pieces() if isinstance(source, (_Plain, Spool)) else source

    async def gather(self) -> None:
        """Read the body into memory, before anything is sent. Raises what ``chunks`` raises."""
        source = self._source
        self.whole = (
            await source.whole() if isinstance(source, _Plain) else b"".join([piece async for piece in self.chunks()])
        )

    def close(self) -> None:
        """Free the spool; may be called again."""
        if isinstance(self._source, Spool):
            self._source.close()


async def prepare(
    auth: Authenticated,
    headers: Sequence[RawHeader],
    receive: AsyncIterator[bytes],
    spool_place: Callable[[], SpoolPlace],
    max_spool: int,
    uploads: bool = True,
) -> PreparedBody:
    """Prepare the body of a request.

    Args:
        auth: the claims of the signature about the body.
        headers: of the request, names in lower case.
        receive: the body as it arrives, HTTP framing removed.
        spool_place: where bodies are kept that must be read whole.
        max_spool: the largest of those, in bytes.
        uploads: whether the body is an object's bytes. Then its length is required; other requests have no body without
            Content-Length and Transfer-Encoding (RFC 9112, section 6.3).

    Raises:
        S3Error: MissingContentLength, InvalidArgument, EntityTooLarge; and for bodies that must be read whole,
            IncompleteBody, InvalidChunkSizeError, MalformedTrailerError, SignatureDoesNotMatch, BadDigest,
            InvalidDigest, InvalidRequest, XAmzContentSHA256Mismatch, ServiceUnavailable.
    """
    fields = _fields(headers)
    form = auth.payload_form
    if form.signed and auth.chunk_signer is None:
        raise S3Error("InvalidRequest", explain=f"{form.value} needs a request that is signed with SigV4.")
    length = _length(fields, form, uploads)
    if form.trailing:
        most = int(min(max_spool, spool_place().room.most(HOLDER.get())))
        if length > most:
            raise S3Error("EntityTooLarge", extra={"ProposedSize": str(length), "MaxSizeAllowed": str(most)})
        return await _whole(auth, fields, length, receive, spool_place)
    kept = _content_encoding(fields, form)
    if length <= SMALL:
        receive = counted(receive)
    if form.chunked:
        pieces = _unchunked(ChunkDecoder(length, auth.chunk_signer), receive)
        if not length:
            pieces = _again([piece async for piece in pieces])
        return PreparedBody(length, UNSIGNED_PAYLOAD, kept, pieces)
    claimed = auth.payload_hash.lower() if form is PayloadForm.HASHED else ""
    prepared = PreparedBody(length, claimed or UNSIGNED_PAYLOAD, kept, _Plain(receive, length, claimed))
    if not length:
        await prepared.gather()
    return prepared


def _fields(headers: Sequence[RawHeader]) -> dict[str, str]:
    """The headers that describe the body."""
    fields: dict[str, str] = {}
    for raw_name, raw_value in headers:
        if raw_name not in _ABOUT_BODIES and not raw_name.startswith(_CHECKSUM):
            continue
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


def _length(fields: Mapping[str, str], form: PayloadForm, uploads: bool) -> int:
    text = fields.get("x-amz-decoded-content-length" if form.chunked else "content-length")
    open_ended = "transfer-encoding" in fields
    if text is None and not open_ended and "content-length" not in fields and not uploads:
        return 0
    if text is None or (open_ended and not form.chunked):
        raise S3Error("MissingContentLength")
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_LENGTH_DIGITS:
        raise S3Error("InvalidArgument", explain=f"The length of the body is not a number: {text[:64]!r}.")
    return int(text)


def _content_encoding(fields: Mapping[str, str], form: PayloadForm) -> list[Header]:
    if "content-encoding" not in fields:
        return []
    codings = [coding.strip() for coding in fields["content-encoding"].split(",")]
    # Without chunks, "aws-chunked" is part of the object's own encoding.
    kept = [coding for coding in codings if coding and not (form.chunked and coding.lower() == "aws-chunked")]
    return [("Content-Encoding", ",".join(kept))] if kept else []


async def _again(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class _Plain:
    """A body that is sent as received.

    Args:
        receive: returns its pieces.
        length: of all of them, in bytes.
        claimed: their SHA-256 in lower-case hex, or empty if it is not known.
    """

    def __init__(self, receive: AsyncIterator[bytes], length: int, claimed: str) -> None:
        self._receive = receive
        self._length = length
        self._claimed = claimed

    async def whole(self) -> bytes:
        """All bytes. Raises what ``pieces`` raises."""
        pieces, left = [], self._length
        async for piece in self._receive:
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                break
        if left:
            raise S3Error("IncompleteBody")
        whole = b"".join(pieces)
        if self._claimed:
            self._require(sha256(whole).hexdigest())
        return whole

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive; with a hash, the last piece once it is verified.

        Raises:
            S3Error: IncompleteBody, XAmzContentSHA256Mismatch.
        """
        seen, held, left = sha256(), b"", self._length
        async for piece in self._receive:
            left -= len(piece)
            if left < 0:
                break
            if not self._claimed:
                yield piece
                continue
            seen.update(piece)
            if held:
                yield held
            held = piece
        if left:
            raise S3Error("IncompleteBody")
        if self._claimed:
            self._require(seen.hexdigest())
        if held:
            yield held

    def _require(self, found: str) -> None:
        if found != self._claimed:
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                extra={"ClientComputedContentSHA256": self._claimed, "S3ComputedContentSHA256": found},
            )


async def _unchunked(decoder: ChunkDecoder, receive: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = b""
    async for data in receive:
        # Joined: a chunk may be a single byte.
        if piece := b"".join(decoder.feed(data)):
            if held:
                yield held
            held = piece
    decoder.finish()
    if held:
        yield held


async def _whole(
    auth: Authenticated,
    fields: Mapping[str, str],
    length: int,
    receive: AsyncIterator[bytes],
    spool_place: Callable[[], SpoolPlace],
) -> PreparedBody:
    announced = _announced(fields)
    decoder = ChunkDecoder(length, auth.chunk_signer, announced)
    in_headers = {name: value for name, value in fields.items() if name in checksums.KNOWN}
    for name, value in in_headers.items():
        if not checksums.is_composite(value):
            checksums.check_form(name, value)
    running = {name: checksums.start(name) for name in checksums.KNOWN.intersection([*announced, *in_headers])}
    spool = Spool(spool_place())
    try:
        async for piece in _unchunked(decoder, receive):
            for checksum in running.values():
                checksum.update(piece)
            await spool.write(piece)
        for name, value in [*in_headers.items(), *decoder.trailers.items()]:
            if name in running and not checksums.is_composite(value):
                checksums.check_form(name, value)
                checksums.check_value(name, value, running[name])
    except BaseException:
        spool.close()
        raise
    headers = [*_content_encoding(fields, auth.payload_form), *decoder.trailers.items()]
    return PreparedBody(length, UNSIGNED_PAYLOAD, headers, spool)


def _announced(fields: Mapping[str, str]) -> list[str]:
    names = [name.strip().lower() for name in fields.get("x-amz-trailer", "").split(",") if name.strip()]
    for name in names:
        if not name.startswith(checksums.PREFIX):
            raise S3Error("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
        if name in fields:
            raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header")
    return names
