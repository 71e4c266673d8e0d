"""The aws-chunked content coding: payload forms, and an incremental decoder that verifies signatures and trailers.

A body is a sequence of chunks, ``hex-size[;chunk-signature=hex]`` CRLF data CRLF, closed by a chunk of size zero and, in the
trailer forms, by header lines: checksums of the whole, and x-amz-trailer-signature if chunks are signed. Each
signature covers the previous one, so a chunk can be neither dropped nor moved.

Data is returned as it arrives, before the signature of its chunk can be checked: a chunk may be gigabytes long.
Therefore a consumer must hold back the last piece until ``finish`` has returned. ``finish`` also ends the
trailer section, instead of the empty line: clients differ there (minio-go puts one before the trailer signature and ends
its lines in LF), and the end of the HTTP body is unambiguous.

Bounds: a chunk header has at most 1 KiB, the trailer section 16 KiB, and nothing else is kept.

Sources: "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks (Chunked
Upload)" and "... Including Trailing Headers" in the Amazon S3 API reference.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from gateway.model.errors import S3Error
from gateway.model.s3.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD, chunk_signature, trailer_signature

_LONGEST_HEADER = 1024
_LONGEST_TRAILER = 16 * 1024
_MOST_SIZE_DIGITS = 16
_HEX = b"0123456789abcdefABCDEF"
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class PayloadForm(Enum):
    """The form of a body, announced by the x-amz-content-sha256 header."""

    ABSENT = ""
    UNSIGNED = UNSIGNED_PAYLOAD
    HASHED = "hex SHA-256"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    def __init__(self, word: str) -> None:
        # Plain attributes: they are read on every request, and comparing enum members costs microseconds.
        self.chunked = word.startswith("STREAMING-")
        """Whether the body is aws-chunked."""
        self.signed = word.startswith("STREAMING-AWS4-")
        """Whether each chunk carries a signature."""
        self.trailing = word.endswith("-TRAILER")
        """Whether header lines follow the last chunk."""


FORMS = {form.value: form for form in PayloadForm if form is not PayloadForm.HASHED} | {
    EMPTY_SHA256: PayloadForm.HASHED
}
"""Results of ``payload_form`` for the keywords, and for the hash of the empty body that most requests have."""


def payload_form(content_sha256: str) -> PayloadForm:
    """The form announced by an x-amz-content-sha256 value; an empty value is ``ABSENT``.

    Raises:
        S3Error: NotImplemented for SigV4A chunks, InvalidArgument for anything unknown.
    """
    form = FORMS.get(content_sha256)
    if form is not None:
        return form
    if len(content_sha256) == 64 and not content_sha256.encode("utf-8", "replace").translate(None, _HEX):
        return PayloadForm.HASHED
    if content_sha256.startswith("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"):
        raise S3Error(
            "NotImplemented", explain="SigV4A chunk signatures are not supported; sign with AWS4-HMAC-SHA256."
        )
    raise S3Error(
        "InvalidArgument",
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING-* value of the S3 API, or a valid sha256 value.",
        extra={"ArgumentName": "x-amz-content-sha256", "ArgumentValue": content_sha256[:128]},
    )


@dataclass(frozen=True, slots=True)
class ChunkSigner:
    """The inputs of chunk signatures; the request's own signature seeds the chain."""

    key: bytes = field(repr=False)
    amz_date: str
    scope: bytes
    seed: bytes


class _State(Enum):
    HEADER = 1
    DATA = 2
    DATA_END = 3
    TRAILER = 4


class ChunkDecoder:
    """Decodes one body.

    Args:
        length: the x-amz-decoded-content-length, in bytes.
        signer: verifies chunk signatures; ``None`` for the unsigned form.
        announced: lower-case names from the x-amz-trailer header; exactly these trailers must follow.
    """

    def __init__(self, length: int, signer: ChunkSigner | None = None, announced: Collection[str] = ()) -> None:
        self.trailers: dict[str, str] = {}
        self.decoded = 0
        """Bytes returned so far."""
        self.verified = 0
        """Bytes, from the start, of complete chunks whose signature, if required, is verified."""
        self._length = length
        self._signer = signer
        self._previous = signer.seed if signer else b""
        self._announced = frozenset(announced)
        self._state = _State.HEADER
        self._line = bytearray()
        self._left = 0
        self._claimed = b""
        self._hash = sha256()

    def feed(self, data: bytes) -> list[bytes]:
        """Decode bytes of the body; returns the decoded pieces, none of them empty.

        Raises:
            S3Error: InvalidChunkSizeError, SignatureDoesNotMatch, IncompleteBody for more than the declared length,
                MalformedTrailerError. The decoder is unusable afterwards.
        """
        pieces: list[bytes] = []
        position = 0
        while position < len(data):
            if self._state is _State.DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._take(piece)
            elif self._state is _State.TRAILER:
                self._line += data[position:]
                position = len(data)
                if len(self._line) > _LONGEST_TRAILER:
                    raise S3Error("MalformedTrailerError", explain="The trailer section is too long.")
            else:
                position = self._take_line(data, position)
        return pieces

    def finish(self) -> None:
        """Mark the end of the encoded body. The body is complete and verified only after this has returned.

        Raises:
            S3Error: IncompleteBody, MalformedTrailerError, SignatureDoesNotMatch.
        """
        section = bytes(self._line)
        if self._state is not _State.TRAILER or not section.endswith((b"\n\r\n", b"\n\n")):
            # The "\n" at the beginning of the section ends the chunk of size zero.
            raise S3Error("IncompleteBody", explain="The body ended before its last chunk.")
        if self.decoded != self._length:
            raise self._wrong_length()
        self._read_trailers(section)

    def _take(self, piece: bytes) -> None:
        self._left -= len(piece)
        self.decoded += len(piece)
        if self._signer:
            self._hash.update(piece)
        if not self._left:
            self._close_chunk()
            self._state = _State.DATA_END

    def _take_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\n", position)
        stop = len(data) if end < 0 else end + 1
        self._line += data[position:stop]
        if len(self._line) > _LONGEST_HEADER or (self._state is _State.DATA_END and len(self._line) > 2):
            raise S3Error("InvalidChunkSizeError", explain="A chunk header is missing or too long.")
        if end >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise S3Error("InvalidChunkSizeError", explain="A chunk header does not end in CRLF.")
            if self._state is _State.DATA_END:
                self._state = _State.HEADER
            else:
                self._open_chunk(line[:-2])
        return stop

    def _open_chunk(self, line: bytes) -> None:
        digits, *extensions = line.split(b";")
        if not digits or len(digits) > _MOST_SIZE_DIGITS or digits.translate(None, _HEX):
            raise S3Error("InvalidChunkSizeError", explain="A chunk size is not a hexadecimal number.")
        size = int(digits, 16)
        if self.decoded + size > self._length:
            raise self._wrong_length()
        self._claimed = b""
        for extension in extensions:
            name, _, value = extension.partition(b"=")
            if name.strip() == b"chunk-signature":
                self._claimed = value.strip()
        self._left = size
        if size:
            self._state = _State.DATA
            return
        self._close_chunk()
        self._state = _State.TRAILER
        self._line += b"\n"

    def _close_chunk(self) -> None:
        if self._signer:
            signer = self._signer
            expected = chunk_signature(
                signer.key, signer.amz_date, signer.scope, self._previous, self._hash.hexdigest()
            )
            if not hmac.compare_digest(expected, self._claimed):
                raise S3Error("SignatureDoesNotMatch", explain="A chunk signature does not match.")
            self._previous = expected
            self._hash = sha256()
        self.verified = self.decoded

    def _read_trailers(self, section: bytes) -> None:
        signed_lines = b""
        for line in section.split(b"\n"):
            name, colon, value = line.strip().partition(b":")
            if not name:
                continue
            lower, text = name.strip().lower().decode("latin-1"), value.strip().decode("latin-1")
            expected = lower in self._announced or (self._signer is not None and lower == _TRAILER_SIGNATURE)
            # Trailers become headers towards the origin, so control characters are refused.
            plain = text.isascii() and text.isprintable()
            if not colon or not expected or not plain or lower in self.trailers:
                raise S3Error("MalformedTrailerError")
            self.trailers[lower] = text
            if lower != _TRAILER_SIGNATURE:
                signed_lines += lower.encode() + b":" + text.encode("latin-1") + b"\n"
        claimed = self.trailers.pop(_TRAILER_SIGNATURE, "")
        if self.trailers.keys() != self._announced:
            raise S3Error("MalformedTrailerError", explain="A header named by x-amz-trailer is missing.")
        if self._signer and (self._announced or claimed):
            self._verify_trailers(self._signer, signed_lines, claimed)

    def _verify_trailers(self, signer: ChunkSigner, lines: bytes, claimed: str) -> None:
        expected = trailer_signature(signer.key, signer.amz_date, signer.scope, self._previous, lines)
        if not hmac.compare_digest(expected, claimed.encode("latin-1")):
            raise S3Error("SignatureDoesNotMatch", explain="The trailer signature does not match.")

    def _wrong_length(self) -> S3Error:
        return S3Error("IncompleteBody", explain="The body is not as long as x-amz-decoded-content-length says.")
