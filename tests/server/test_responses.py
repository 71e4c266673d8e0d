"""Responses end complete or broken; a truncated one never looks complete."""

from __future__ import annotations

import asyncio

import pytest

from gateway.model.errors import BrokenBody, OriginUnavailable, S3Error
from gateway.server.head import encode_head
from gateway.server.protocol import GatewayProtocol
from tests.server.applications import body, head
from tests.server.conftest import read_all, read_response, wait_until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def _encode(*headers, status=200, method="GET", http_10=False, keep_alive=True):
    return encode_head(status, headers, method=method, http_10=http_10, keep_alive=keep_alive)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x", b"a\r\nset-cookie: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x: y", b"a"),
        (b"", b"a"),
        (b"content-length", b"-1"),
        (b"content-length", b"1, 1"),
        (b"transfer-encoding", b"gzip"),
    ],
)
def test_headers_cannot_split_a_response(name, value):
    """Rule: a header that would change where the head or the body ends is refused (CWE-113)."""
    with pytest.raises(ValueError, match="header"):
        _encode((b"etag", b'"a"'), (name, value), (b"date", b"now"))


def test_one_framing_at_most():
    """Rule: two lengths, or a length and chunks, are refused (RFC 9112 section 6.3)."""
    with pytest.raises(ValueError, match="framing"):
        _encode((b"content-length", b"1"), (b"Content-Length", b"1"))
    with pytest.raises(ValueError, match="both a content-length and a transfer-encoding"):
        _encode((b"content-length", b"1"), (b"transfer-encoding", b"chunked"))


def test_spelling_and_order_of_headers_are_kept():
    """Rule: headers keep the origin's spelling and order."""
    encoded = _encode((b"ETag", b'"a"'), (b"x-amz-meta-B", b""), (b"Content-Length", b"0"))
    assert encoded.data == b'HTTP/1.1 200 OK\r\nETag: "a"\r\nx-amz-meta-B: \r\nContent-Length: 0\r\n\r\n'
    assert (encoded.length, encoded.chunked, encoded.close) == (0, False, False)


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_get_no_framing(status):
    """Rule: 204 and 304 end with their head (RFC 9110 section 6.4.1)."""
    encoded = _encode(status=status)
    assert encoded.bodiless
    assert b"transfer-encoding" not in encoded.data


def test_a_304_may_tell_the_length_of_what_it_does_not_send(start):
    """Rule: a content-length on 304 announces no body, and the connection stays open."""

    async def handler(scope, receive, send):
        await send(head(1000, status=304))
        await send(body(b""))

    with start(handler).connect() as sock:
        sock.sendall(GET + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert read_all(sock).count(b"HTTP/1.1 304") == 2


def test_nothing_is_added_to_the_applications_headers(start):
    """Rule: date and server are the application's to say."""

    async def handler(scope, receive, send):
        await send(head(0, (b"x-a", b"b")))
        await send(body(b""))

    with start(handler).connect() as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-a: b\r\n\r\n"


async def _too_long(send):
    await send(head(3))
    await send(body(b"four"))


async def _too_long_later(send):
    await send(head(3))
    await send(body(b"thr", True))
    await send(body(b"ee"))


async def _too_short(send):
    await send(head(3))
    await send(body(b"tw"))


async def _never_completed(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send(body(b"a", True))


async def _fails(send):
    await _never_completed(send)
    raise ZeroDivisionError


async def _breaks(send):
    await _never_completed(send)
    raise BrokenBody("the origin broke off")


async def _loses_the_origin(send):
    await send(head(100))
    await send(body(b"a", True))
    raise OriginUnavailable("gone")


async def _breaks_before(send):
    raise BrokenBody("not even begun")


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_too_long, True),
        (_too_long_later, True),
        (_too_short, True),
        (_never_completed, True),
        (_fails, True),
        (_breaks, False),
        (_loses_the_origin, False),
        (_breaks_before, False),
    ],
)
def test_what_cannot_be_completed_is_reset(start, caplog, story, fault):
    """Rule: a response that began ends complete or by a reset; only faults of the program leave a traceback."""

    async def handler(scope, receive, send):
        await story(send)

    running = start(handler)
    with running.connect() as sock:
        sock.sendall(GET)
        with pytest.raises(ConnectionResetError):
            read_all(sock)
    wait_until(lambda: not running.server.server_state.tasks)
    assert [record.name for record in caplog.records if record.exc_info] == (["larder.server"] if fault else [])


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), S3Error("NoSuchKey")])
def test_a_failure_before_the_response_is_500_in_s3s_words(start, caplog, error):
    """Rule: an application that fails before it answered yields InternalError, once logged."""

    async def handler(scope, receive, send):
        raise error

    response, text = start(handler).get("/")
    assert response.status == 500
    assert b"<Code>InternalError</Code>" in text
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


def test_a_split_response_is_never_sent(start):
    """Rule: a header with a line break in it yields 500, not two responses."""

    async def handler(scope, receive, send):
        await send(head(0, (b"x-amz-meta-a", b"b\r\n\r\nHTTP/1.1 200 OK")))
        await send(body(b""))

    answer = start(handler).ask(GET)
    assert answer.startswith(b"HTTP/1.1 500")
    assert answer.count(b"HTTP/1.1") == 1


def test_disconnect_is_seen_while_waiting(start):
    """Rule: an application that waits on receive learns that the client left."""
    seen = []

    async def handler(scope, receive, send):
        seen.append((await receive())["type"])
        seen.append((await receive())["type"])

    running = start(handler)
    with running.connect() as sock:
        sock.sendall(GET)
        wait_until(lambda: seen == ["http.request"])
    wait_until(lambda: seen == ["http.request", "http.disconnect"])


def test_stopping_waits_for_a_file_under_way(start, make_file):
    """Rule: a server that stops finishes the responses it began, and closes idle connections at once."""
    file = make_file(16 * 1024**2)
    running = start(file.handler(), timeout_graceful_shutdown=30)
    idle = running.connect()
    with running.connect() as sock:
        sock.sendall(GET)
        wait_until(lambda: len(running.server.server_state.connections) == 2 and running.server.server_state.tasks)
        running.server.should_exit = True
        with idle:
            assert read_all(idle) == b""
        assert read_all(sock).partition(b"\r\n\r\n")[2] == file.data


def test_stopping_breaks_what_does_not_end(start):
    """Rule: when the time to drain is over, responses are broken off, not ended."""

    async def handler(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(body(b"a", True))
        await asyncio.Event().wait()

    running = start(handler, timeout_graceful_shutdown=0)
    with running.connect() as sock:
        sock.sendall(GET)
        assert sock.recv(10)
        running.server.should_exit = True
        with pytest.raises(ConnectionResetError):
            read_all(sock)


class Forgotten(GatewayProtocol):
    """A peer may stop reading for a second."""

    unread_timeout = 1.0


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_response_that_nobody_reads_is_given_up(start, make_file, zero_copy):
    """Rule: a peer that stops reading holds the response and its sources for a bounded time."""
    file = make_file(64 * 1024**2)

    async def copying(scope, receive, send):
        await send(head(len(file.data)))
        await send(body(file.data))

    running = start(file.handler() if zero_copy else copying, protocol=Forgotten)
    with running.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(1000)
        state = running.server.server_state
        wait_until(lambda: not state.connections and not state.tasks, 60.0)
