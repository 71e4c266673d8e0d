"""The aws-chunked decoder: AWS's published chunk signatures, any fragmentation, and everything that must be refused."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.errors import S3Error
from gateway.model.s3 import sigv4
from gateway.model.s3.aws_chunked import ChunkDecoder, ChunkSigner, PayloadForm, payload_form

KEY = sigv4.signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1")
DATE = "20130524T000000Z"
SCOPE = b"20130524/us-east-1/s3/aws4_request"
SEED = b"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
TRAILER_SEED = b"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
SIGNER = ChunkSigner(KEY, DATE, SCOPE, SEED)

EXAMPLE = (
    b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
    + b"a" * 65536
    + b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n"
    + b"a" * 1024
    + b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n"
)
"""The body of "Example: PUT Object" in "Transferring Payload in Multiple Chunks": 66 KB of "a"."""

TRAILER_EXAMPLE = (
    b"10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n"
    + b"a" * 65536
    + b"\r\n400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n"
    + b"a" * 1024
    + b"\r\n0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n"
    + b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    + b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
)
"""The body of the example in "Including Trailing Headers"."""


def signed(pieces: list[bytes], signer: ChunkSigner = SIGNER) -> bytes:
    """Encode pieces as signed chunks, the last one empty."""
    body, previous = b"", signer.seed
    for piece in [*pieces, b""]:
        previous = sigv4.chunk_signature(KEY, DATE, SCOPE, previous, sha256(piece).hexdigest())
        body += b"%x;chunk-signature=%b\r\n%b\r\n" % (len(piece), previous, piece)
    return body


def unsigned(pieces: list[bytes], trailer: bytes = b"") -> bytes:
    """Encode pieces as unsigned chunks with a trailer section."""
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"


def decode(decoder: ChunkDecoder, *parts: bytes) -> bytes:
    """Feed parts one after the other, and finish."""
    out = b"".join(piece for part in parts for piece in decoder.feed(part))
    decoder.finish()
    return out


def refusal(decoder: ChunkDecoder, *parts: bytes) -> str:
    """The code with which a body is refused."""
    with pytest.raises(S3Error) as refused:
        decode(decoder, *parts)
    return refused.value.code


def test_published_example() -> None:
    """AWS's chunked upload example is accepted, and comes out as 66,560 bytes of "a"."""
    decoder = ChunkDecoder(66560, SIGNER)
    assert decode(decoder, EXAMPLE) == b"a" * 66560
    assert decoder.verified == 66560


def test_published_trailer_example() -> None:
    """AWS's example with a signed checksum trailer is accepted, and the trailer handed over without its signature."""
    decoder = ChunkDecoder(66560, ChunkSigner(KEY, DATE, SCOPE, TRAILER_SEED), ["x-amz-checksum-crc32c"])
    assert decode(decoder, TRAILER_EXAMPLE) == b"a" * 66560
    assert decoder.trailers == {"x-amz-checksum-crc32c": "sOO8/Q=="}


def test_minio_go_spelling_of_the_trailer() -> None:
    """minio-go ends trailers in LF and puts an empty line before the trailer signature."""
    body = TRAILER_EXAMPLE.replace(b"sOO8/Q==\r\n", b"sOO8/Q==\n\r\n")
    decoder = ChunkDecoder(66560, ChunkSigner(KEY, DATE, SCOPE, TRAILER_SEED), ["x-amz-checksum-crc32c"])
    assert decode(decoder, body) == b"a" * 66560


def test_empty_line_before_the_trailer() -> None:
    """A chunk of size zero may be closed by CRLF like any other, before the trailer begins."""
    decoder = ChunkDecoder(2, None, ["x-amz-checksum-crc32"])
    assert decode(decoder, b"2\r\nhi\r\n0\r\n\r\nX-Amz-Checksum-CRC32: abc= \r\n\r\n") == b"hi"
    assert decoder.trailers == {"x-amz-checksum-crc32": "abc="}


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=5),
    st.lists(st.integers(0, 700), max_size=8),
    st.booleans(),
)
def test_fragmentation_does_not_matter(pieces: list[bytes], cuts: list[int], with_signature: bool) -> None:
    """However the network cuts a body, the same bytes and trailers come out."""
    plain = b"".join(pieces)
    trailer = b"x-amz-checksum-crc32:AAAAAA==\r\n"
    body = signed(pieces) if with_signature else unsigned(pieces, trailer)
    announced = [] if with_signature else ["x-amz-checksum-crc32"]
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    parts = [body[a:b] for a, b in pairwise(edges)]
    decoder = ChunkDecoder(len(plain), SIGNER if with_signature else None, announced)
    assert decode(decoder, *parts) == plain
    assert decoder.trailers == ({} if with_signature else {"x-amz-checksum-crc32": "AAAAAA=="})


@given(st.integers(0, 4), st.integers(1, 255))
def test_any_changed_byte_is_noticed(chunk: int, change: int) -> None:
    """One changed byte anywhere in the data of a signed body is refused."""
    pieces = [bytes([65 + n]) * 7 for n in range(5)]
    body = bytearray(signed(pieces))
    position = body.index(pieces[chunk])
    body[position] ^= change
    assert refusal(ChunkDecoder(35, SIGNER), bytes(body)) == "SignatureDoesNotMatch"


def test_body_byte_by_byte_in_one_byte_chunks() -> None:
    """Chunks of one byte, arriving one byte at a time, decode."""
    body = unsigned([b"a", b"b", b"c"])
    assert decode(ChunkDecoder(3), *(body[n : n + 1] for n in range(len(body)))) == b"abc"


def test_chunk_larger_than_a_mebibyte() -> None:
    """One chunk may be larger than any buffer; its pieces are handed out as they arrive, before it is complete."""
    data = bytes(range(256)) * 8192
    body = signed([data])
    decoder = ChunkDecoder(len(data), SIGNER)
    early = decoder.feed(body[: 1024 * 1024])
    assert sum(map(len, early)) > 1024 * 1024 - 100
    assert decoder.verified == 0
    rest = decoder.feed(body[1024 * 1024 :])
    decoder.finish()
    assert b"".join(early + rest) == data
    assert decoder.verified == len(data)


def test_empty_body() -> None:
    """A body of no bytes is one chunk of size zero, signed like any other."""
    assert decode(ChunkDecoder(0, SIGNER), signed([])) == b""


def test_sizes_in_upper_case() -> None:
    """Chunk sizes are hexadecimal in either case, leading zeros included."""
    assert decode(ChunkDecoder(10), b"000A\r\n0123456789\r\n0\r\n\r\n") == b"0123456789"


def test_chunks_cannot_be_exchanged() -> None:
    """Signatures form a chain: equal chunks in another order are refused."""
    one, two, end = signed([b"A" * 5]), signed([b"A" * 5, b"B" * 5]), signed([])
    second = two[len(one) - len(end) :]
    assert refusal(ChunkDecoder(5, SIGNER), second) == "SignatureDoesNotMatch"


def test_missing_chunk_signature() -> None:
    """A chunk without a signature is refused where signatures were announced."""
    assert refusal(ChunkDecoder(2, SIGNER), unsigned([b"hi"])) == "SignatureDoesNotMatch"


def test_missing_trailer_signature() -> None:
    """A signed body's trailer without its own signature is refused."""
    body = signed([b"hi"])[:-2] + b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    assert refusal(ChunkDecoder(2, SIGNER, ["x-amz-checksum-crc32"]), body) == "SignatureDoesNotMatch"


def test_changed_trailer() -> None:
    """A changed trailer does not match its signature."""
    body = TRAILER_EXAMPLE.replace(b"sOO8/Q==", b"sOO9/Q==")
    decoder = ChunkDecoder(66560, ChunkSigner(KEY, DATE, SCOPE, TRAILER_SEED), ["x-amz-checksum-crc32c"])
    assert refusal(decoder, body) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nhi\r\n0\r\n\r\n",
        b"\r\n",
        b"-2\r\nhi\r\n0\r\n\r\n",
        b"0x2\r\nhi\r\n0\r\n\r\n",
        b" 2\r\nhi\r\n0\r\n\r\n",
        b"2\nhi\r\n0\r\n\r\n",
        b"2\r\nhiXX0\r\n\r\n",
        b"2\r\nhi\n0\r\n\r\n",
        b"00000000000000002\r\nhi\r\n0\r\n\r\n",
        b"2;" + b"x" * 2000 + b"\r\nhi\r\n0\r\n\r\n",
        b"2;" + b"x" * 2000,
    ],
)
def test_garbled_chunk_headers(body: bytes) -> None:
    """A chunk header that is not a plain hexadecimal size with CRLF is refused, at the latest after 1 KiB."""
    decoder = ChunkDecoder(2)
    with pytest.raises(S3Error) as refused:
        decoder.feed(body)
    assert refused.value.code == "InvalidChunkSizeError"


def test_more_than_declared_is_refused_at_once() -> None:
    """A chunk that would pass x-amz-decoded-content-length is refused before its data arrives."""
    decoder = ChunkDecoder(5)
    with pytest.raises(S3Error) as refused:
        decoder.feed(b"ffffffffffffffff\r\n")
    assert refused.value.code == "IncompleteBody"


def test_less_than_declared() -> None:
    """A body that ends properly but short is refused."""
    assert refusal(ChunkDecoder(5), unsigned([b"hi"])) == "IncompleteBody"


@given(st.integers(0, 200))
def test_truncated_body(cut: int) -> None:
    """A body cut off anywhere is refused when it ends."""
    body = signed([b"hello"])
    if cut < len(body):
        assert refusal(ChunkDecoder(5, SIGNER), body[:cut]) == "IncompleteBody"


@pytest.mark.parametrize(
    "trailer",
    [
        b"",
        b"x-amz-checksum-crc32\r\n",
        b"x-amz-checksum-sha1:AAAA\r\n",
        b"x-amz-checksum-crc32:AAAA\r\nx-amz-checksum-crc32:AAAA\r\n",
        b"x-amz-checksum-crc32:AAAA\r\nx-amz-meta-a:b\r\n",
        b"x-amz-checksum-crc32:A\rX\r\n",
        b"x-amz-checksum-crc32:A\xff\r\n",
        b"x-amz-trailer-signature:00\r\nx-amz-checksum-crc32:AAAA\r\n",
    ],
)
def test_malformed_trailers(trailer: bytes) -> None:
    """Trailers are exactly those announced, once each, printable."""
    decoder = ChunkDecoder(2, None, ["x-amz-checksum-crc32"])
    assert refusal(decoder, unsigned([b"hi"], trailer)) == "MalformedTrailerError"


def test_endless_trailer() -> None:
    """The trailer section is bounded, so that it cannot fill the memory."""
    decoder = ChunkDecoder(2, None, ["x-amz-checksum-crc32"])
    with pytest.raises(S3Error) as refused:
        decoder.feed(unsigned([b"hi"], b"x-amz-checksum-crc32:" + b"A" * 20000))
    assert refused.value.code == "MalformedTrailerError"


def test_bytes_after_the_end() -> None:
    """Bytes after the last chunk of a form without trailers are refused."""
    assert refusal(ChunkDecoder(2, SIGNER), signed([b"hi"]) + b"more\r\n\r\n") == "MalformedTrailerError"


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("", PayloadForm.ABSENT),
        ("UNSIGNED-PAYLOAD", PayloadForm.UNSIGNED),
        (sigv4.EMPTY_SHA256, PayloadForm.HASHED),
        ("AB" * 32, PayloadForm.HASHED),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", PayloadForm.SIGNED_CHUNKS),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", PayloadForm.SIGNED_CHUNKS_TRAILER),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadForm.UNSIGNED_CHUNKS_TRAILER),
    ],
)
def test_payload_forms(value: str, form: PayloadForm) -> None:
    """Each value of x-amz-content-sha256 in use names its form."""
    assert payload_form(value) is form


@pytest.mark.parametrize(
    ("form", "chunked", "is_signed", "trailing"),
    [
        (PayloadForm.ABSENT, False, False, False),
        (PayloadForm.UNSIGNED, False, False, False),
        (PayloadForm.HASHED, False, False, False),
        (PayloadForm.SIGNED_CHUNKS, True, True, False),
        (PayloadForm.SIGNED_CHUNKS_TRAILER, True, True, True),
        (PayloadForm.UNSIGNED_CHUNKS_TRAILER, True, False, True),
    ],
)
def test_what_a_form_means(form: PayloadForm, chunked: bool, is_signed: bool, trailing: bool) -> None:
    """A form says whether it has chunks, signatures and a trailer."""
    assert (form.chunked, form.signed, form.trailing) == (chunked, is_signed, trailing)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER", "NotImplemented"),
        ("hex SHA-256", "InvalidArgument"),
        ("g" * 64, "InvalidArgument"),
        ("ab", "InvalidArgument"),
        ("unsigned-payload", "InvalidArgument"),
    ],
)
def test_unknown_payload_forms(value: str, code: str) -> None:
    """SigV4A chunks are not implemented; anything else unknown is an invalid argument."""
    with pytest.raises(S3Error) as refused:
        payload_form(value)
    assert refused.value.code == code


def test_key_is_not_shown() -> None:
    """The signing key does not appear when a signer is printed."""
    assert KEY.hex() not in repr(SIGNER)
    assert repr(KEY) not in repr(SIGNER)
