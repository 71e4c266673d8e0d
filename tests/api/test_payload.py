"""Bodies: every payload form becomes a plain body, and a bad one is never complete."""

from __future__ import annotations

import os
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from functools import partial
from hashlib import md5, sha1, sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import boto3
import pytest
from awscrt import checksums as crt
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from gateway.api.s3.auth import Authenticated, Authenticator
from gateway.api.s3.payload import PreparedBody, prepare
from gateway.api.s3.spool import SpoolPlace
from gateway.base.config import Credential, Origin, Settings
from gateway.model.errors import S3Error
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.s3 import sigv4
from gateway.model.s3.aws_chunked import ChunkSigner, PayloadForm
from gateway.model.s3.sigv4 import RawHeader, WireRequest
from gateway.store.files.threads import closer
from rig.processes import open_files

PRINCIPAL = Principal("AK", "AK", OriginIdentity("default", "OK"))
KEY = sigv4.signing_key("secret", "20130524", "us-east-1")
SIGNER = ChunkSigner(KEY, "20130524T000000Z", b"20130524/us-east-1/s3/aws4_request", b"0" * 64)
MAX_SPOOL = 64 * 1024 * 1024
TRAILER_FORM = PayloadForm.UNSIGNED_CHUNKS_TRAILER


def claim(form: PayloadForm, payload_hash: str = "", signer: ChunkSigner | None = None) -> Authenticated:
    """A verified request with a body of this form."""
    return Authenticated(PRINCIPAL, form, payload_hash or form.value, signer)


def lengths(body: bytes, *, decoded: int | None = None, **headers: str) -> list[RawHeader]:
    """Request headers about a body; ``_`` in a name stands for "-"."""
    fields = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    if decoded is not None:
        fields["x-amz-decoded-content-length"] = str(decoded)
    return [(name.encode(), value.encode()) for name, value in fields.items()]


async def arriving(*parts: bytes) -> AsyncIterator[bytes]:
    """A body as the server hands it over."""
    for part in parts:
        yield part


async def received(prepared: PreparedBody) -> bytes:
    """The bytes that the origin receives."""
    return b"".join([piece async for piece in prepared.chunks()])


async def until_refused(prepared: PreparedBody) -> tuple[str, bytes]:
    """The code with which a body fails, and the bytes that the origin received before."""
    got = bytearray()

    async def consume() -> None:
        async for piece in prepared.chunks():
            got.extend(piece)

    with pytest.raises(S3Error) as refused:
        await consume()
    return refused.value.code, bytes(got)


async def refused_at_once(auth: Authenticated, headers: Sequence[RawHeader], *parts: bytes, **more: Any) -> str:
    """The code with which a body is refused before anything may be sent."""
    with pytest.raises(S3Error) as refused:
        await prepare(
            auth, headers, arriving(*parts), partial(SpoolPlace, None), more.pop("max_spool", MAX_SPOOL), **more
        )
    return refused.value.code


def signed_chunks(pieces: Sequence[bytes]) -> bytes:
    """Encode pieces as signed chunks."""
    body, previous = b"", SIGNER.seed
    for piece in [*pieces, b""]:
        previous = sigv4.chunk_signature(KEY, SIGNER.amz_date, SIGNER.scope, previous, sha256(piece).hexdigest())
        body += b"%x;chunk-signature=%b\r\n%b\r\n" % (len(piece), previous, piece)
    return body


def with_trailer(data: bytes, name: str, value: str, chunk: int = 65536) -> bytes:
    """Encode data as unsigned chunks with one trailer."""
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in chunks)
    return coded + b"0\r\n" + f"{name}:{value}\r\n\r\n".encode()


def crc(data: bytes) -> str:
    """The CRC32 of some bytes as S3 writes it."""
    return b64encode(crc32(data).to_bytes(4, "big")).decode()


async def test_hashed_body_passes_through(tmp_path: Path) -> None:
    """A body whose hash is right arrives unchanged, and is signed with that hash."""
    digest = sha256(b"hello world").hexdigest()
    auth = claim(PayloadForm.HASHED, digest.upper())
    prepared = await prepare(
        auth, lengths(b"hello world"), arriving(b"hello ", b"", b"world"), partial(SpoolPlace, tmp_path), MAX_SPOOL
    )
    assert await received(prepared) == b"hello world"
    assert (prepared.length, prepared.payload_hash) == (11, digest)


async def test_wrong_hash_never_completes(tmp_path: Path) -> None:
    """If the hash is wrong the last piece is withheld, so the origin never receives the whole body."""
    auth = claim(PayloadForm.HASHED, sha256(b"other").hexdigest())
    prepared = await prepare(
        auth, lengths(b"hello world"), arriving(b"hello ", b"world"), partial(SpoolPlace, tmp_path), MAX_SPOOL
    )
    assert await until_refused(prepared) == ("XAmzContentSHA256Mismatch", b"hello ")


async def test_wrong_hash_of_nothing_is_refused_at_once() -> None:
    """An empty body has no piece to withhold, so it is verified before anything is sent."""
    auth = claim(PayloadForm.HASHED, sha256(b"other").hexdigest())
    assert await refused_at_once(auth, lengths(b"")) == "XAmzContentSHA256Mismatch"


async def test_empty_hashed_body(tmp_path: Path) -> None:
    """An empty body with the hash of nothing is fine."""
    auth = claim(PayloadForm.HASHED, sigv4.EMPTY_SHA256)
    prepared = await prepare(auth, lengths(b""), arriving(), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert (await received(prepared), prepared.length) == (b"", 0)


@pytest.mark.parametrize("form", [PayloadForm.UNSIGNED, PayloadForm.ABSENT])
async def test_unsigned_body_passes_through(form: PayloadForm, tmp_path: Path) -> None:
    """Without a hash the body is sent as unsigned; its own Content-Encoding stays."""
    headers = lengths(b"hello", content_encoding="gzip")
    prepared = await prepare(claim(form), headers, arriving(b"he", b"llo"), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == b"hello"
    assert prepared.payload_hash == "UNSIGNED-PAYLOAD"
    assert prepared.headers == (("Content-Encoding", "gzip"),)


async def test_body_shorter_than_declared(tmp_path: Path) -> None:
    """A body that ends early is IncompleteBody."""
    prepared = await prepare(
        claim(PayloadForm.UNSIGNED), lengths(b"hello"), arriving(b"hell"), partial(SpoolPlace, tmp_path), MAX_SPOOL
    )
    assert (await until_refused(prepared))[0] == "IncompleteBody"


async def test_body_longer_than_declared(tmp_path: Path) -> None:
    """Bytes beyond the declared length are refused and not sent."""
    prepared = await prepare(
        claim(PayloadForm.UNSIGNED), lengths(b"he"), arriving(b"he", b"llo"), partial(SpoolPlace, tmp_path), MAX_SPOOL
    )
    assert await until_refused(prepared) == ("IncompleteBody", b"he")


async def test_signed_chunks_are_unwrapped(tmp_path: Path) -> None:
    """Signed chunks become a plain body of the decoded length, without aws-chunked in Content-Encoding."""
    body = signed_chunks([b"hello ", b"wor", b"ld"])
    auth = claim(PayloadForm.SIGNED_CHUNKS, signer=SIGNER)
    headers = lengths(body, decoded=11, content_encoding="aws-chunked,gzip")
    prepared = await prepare(auth, headers, arriving(body[:50], body[50:]), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == b"hello world"
    assert (prepared.length, prepared.payload_hash) == (11, "UNSIGNED-PAYLOAD")
    assert prepared.headers == (("Content-Encoding", "gzip"),)


@pytest.mark.parametrize("position", [85, 93, -3])
async def test_bad_chunk_signature_never_completes(position: int, tmp_path: Path) -> None:
    """If any byte of a signed body is changed, the origin never receives the whole body."""
    body = bytearray(signed_chunks([b"a" * 10, b"b" * 10]))
    body[position if position > 0 else body.rindex(b";chunk-signature=") + 20] ^= 1
    auth = claim(PayloadForm.SIGNED_CHUNKS, signer=SIGNER)
    parts = [bytes(body[n : n + 7]) for n in range(0, len(body), 7)]
    prepared = await prepare(
        auth, lengths(bytes(body), decoded=20), arriving(*parts), partial(SpoolPlace, tmp_path), MAX_SPOOL
    )
    code, got = await until_refused(prepared)
    assert code == "SignatureDoesNotMatch"
    assert len(got) < 20


async def test_signed_chunks_without_an_end_never_complete(tmp_path: Path) -> None:
    """All data but no final chunk: the origin never has the whole body."""
    body = signed_chunks([b"a" * 10])
    cut = body[: body.rindex(b"0;chunk")]
    auth = claim(PayloadForm.SIGNED_CHUNKS, signer=SIGNER)
    prepared = await prepare(auth, lengths(cut, decoded=10), arriving(cut), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await until_refused(prepared) == ("IncompleteBody", b"")


async def test_bad_signature_of_nothing_is_refused_at_once() -> None:
    """An empty body in signed chunks is verified before anything is sent."""
    body = signed_chunks([]).replace(b"signature=", b"signature=0", 1)
    auth = claim(PayloadForm.SIGNED_CHUNKS, signer=SIGNER)
    assert await refused_at_once(auth, lengths(body, decoded=0), body) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("form", [PayloadForm.SIGNED_CHUNKS, PayloadForm.SIGNED_CHUNKS_TRAILER])
async def test_signed_chunks_need_a_signed_request(form: PayloadForm) -> None:
    """Chunk signatures of an anonymous or SigV2 request have nothing to be verified with."""
    assert await refused_at_once(claim(form), lengths(b"", decoded=0)) == "InvalidRequest"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-checksum-crc32", crc(b"hello")),
        ("x-amz-checksum-crc32c", b64encode(crt.crc32c(b"hello").to_bytes(4, "big")).decode()),
        ("x-amz-checksum-crc64nvme", b64encode(crt.crc64nvme(b"hello").to_bytes(8, "big")).decode()),
        ("x-amz-checksum-sha1", b64encode(sha1(b"hello").digest()).decode()),
        ("x-amz-checksum-sha256", b64encode(sha256(b"hello").digest()).decode()),
        ("x-amz-checksum-sha512", "an algorithm only the origin knows"),
    ],
)
async def test_trailer_becomes_a_header(name: str, value: str, tmp_path: Path) -> None:
    """A right checksum trailer is sent as a header; one of an unknown algorithm is left to the origin."""
    body = with_trailer(b"hello", name, value)
    headers = lengths(body, decoded=5, x_amz_trailer=name, content_encoding="aws-chunked")
    prepared = await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert prepared.headers == ((name, value),)
    assert (prepared.length, prepared.payload_hash) == (5, "UNSIGNED-PAYLOAD")
    assert await received(prepared) == b"hello"
    assert {"x-amz-trailer", "x-amz-decoded-content-length", "content-encoding", "content-length"} <= prepared.dropped
    prepared.close()


@pytest.mark.parametrize("name", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
async def test_wrong_trailer_is_refused_at_once(name: str) -> None:
    """A checksum that does not match the bytes gets BadDigest before the origin is contacted."""
    sizes = {"crc64nvme": 8, "sha1": 20, "sha256": 32}
    name, value = f"x-amz-checksum-{name}", b64encode(bytes(sizes.get(name, 4))).decode()
    body = with_trailer(b"hello", name, value)
    code = await refused_at_once(claim(TRAILER_FORM), lengths(body, decoded=5, x_amz_trailer=name), body)
    assert code == "BadDigest"


async def test_impossible_trailer_value() -> None:
    """A trailer that is not a checksum gets InvalidRequest."""
    body = with_trailer(b"hello", "x-amz-checksum-crc32", "nonsense")
    headers = lengths(body, decoded=5, x_amz_trailer="x-amz-checksum-crc32")
    assert await refused_at_once(claim(TRAILER_FORM), headers, body) == "InvalidRequest"


async def test_signed_trailer(tmp_path: Path) -> None:
    """Signed chunks with a signed trailer are verified whole; a changed trailer is refused."""
    line = f"x-amz-checksum-crc32:{crc(b'hello')}\n".encode()
    chunks = signed_chunks([b"hello"])[:-2]
    last = chunks[-66:-2]
    seal = sigv4.trailer_signature(KEY, SIGNER.amz_date, SIGNER.scope, last, line)
    body = chunks + line.replace(b"\n", b"\r\n") + b"x-amz-trailer-signature:" + seal + b"\r\n\r\n"
    auth = claim(PayloadForm.SIGNED_CHUNKS_TRAILER, signer=SIGNER)
    headers = lengths(body, decoded=5, x_amz_trailer="x-amz-checksum-crc32")
    prepared = await prepare(auth, headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == b"hello"
    assert prepared.headers == (("x-amz-checksum-crc32", crc(b"hello")),)
    forged = body.replace(b"trailer-signature:", b"trailer-signature:0")
    assert await refused_at_once(auth, headers, forged) == "SignatureDoesNotMatch"


async def test_trailer_after_nothing(tmp_path: Path) -> None:
    """A zero-byte body is one empty chunk and its trailer."""
    body = with_trailer(b"", "x-amz-checksum-crc32", crc(b""))
    headers = lengths(body, decoded=0, x_amz_trailer="x-amz-checksum-crc32")
    prepared = await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert (await received(prepared), prepared.headers) == (b"", (("x-amz-checksum-crc32", crc(b"")),))


async def test_trailers_are_checksums_only() -> None:
    """A trailer may not bring any other header."""
    headers = lengths(b"", decoded=0, x_amz_trailer="x-amz-meta-a")
    assert await refused_at_once(claim(TRAILER_FORM), headers) == "InvalidRequest"


async def test_checksum_in_header_and_trailer() -> None:
    """A checksum in both the header and the trailer gets InvalidRequest."""
    headers = lengths(b"", decoded=0, x_amz_trailer="x-amz-checksum-crc32", x_amz_checksum_crc32="AAAAAA==")
    assert await refused_at_once(claim(TRAILER_FORM), headers) == "InvalidRequest"


@pytest.mark.parametrize(
    ("value", "code"), [(b64encode(md5(b"other").digest()).decode(), "BadDigest"), ("short", "InvalidDigest")]
)
async def test_content_md5_of_a_whole_body(value: str, code: str) -> None:
    """A body that is read whole is checked against Content-MD5 too."""
    body = with_trailer(b"hello", "x-amz-checksum-crc32", crc(b"hello"))
    headers = lengths(body, decoded=5, x_amz_trailer="x-amz-checksum-crc32", content_md5=value)
    assert await refused_at_once(claim(TRAILER_FORM), headers, body) == code


async def test_composite_checksum_header_is_left_to_the_origin(tmp_path: Path) -> None:
    """A checksum of checksums cannot be computed from one body, so it passes."""
    body = with_trailer(b"hello", "x-amz-checksum-crc32c", b64encode(crt.crc32c(b"hello").to_bytes(4, "big")).decode())
    headers = lengths(body, decoded=5, x_amz_trailer="x-amz-checksum-crc32c", x_amz_checksum_crc32="AAAAAA==-3")
    prepared = await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == b"hello"


async def test_chunked_transfer_around_chunks(tmp_path: Path) -> None:
    """Transfer-Encoding: chunked around aws-chunked needs no Content-Length (the AWS C++ SDK sends so)."""
    body = with_trailer(b"hello", "x-amz-checksum-crc32", crc(b"hello"))
    headers = [pair for pair in lengths(body, decoded=5, transfer_encoding="chunked", x_amz_trailer="x-amz-checksum-crc32")
               if pair[0] != b"content-length"]  # fmt: skip
    prepared = await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == b"hello"


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        (PayloadForm.UNSIGNED, {}),
        (PayloadForm.UNSIGNED, {"transfer-encoding": "chunked"}),
        (PayloadForm.HASHED, {"transfer-encoding": "chunked", "x-amz-decoded-content-length": "5"}),
        (TRAILER_FORM, {"content-length": "40"}),
        (TRAILER_FORM, {"transfer-encoding": "chunked"}),
    ],
)
async def test_missing_length(form: PayloadForm, headers: dict[str, str]) -> None:
    """S3 takes no upload whose length it does not know: 411."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert await refused_at_once(claim(form, "0" * 64), raw) == "MissingContentLength"


async def test_request_without_any_length_has_no_body(tmp_path: Path) -> None:
    """Requests other than uploads may come without a length and then have no body (RFC 9112, section 6.3)."""
    auth = claim(PayloadForm.HASHED, sigv4.EMPTY_SHA256)
    prepared = await prepare(auth, [], arriving(), partial(SpoolPlace, tmp_path), MAX_SPOOL, uploads=False)
    assert (prepared.length, await received(prepared)) == (0, b"")


@pytest.mark.parametrize("length", ["-1", "five", "", "1" * 30, "\u0665"])
async def test_unreadable_length(length: str) -> None:
    """A length that is not a number gets InvalidArgument."""
    headers = [(b"content-length", length.encode())]
    assert await refused_at_once(claim(PayloadForm.UNSIGNED), headers) == "InvalidArgument"


async def test_too_large_to_be_read_whole() -> None:
    """An upload that would have to be kept beyond max_spool is refused before any of it is read."""

    read: list[bool] = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(True)
        yield b""

    headers = lengths(b"", decoded=101, x_amz_trailer="x-amz-checksum-crc32")
    with pytest.raises(S3Error) as refused:
        await prepare(claim(TRAILER_FORM), headers, watched(), lambda: SpoolPlace(None), 100)
    assert refused.value.code == "EntityTooLarge"
    assert not read


async def test_large_body_waits_in_a_file(tmp_path: Path) -> None:
    """A body beyond a mebibyte is kept in an unnamed file, can be sent twice, and is deleted by close."""
    data = os.urandom(3 * 1024 * 1024 + 17)
    body = with_trailer(data, "x-amz-checksum-crc32", crc(data))
    headers = lengths(body, decoded=len(data), x_amz_trailer="x-amz-checksum-crc32")
    parts = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
    prepared = await prepare(claim(TRAILER_FORM), headers, arriving(*parts), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert len(open_files(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    assert await received(prepared) == data
    assert await received(prepared) == data
    prepared.close()
    prepared.close()
    await closer.done()
    assert len(open_files(tmp_path)) == 0


async def test_refused_body_leaves_no_file(tmp_path: Path) -> None:
    """A body that fails verification is freed at once."""
    data = bytes(2 * 1024 * 1024)
    body = with_trailer(data, "x-amz-checksum-crc32", "AAAAAA==")
    headers = lengths(body, decoded=len(data), x_amz_trailer="x-amz-checksum-crc32")
    with pytest.raises(S3Error, match="BadDigest"):
        await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    await closer.done()
    assert len(open_files(tmp_path)) == 0


class _Raw:
    def stream(self) -> list[bytes]:
        return []


def sent_by_boto3(endpoint: str, data: bytes, **parameters: Any) -> tuple[WireRequest, bytes]:
    """The request that boto3 would send for a PutObject, captured without a network."""
    seen: list[tuple[WireRequest, bytes]] = []

    def capture(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        parts = urlsplit(request.url)
        headers = []
        for name, value in request.headers.items():
            headers.append((name.lower().encode(), value if isinstance(value, bytes) else str(value).encode()))
        body = request.body if isinstance(request.body, bytes) else request.body.read()
        seen.append((WireRequest(request.method, parts.path.encode(), parts.query.encode(), headers), body))
        return AWSResponse(request.url, 200, {"ETag": '"x"'}, _Raw())

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="AK",
        aws_secret_access_key="secret",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.meta.events.register("before-send.s3", capture)
    client.put_object(Bucket="b", Key="k", Body=data, **parameters)
    return seen[0]


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://127.0.0.1:9000"])
@pytest.mark.parametrize("size", [0, 5, 300_000, 2_500_000])
async def test_what_boto3_sends(endpoint: str, algorithm: str, size: int, tmp_path: Path) -> None:
    """boto3's uploads, hashed over http and with a trailer over https, are verified and decoded unchanged."""
    data = os.urandom(size)
    request, body = sent_by_boto3(endpoint, data, ChecksumAlgorithm=algorithm, ContentEncoding="gzip")
    settings = Settings(
        origins=(Origin(endpoint="http://127.0.0.1:5000"),),
        credentials=(Credential(access_key_id="AK", secret_access_key="secret"),),
    )
    auth = Authenticator(settings).authenticate(request, time.time())
    expected = PayloadForm.UNSIGNED_CHUNKS_TRAILER if endpoint.startswith("https") else PayloadForm.HASHED
    assert auth.payload_form is expected
    parts = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    prepared = await prepare(auth, request.headers, arriving(*parts), partial(SpoolPlace, tmp_path), MAX_SPOOL)
    assert await received(prepared) == data
    assert prepared.length == size
    assert ("Content-Encoding", "gzip") in prepared.headers
    named = {name for name, _ in prepared.headers} | {name.decode() for name, _ in request.headers}
    assert f"x-amz-checksum-{algorithm.lower()}" in named
    prepared.close()


async def test_spool_directory_that_is_gone(tmp_path: Path) -> None:
    """If the spool directory is unusable, the system's temporary directory is used."""
    data = bytes(2 * 1024 * 1024)
    body = with_trailer(data, "x-amz-checksum-crc32", crc(data))
    headers = lengths(body, decoded=len(data), x_amz_trailer="x-amz-checksum-crc32")
    prepared = await prepare(
        claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path / "gone"), MAX_SPOOL
    )
    assert await received(prepared) == data
    prepared.close()


async def test_no_room_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any place for the body the upload is refused, not broken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "neither"))
    data = bytes(2 * 1024 * 1024)
    body = with_trailer(data, "x-amz-checksum-crc32", crc(data))
    headers = lengths(body, decoded=len(data), x_amz_trailer="x-amz-checksum-crc32")
    with pytest.raises(S3Error) as refused:
        await prepare(claim(TRAILER_FORM), headers, arriving(body), partial(SpoolPlace, tmp_path / "gone"), MAX_SPOOL)
    assert refused.value.code == "ServiceUnavailable"
