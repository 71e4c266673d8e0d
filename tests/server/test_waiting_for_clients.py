"""What a request holds while its client is waited for, and how long it is waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from gateway.model.datasets import ApiError
from gateway.policies.shares import Shares
from gateway.server.place import PLACE, RequestPlace
from gateway.server.protocol import GatewayProtocol
from tests.server.applications import body, head
from tests.server.conftest import read_all, read_response, wait_until


def placed(shares: Shares, answer: Callable) -> Callable:
    """An application whose requests have a place, as of an edge."""

    async def handler(scope, receive, send):
        assert shares.claim("vision")
        place = scope[PLACE] = RequestPlace(shares, "vision")
        try:
            await answer(scope, receive, send)
        finally:
            place.leave()

    return handler


def test_a_request_that_waits_for_its_body_holds_no_place(start):
    """Rule: unfinished uploads take no place, and take one again when their body comes."""
    shares, seen = Shares(10), []

    async def take(scope, receive, send):
        while (await receive())["more_body"]:
            seen.append(shares.used)
        seen.append(shares.used)
        await send(head(0))
        await send(body(b""))

    running = start(placed(shares, take))
    with running.connect() as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\naa")
        wait_until(lambda: seen and not shares.used)
        sock.sendall(b"bb")
        assert read_response(sock)[0].startswith(b"HTTP/1.1 200")
    assert seen == [1, 1]
    wait_until(lambda: not shares.used)


def test_a_request_that_waits_for_its_reader_holds_no_place(start):
    """Rule: an answer that the client does not take holds no place; a client that takes it gets all of it."""
    shares, size = Shares(10), 64 * 1024 * 1024
    working = threading.Event()

    async def give(scope, receive, send):
        await send(head(size))
        for start_ in range(0, size, 2**18):
            if start_ == 2**18:
                working.set()
            await send(body(bytes(2**18), more_body=start_ + 2**18 < size))

    running = start(placed(shares, give))
    with running.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert working.wait(20)
        wait_until(lambda: not shares.used)
        assert len(read_all(sock).partition(b"\r\n\r\n")[2]) == size
    wait_until(lambda: not shares.used)


async def test_a_body_that_comes_when_the_share_is_taken_is_refused() -> None:
    """Rule: a request that left its place takes it again only within its caller's share."""
    shares = Shares(1)
    assert shares.claim("vision")
    place = RequestPlace(shares, "vision")
    place.rest()
    assert shares.claim("speech")
    with pytest.raises(ApiError, match="SlowDown"):
        place.go_on_reading()
    place.leave()
    assert shares.held("speech") == shares.used == 1


async def echo(scope, receive, send):
    """Answer with the body."""
    data = b""
    while (message := await receive())["body"] or message["more_body"]:
        data += message["body"]
    await send(head(len(data)))
    await send(body(data))


class Strict(GatewayProtocol):
    """A rate that a test can fall short of at once."""

    body_timeout = unread_timeout = 0.4
    min_rate = 1e9


def test_a_body_that_trickles_is_refused(start):
    """Rule: a body that comes more slowly than the least rate is answered RequestTimeout, however steadily it comes."""
    with start(echo, protocol=Strict).connect() as sock:
        sock.settimeout(0.02)
        answer = b""
        sock.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(1000):
            try:
                sock.sendall(b"y")
                answer += sock.recv(1000)
            except TimeoutError:
                continue
            if answer:
                break
    assert b"<Code>RequestTimeout</Code>" in answer


def sipped(sock: socket.socket) -> int:
    """The bytes until the end of the stream, taken one by one."""
    count = 0
    while sock.recv(1):
        count += 1
    return count


def test_a_reader_that_takes_a_little_now_and_then_is_cut(start):
    """Rule: a client that takes its answer more slowly than the least rate is cut, although it never stops reading."""
    ends = []

    async def give(scope, receive, send):
        await send(head(2**30))
        try:
            while True:
                await send(body(bytes(2**18), more_body=True))
        except OSError as error:
            ends.append(error)
            raise

    with start(give, protocol=Strict).connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            sipped(sock)
    wait_until(lambda: ends)


def test_a_slow_application_is_not_taken_for_a_slow_reader(start):
    """Rule: only the time in which the client is waited for counts against it."""

    async def give(scope, receive, send):
        await send(head(6))
        await send(body(b"abc", more_body=True))
        await asyncio.sleep(1.5)
        await send(body(b"def"))

    with start(give, protocol=Strict).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert read_all(sock).endswith(b"abcdef")
