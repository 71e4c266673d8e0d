"""Parsing of requests: input that reaches the application, and input refused before it."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.parsing import MAX_HEAD
from gateway.server.protocol import GatewayProtocol, _decoded
from tests.server.applications import body, head
from tests.server.conftest import read_all, read_response, wait_until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def echo(scope, receive, send):
    """Answers with the request's body."""
    data, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        data, more = data + message["body"], message["more_body"]
    await send(head(len(data)))
    await send(body(data))


async def describe(scope, receive, send):
    """Answer with a description of the request."""
    text = repr((scope["method"], scope["raw_path"], scope["query_string"], scope["path"], scope["headers"])).encode()
    await send(head(len(text)))
    await send(body(text))


def test_headers_arrive_as_they_were_sent(start):
    """Rule: names are lower-cased, values, order and repetitions are untouched: signatures are verified over them."""
    answer = start(describe).ask(
        b"GET /b/k%2Fx?a=1&b HTTP/1.1\r\nHost: h:1\r\nX-B:  two  words\r\nx-b: 2\r\nConnection: close\r\n\r\n"
    )
    expected = (
        "('GET', b'/b/k%2Fx', b'a=1&b', '/b/k/x', "
        "[(b'host', b'h:1'), (b'x-b', b'two  words'), (b'x-b', b'2'), (b'connection', b'close')])"
    )
    assert answer.endswith(expected.encode())


@given(st.text(alphabet="%2Ff5E8c/a", max_size=12))
def test_a_path_is_decoded_like_any_other(path):
    """Rule: escaped slashes, which are decoded first, change nothing in what is decoded after them."""
    assert _decoded(path) == unquote(path)


@pytest.mark.parametrize(
    ("target", "raw_path", "query"),
    [
        (b"http://a.b:80/x/y?q=1", b"/x/y", b"q=1"),
        (b"http://a.b", b"/", b""),
        (b"http://a.b?q", b"/", b"q"),
        (b"//b//k/../x", b"//b//k/../x", b""),
        (b"/k?a?b", b"/k", b"a?b"),
    ],
)
def test_request_targets(start, target, raw_path, query):
    """Rule: origin and absolute form (RFC 9112 section 3.2) both give the path as sent, never normalised."""
    seen = []

    async def handler(scope, receive, send):
        seen.append((scope["raw_path"], scope["query_string"]))
        await describe(scope, receive, send)

    host = urlsplit(target).netloc if target.startswith(b"http:") else b"x"
    answer = start(handler).ask(b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host))
    assert answer.startswith(b"HTTP/1.1 200")
    assert seen == [(raw_path, query)]


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"NONSENSE\r\n\r\n", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"InvalidRequest"),
        (b"GET / HTTP/3.7\r\n\r\n", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\n\r\n", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", b"InvalidRequest"),
        (b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", b"InvalidRequest"),
        (b"GET http://a.b/ HTTP/1.1\r\nhost: c.d\r\n\r\n", b"InvalidRequest"),
        ("GET /b/é HTTP/1.1\r\n\r\n".encode(), b"InvalidRequest"),
        (b"GET /b/\xff HTTP/1.1\r\n\r\n", b"InvalidRequest"),
        (b"PUT / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", b"InvalidRequest"),
        (b"CONNECT a.b:443 HTTP/1.1\r\nhost: a.b\r\n\r\n", b"MethodNotAllowed"),
        (b"FOO / HTTP/1.1\r\nhost: a.b\r\n\r\n", b"MethodNotAllowed"),
        (b"get / HTTP/1.1\r\nhost: a.b\r\n\r\n", b"MethodNotAllowed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"InvalidRequest"),
        (b"OPTIONS * HTTP/1.1\r\nhost: a.b\r\n\r\n", b"InvalidURI"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD + b"\r\n\r\n", b"RequestHeaderSectionTooLarge"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEAD // 4) + b"\r\n", b"RequestHeaderSectionTooLarge"),
        (b"GET /" + b"y" * 5 * MAX_HEAD, b"RequestHeaderSectionTooLarge"),
    ],
)
def test_unreadable_requests_are_refused_in_s3s_words(start, caplog, request_bytes, code):
    """Rule: input that is not HTTP, or too long, gets an S3 error document and a close; the application never sees it."""
    called = []

    async def handler(scope, receive, send):
        called.append(scope)

    answer = start(handler).ask(request_bytes)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 405"))
    assert b"<Code>" + code + b"</Code>" in answer
    assert b"connection: close\r\n" in answer
    assert not called
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_a_client_that_speaks_tls_is_told_of(start, caplog):
    """Rule: https:// to a plain address is refused like other noise; the log names the cause, once a minute."""
    server = start(describe)
    for _ in range(2):
        assert server.ask(b"\x16\x03\x01\x02\x00\x01" + b"\0" * 512).startswith(b"HTTP/1.1 400")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["a client speaks TLS to this plain address: give clients http://, or set server.tls_cert"]


def test_http_1_0_needs_no_host(start):
    """Rule: a Host header came with HTTP/1.1 (RFC 9112 section 3.2)."""
    assert start(describe).ask(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_white_space_around_a_value_is_no_part_of_it(start):
    """Rule: verification and classification use the value without surrounding whitespace (RFC 9110 section 5.5)."""
    answer = start(describe).ask(b"GET / HTTP/1.1\r\nhost: x\r\nx-a: \t b c \t \r\nconnection: close\r\n\r\n")
    assert b"(b'x-a', b'b c')" in answer


def test_an_unreadable_request_waits_for_the_answers_before_it(start):
    """Rule: pipelined requests in front of a malformed one are answered first."""
    answer = start(echo).ask(GET + b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nokBROKEN\r\n\r\n")
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"400"]


def test_a_malformed_chunk_refuses_the_request_and_disconnects_the_application(start):
    """Rule: a body that stops being HTTP never looks complete to the application."""
    seen = []

    async def handler(scope, receive, send):
        while (message := await receive())["type"] == "http.request":
            seen.append(message["more_body"])
        seen.append(message["type"])

    with start(handler).connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
        wait_until(lambda: seen)
        sock.sendall(b"zz\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")
    wait_until(lambda: seen[-1:] == ["http.disconnect"])
    assert False not in seen


def test_trailers_are_no_headers(start):
    """Rule: trailers are dropped (RFC 9110 section 6.5.1): the headers were verified without them."""
    kept = []

    async def handler(scope, receive, send):
        await echo(scope, receive, send)
        kept.extend(name for name, _ in scope["headers"])

    running = start(handler)
    head_bytes = b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with running.connect() as sock:
        sock.sendall(head_bytes + b"2\r\nok\r\n0\r\nx-late: 1\r\n\r\n" + GET)
        assert read_response(sock)[1] == b"ok"
        assert read_response(sock)[0].startswith(b"HTTP/1.1 200")
    wait_until(lambda: len(kept) >= 3)
    assert kept == [b"host", b"transfer-encoding", b"host"]


@pytest.mark.parametrize("endless", [b"2\r\nok\r\n0\r\nx: ", b"2\r\nok\r\n0\r\n" + b"x: y\r\n" * 10_000, b"2;"])
def test_trailers_and_chunk_extensions_are_bounded(start, endless):
    """Rule: the framing of a chunked body is bounded by the limit of a request's head."""
    head_bytes = b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = start(echo).ask(head_bytes + endless + b"y" * 20 * MAX_HEAD)
    assert b"<Code>RequestHeaderSectionTooLarge</Code>" in answer


def test_single_bytes_in_chunks_of_their_own_are_no_overhead(start):
    """Rule: the bound excludes the body: it may come in the smallest of chunks, each with an extension."""
    chunks = b"1;name=value\r\ny\r\n" * (2 * MAX_HEAD // 10) + b"0\r\n\r\n"
    head_bytes = b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with start(echo).connect() as sock:
        sock.sendall(head_bytes + chunks)
        assert len(read_response(sock)[1]) == 2 * MAX_HEAD // 10


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
@pytest.mark.parametrize("payload", [b"", b"hello"])
def test_upgrade_offers_are_ignored(start, offer, payload):
    """Rule: a request that offers an upgrade is served as if it did not (RFC 9110 section 7.8), body included."""
    request = (
        b"PUT / HTTP/1.1\r\nhost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + offer
        + b"\r\nHTTP2-Settings: AAMAAABk\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload
    )  # fmt: skip
    headers = []

    async def handler(scope, receive, send):
        headers.append([name for name, _ in scope["headers"]])
        await echo(scope, receive, send)

    with start(handler).connect() as sock:
        for _ in range(2):
            sock.sendall(request * 2)
            for _ in range(2):
                head_bytes, got = read_response(sock)
                assert head_bytes.startswith(b"HTTP/1.1 200")
                assert got == payload
    assert headers == [[b"host", b"connection", b"upgrade", b"http2-settings", b"content-length"]] * 4


def test_large_bodies_arrive_whole_and_wait_for_the_application(start):
    """Rule: a body is read as fast as the application takes it, and completely."""
    payload = bytes(range(256)) * 40_000
    with start(echo).client() as client:
        for _ in range(2):
            client.request("PUT", "/", body=payload)
            assert client.getresponse().read() == payload


def test_continue_is_sent_when_the_application_wants_the_body(start):
    """Rule: 100 Continue is sent at the first receive (RFC 9110 section 10.1.1), and the connection stays usable."""
    with start(echo).connect() as sock:
        for _ in range(2):
            sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
            assert read_response(sock)[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(b"hi")
            assert read_response(sock)[1] == b"hi"


def test_continue_is_sent_before_an_empty_body_too(start):
    """Rule: a client that expects 100 Continue gets it; botocore would misread the next answer otherwise."""
    with start(echo).connect() as sock:
        for _ in range(2):
            sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 0\r\n\r\n")
            assert read_response(sock)[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert read_response(sock)[0].startswith(b"HTTP/1.1 200")


def test_continue_is_for_http_1_1(start):
    """Rule: the expectation of a client of HTTP/1.0, which would take 100 Continue for its answer, is ignored."""
    asked = threading.Event()

    async def handler(scope, receive, send):
        asked.set()
        await echo(scope, receive, send)

    with start(handler).connect() as sock:
        sock.sendall(b"PUT / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert asked.wait(20)
        sock.sendall(b"hi")
        assert read_response(sock)[0].startswith(b"HTTP/1.1 200")


def test_white_space_after_an_expectation_is_no_part_of_it(start):
    """Rule: a client that writes a blank after 100-continue gets it too."""
    with start(echo).connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue \r\ncontent-length: 2\r\n\r\n")
        assert read_response(sock)[0] == b"HTTP/1.1 100 Continue\r\n\r\n"


async def _refusing(scope, receive, send):
    await send(head(2, status=403))
    await send(body(b"no"))


def test_a_refusal_comes_without_100_continue_and_closes(start):
    """Rule: an application that answers without reading gets no 100 in front, and the connection ends."""
    answer = start(_refusing).ask(b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\nno")


def test_a_refusal_of_an_empty_body_closes_as_well(start):
    """Rule: without the expected 100 Continue the connection ends, even if no byte is left to read."""
    answer = start(_refusing).ask(b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"connection: close\r\n" in answer


def test_an_unwanted_body_does_not_cost_the_client_its_answer(start):
    """Rule: a client that sends everything before it reads still sees the refusal (RFC 9112 section 9.6)."""
    running = start(_refusing)
    size = 20 * 1024**2
    with running.connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        sock.sendall(bytes(size))
        assert read_all(sock).startswith(b"HTTP/1.1 403")
    wait_until(lambda: not running.server.server_state.connections)


def test_a_read_body_keeps_the_connection(start):
    """Rule: an answer given before the body was read, but after it arrived, does not end the connection."""
    with start(_refusing).connect() as sock:
        for _ in range(2):
            sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi")
            assert b"connection: close" not in read_response(sock)[0]


class Impatient(GatewayProtocol):
    """Timeouts short enough to wait for."""

    head_timeout = body_timeout = linger_timeout = 0.2


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nx: ", b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"]
)
def test_requests_that_never_end_are_given_up(start, sent):
    """Rule: a head or an awaited body that stops coming is answered RequestTimeout."""
    assert b"<Code>RequestTimeout</Code>" in start(echo, protocol=Impatient).ask(sent)


def test_a_trickle_of_header_bytes_does_not_extend_the_deadline(start):
    """Rule: the time for a head counts from its beginning, however slowly bytes keep coming (slow loris)."""
    with start(echo, protocol=Impatient).connect() as sock:
        sock.settimeout(0.02)
        answer = b""
        for piece in [b"GET / HTTP/1.1\r\nx: "] + [b"y"] * 1000:
            try:
                sock.sendall(piece)
                answer += sock.recv(1000)
            except TimeoutError:
                continue
            if answer:
                break
    assert b"RequestTimeout" in answer


@pytest.mark.parametrize("before", [b"", GET], ids=["fresh", "used"])
def test_idle_connections_are_closed(start, before):
    """Rule: a connection without a request ends after its time, silently."""
    with start(echo, protocol=Impatient, timeout_keep_alive=0.2).connect() as sock:
        if before:
            sock.sendall(before)
            assert read_response(sock)[0].startswith(b"HTTP/1.1 200")
        assert read_all(sock) == b""


def test_a_client_that_never_stops_sending_an_unwanted_body_is_closed(start):
    """Rule: the wait for an unwanted body is bounded in time."""
    running = start(_refusing, protocol=Impatient)
    with running.connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 403")
        wait_until(lambda: not running.server.server_state.connections)


def test_a_deadline_does_not_cut_a_slow_application(start):
    """Rule: timeouts are for clients; an application may take its time."""

    async def handler(scope, receive, send):
        await receive()
        await asyncio.sleep(1)
        await send(head(2))
        await send(body(b"ok"))

    assert start(handler, protocol=Impatient, timeout_keep_alive=0.2).get("/")[1] == b"ok"


def test_a_deadline_does_not_cut_an_upload_that_the_application_holds_up(start):
    """Rule: the time between two pieces of a body counts only while the application waits for one."""
    pieces = []
    resting, rested = threading.Event(), threading.Event()

    async def handler(scope, receive, send):
        pieces.append((await receive())["body"])
        pieces.append((await receive())["body"])
        resting.set()
        await asyncio.sleep(1)
        rested.set()
        pieces.append((await receive())["body"])
        await send(head(0))
        await send(body(b""))

    with start(handler, protocol=Impatient).connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\naa")
        wait_until(lambda: pieces)
        sock.sendall(b"bb")
        assert resting.wait(20)
        assert rested.wait(20)
        sock.sendall(b"cc")
        assert read_response(sock)[0].startswith(b"HTTP/1.1 200")
    assert pieces == [b"aa", b"bb", b"cc"]


def test_overload_answers_slow_down_and_spares_the_health_pages(start):
    """Rule: above the limit, S3 requests get 503 SlowDown with Retry-After; /-/ is still answered."""
    release = threading.Event()

    async def handler(scope, receive, send):
        if scope["path"] == "/wait":
            await asyncio.to_thread(release.wait, 20)
        await send(head(2))
        await send(body(b"ok"))

    running = start(handler, limit_concurrency=1)
    with running.connect() as waiting:
        waiting.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: running.server.server_state.tasks)
        response, text = running.get("/bucket/key")
        assert (response.status, response.getheader("retry-after")) == (503, "1")
        assert b"<Code>SlowDown</Code>" in text
        assert running.get("/-/healthz")[0].status == 200
        release.set()
        assert read_response(waiting)[1] == b"ok"


def test_http_10_gets_a_body_that_ends_with_the_connection(start):
    """Rule: HTTP/1.0 clients know no chunks (RFC 9112 section 6.1)."""

    async def handler(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(body(b"a", True))
        await send(body(b"b"))

    answer = start(handler).ask(b"GET / HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nab")
    assert b"chunked" not in answer
