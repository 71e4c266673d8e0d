"""Invalid requests to a real gateway before a fake origin: S3's answers, and effects that must never occur."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rig.gateways import Settings, gateway
from rig.origin import OriginThread
from tests.fuzz.corpus import UNSIGNED_TRAILER, chunks_of, raw, sign, url
from tests.fuzz.world import BODIES, BUCKET, READ, World, world

LIMITED, LIMITED_SECRET = "LIMITED", "limited-secret"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway; at the end nothing may have happened that never may."""
    with world(tmp_path_factory.mktemp("bad")) as attacked:
        yield attacked
        attacked.inspect()


def ask(
    target: World, method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    """The whole answer to a request signed and sent without normalisation."""
    return target.send([raw(sign(target, method, path, query, headers or {}), body)], complete=True)


def unsigned(target: World, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """The whole answer to a request without a signature."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {target.host}",
        *headers,
        *([f"Content-Length: {len(body)}"] if body else []),
    ]
    return target.send(["\r\n".join([*lines, "", ""]).encode() + body])


def outcome(answer: bytes) -> tuple[int, str]:
    """Status and S3 code."""
    code = re.search(rb"<Code>(\w+)</Code>", answer)
    return int(answer[9:12]), code[1].decode() if code else ""


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND"])
def test_methods_that_s3_does_not_have(target: World, method: str) -> None:
    """Rule: 405 MethodNotAllowed, and the methods there are (RFC 9110, 15.5.6)."""
    answer = ask(target, method, "/bucket/plain.bin")
    assert outcome(answer) == (405, "MethodNotAllowed")
    assert b"\r\nallow: DELETE, GET, HEAD, OPTIONS, POST, PUT\r\n" in answer


FORM = b'--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nformed\r\n--b--\r\n'
FORM_TYPE = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(("path", "code"), [("/bucket", "InvalidArgument"), ("/bucket/key", "MethodNotAllowed")])
def test_forms_that_are_signed_as_requests(target: World, path: str, code: str) -> None:
    """Rule: a form is signed by its fields, and no form is ever sent on as one: its key is in its body, where neither
    allow-list nor cache would see it."""
    assert outcome(ask(target, "POST", path, "", {"content-type": FORM_TYPE}, FORM))[1] == code
    assert target.origin.count("POST") == 0


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Type: text/plain", f"Content-Type: {FORM_TYPE}"),
        (f"Content-Type: {FORM_TYPE}", "Content-Type: text/plain"),
        (f"Content-Type: {FORM_TYPE.upper()}",),
        (f"Content-Type: {FORM_TYPE}", f"Content-Type: {FORM_TYPE}"),
    ],
)
@pytest.mark.parametrize("path", ["/bucket?delete", "/bucket/key?uploads"])
def test_requests_that_a_store_could_take_for_a_form(target: World, path: str, headers: tuple[str, ...]) -> None:
    """Rule: a request that a store could read as a form is not forwarded as another operation."""
    assert outcome(unsigned(target, "POST", path, *headers, body=FORM))[0] in (400, 405)
    assert target.origin.count("POST") == 0


def test_a_preflight_is_the_origins_to_answer(target: World) -> None:
    """Rule: CORS rules live in the bucket, so OPTIONS is forwarded unsigned with the browser's headers."""
    unsigned(target, "OPTIONS", "/bucket/plain.bin", "Origin: http://page", "Access-Control-Request-Method: PUT")
    seen = [each for each in target.origin.seen if each.method == "OPTIONS"][-1]
    assert seen.header("origin") == "http://page"
    assert seen.header("access-control-request-method") == "PUT"
    assert seen.header("authorization") == ""


def test_trailers_of_the_transfer_are_no_headers(target: World) -> None:
    """Rule: a trailer arrives after signature and rights were checked, so it is dropped: here it names a copy source."""
    key, body = "signed/late", BODIES[2]
    head, frames = chunks_of(target, key, body, UNSIGNED_TRAILER, 1000, {"expect": "100-continue"})
    head.headers.append((b"transfer-encoding", b"chunked"))
    encoded = b"".join(frames)
    with socket.create_connection(("127.0.0.1", target.gateway.port), timeout=30) as sock:
        sock.sendall(raw(head, length=False))
        # The application asks for the body only when it has verified the head.
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        trailer = b"x-amz-copy-source: /bucket/plain.bin\r\nx-amz-meta-a: b\r\n"
        sock.sendall(b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(encoded), encoded, trailer))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    stored = target.origin.buckets.objects[BUCKET][key]
    assert stored.body == body
    seen = [each for each in target.origin.seen if each.raw_path.endswith(key)][-1]
    assert (seen.header("x-amz-copy-source"), seen.header("x-amz-meta-a")) == ("", "")


@pytest.mark.parametrize("expires", ["--5", "-", "5-", "1e3", "%C2%B2", "+5", ""])
def test_expiry_that_is_no_number(target: World, expires: str) -> None:
    """Rule: any invalid expiry gets AuthorizationQueryParametersError, as from S3."""
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=GWA%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=a"
        f"&X-Amz-Date=20260101T000000Z&X-Amz-SignedHeaders=host&X-Amz-Expires={expires}"
    )
    assert outcome(unsigned(target, "GET", f"/bucket/x?{query}")) == (400, "AuthorizationQueryParametersError")


@pytest.mark.parametrize("name", ["x-amz-copy-source", "range", "x-amz-date", "x-amz-security-token", "content-md5"])
def test_headers_of_which_one_would_be_checked_and_the_other_obeyed(target: World, name: str) -> None:
    """Rule: a request that repeats a decisive header is refused."""
    request = raw(target.signer.header("GET", url(target, "plain.bin"))).removesuffix(b"\r\n")
    twice = f"{name}: a\r\n{name}: b\r\n\r\n".encode()
    assert outcome(target.send([request + twice])) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("../../etc/passwd", READ["../../etc/passwd"]),
        ("%2e%2e/%2e%2e/etc/passwd", READ["../../etc/passwd"]),
        ("-/healthz", b"an object"),
        ("/-/x", b"another"),
        ("a//b/./c/", b"slashes"),
    ],
)
def test_keys_that_look_like_paths_are_keys(target: World, key: str, body: bytes) -> None:
    """Rule: a key is a name: dots and slashes in it lead nowhere, cold and warm, and reach the origin as sent."""
    for name, content in (("-/healthz", b"an object"), ("/-/x", b"another"), ("a//b/./c/", b"slashes")):
        target.origin.put(BUCKET, name, content)
    for _ in range(2):
        answer = ask(target, "GET", f"/{BUCKET}/{key}")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    "path", ["/%2d/healthz", "/../x", "/.%2e/x", "/bu%2fcket/x", "/b%00/x", "/b%0d%0aucket/x", "/" + "b" * 256]
)
def test_names_that_no_bucket_has(target: World, path: str) -> None:
    """Rule: an impossible bucket name is refused before the origin is asked."""
    before = len(target.origin.seen)
    assert outcome(ask(target, "GET", path)) == (400, "InvalidBucketName")
    assert len(target.origin.seen) == before


def test_keys_have_at_most_1024_bytes(target: World) -> None:
    """Rule: 1,024 bytes of UTF-8 pass, 1,025 are KeyTooLongError, however they are spelled."""
    assert outcome(ask(target, "PUT", "/bucket/" + "k" * 1024)) == (200, "")
    assert outcome(ask(target, "PUT", "/bucket/" + "%C3%A4" * 512)) == (200, "")
    assert outcome(ask(target, "PUT", "/bucket/" + "k" * 1025)) == (400, "KeyTooLongError")
    assert outcome(ask(target, "PUT", "/bucket/%C3%A4" + "k" * 1023)) == (400, "KeyTooLongError")


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_write_with_an_unknown_parameter_does_nothing(target: World, method: str) -> None:
    """Rule: 501 NotImplemented naming the parameter, and the origin is not asked."""
    before = len(target.origin.seen)
    answer = ask(target, method, "/bucket/plain.bin", "taging")
    assert outcome(answer) == (501, "NotImplemented")
    assert b"'taging'" in answer
    assert len(target.origin.seen) == before


@pytest.mark.parametrize("header", ["bytes=-0", "bytes=5000-", "bytes=99999999999999-"])
def test_ranges_beyond_the_object(target: World, header: str) -> None:
    """Rule: 416 InvalidRange with the size, cold and warm."""
    for _ in range(2):
        answer = ask(target, "GET", "/bucket/plain.bin", "", {"range": header})
        assert outcome(answer) == (416, "InvalidRange")
        assert b"\r\ncontent-range: bytes */5000\r\n" in answer.lower()


@pytest.mark.parametrize(
    "document",
    [
        b"<Delete>",
        b"\xff\xfe<",
        b"<a>" * 50_000,
        b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>',
    ],
)
def test_malformed_documents(target: World, document: bytes) -> None:
    """Rule: MalformedXML, and the origin is not asked."""
    before = len(target.origin.seen)
    assert outcome(ask(target, "POST", "/bucket", "delete", body=document)) == (400, "MalformedXML")
    assert len(target.origin.seen) == before


def test_the_host_of_a_request_changes_no_destination(target: World) -> None:
    """Rule: absolute targets, Host and forwarding headers name the client's view only; the origin is the configured one."""
    request = raw(target.signer.header("GET", f"http://{target.stranger}/{BUCKET}/sub/x"))
    target.send([request.replace(b"GET /", f"GET http://{target.stranger}/".encode())])
    target.send([request[:-2] + f"X-Forwarded-Host: {target.stranger}\r\n\r\n".encode()])
    assert target.origin.count("GET", "/bucket/sub/x") >= 1
    target.inspect()


@contextmanager
def _babbler() -> Iterator[int]:
    """A server that answers everything with bytes that are not HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"\x00\x01 this is not HTTP\r\n\r\n")

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_an_origin_that_babbles_makes_nobody_tell_its_secrets(tmp_path: Path) -> None:
    """Rule: if the origin's answer is unreadable, neither the client nor the log gets the session token and the signature that
    the gateway sent."""
    with _babbler() as port:
        settings = Settings(f"http://127.0.0.1:{port}", tmp_path / "cache")
        settings.credentials = (
            {
                **settings.credentials[0],
                "origin_access_key_id": "OK",
                "origin_secret_access_key": "origin-secret",
                "origin_session_token": "origin-session-token",
            },
        )
        with gateway(settings, tmp_path) as running:
            client = running.client()
            with pytest.raises(client.exceptions.ClientError) as refused:
                client.get_object(Bucket="b", Key="k")
            error = json.dumps(refused.value.response, default=str)
        log = running.log.read_text()
    assert "ServiceUnavailable" in error
    for secret in ("origin-session-token", "Signature=", "origin-secret"):
        assert secret not in error
        assert secret not in log


def test_an_allow_list_is_not_outwitted_by_a_second_prefix(tmp_path: Path) -> None:
    """Rule: a request that repeats a parameter is refused, because stores differ in which of two prefixes counts."""
    with OriginThread() as origin:
        origin.put(BUCKET, "secret/x", b"x")
        settings = Settings(origin.endpoint, tmp_path / "cache")
        limited = {"access_key_id": LIMITED, "secret_access_key": LIMITED_SECRET, "allow": ["bucket/open/**"]}
        settings.credentials = (*settings.credentials, limited)
        with gateway(settings, tmp_path) as running:
            signer = running.client(LIMITED, LIMITED_SECRET)
            address = signer.generate_presigned_url("list_objects_v2", {"Bucket": BUCKET, "Prefix": "open/"})
            assert outcome(_fetch(running.port, address)) == (200, "")
            signer.meta.events.register("before-sign.s3.ListObjectsV2", _second_prefix)
            address = signer.generate_presigned_url("list_objects_v2", {"Bucket": BUCKET, "Prefix": "open/"})
            assert "prefix=secret" in address
            assert outcome(_fetch(running.port, address)) == (400, "InvalidRequest")


def _second_prefix(request, **_):
    request.url += "&prefix=secret%2F"


def _fetch(port: int, address: str) -> bytes:
    target = "/" + address.split("/", 3)[3]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer
