"""Bodies that are files: exact bytes, whatever the client does meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
import threading

import pytest

from gateway.model.errors import BlobGone, ClientGone
from gateway.server.channel import SMALL
from gateway.server.send import send_file
from tests.server.conftest import body, head, read_all, read_response, wait_until

MIB = 1024**2


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 110 * 1024, 9 * MIB])
def test_a_file_arrives_byte_by_byte(start, make_file, size):
    """Rule: the body is the file, at sizes on both sides of every threshold."""
    file = make_file(size)
    response, got = start(file.handler()).get("/")
    assert (response.status, got) == (200, file.data)


@pytest.mark.parametrize(("offset", "count"), [(5, 10), (MIB - 7, 3 * MIB + 14), (4 * MIB - 1, 1), (0, 4 * MIB)])
def test_a_piece_of_a_file_is_that_piece(start, make_file, offset, count):
    """Rule: offset and count are honoured exactly."""
    file = make_file(4 * MIB + 7)
    _, got = start(file.handler(offset, count)).get("/")
    assert got == file.data[offset : offset + count]


def test_file_objects_and_defaults_follow_the_asgi_extension(start, make_file):
    """Rule: without offset the file's position counts, without count its end (ASGI zero-copy send extension)."""
    file = make_file(300_000)

    async def handler(scope, receive, send):
        with os.fdopen(os.dup(file.fd), "rb") as opened:
            os.lseek(opened.fileno(), 100_000, os.SEEK_SET)
            await send(head(200_000))
            await send({"type": "http.response.zerocopysend", "file": opened})

    assert start(handler).get("/")[1] == file.data[100_000:]


def test_pieces_of_files_and_bytes_mix_in_order(start, make_file):
    """Rule: whatever kind the messages are, the bytes come in the order they were sent."""
    file = make_file(3 * MIB)
    parts = [b"A" * 300_000, file.data, b"B", file.data[:10], b"C" * 70_000, file.data[5 : 2 * MIB]]

    async def handler(scope, receive, send):
        await send(head(sum(map(len, parts))))
        await send(body(parts[0], True))
        await send_file(scope, send, file.fd, 0, len(file.data), True)
        await send(body(parts[2], True))
        await send_file(scope, send, file.fd, 0, 10, True)
        await send(body(parts[4], True))
        await send_file(scope, send, file.fd, 5, 2 * MIB - 5)

    assert start(handler).get("/")[1] == b"".join(parts)


def test_a_file_in_a_response_without_length_is_one_chunk(start, make_file):
    """Rule: without content-length, files too are framed as chunks (RFC 9112 section 7.1)."""
    file = make_file(2 * MIB)

    async def handler(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send_file(scope, send, file.fd, 0, 20_000, True)
        await send_file(scope, send, file.fd, 20_000, 2 * MIB - 20_000)

    response, got = start(handler).get("/")
    assert response.getheader("transfer-encoding") == "chunked"
    assert got == file.data


def test_head_sends_no_byte_of_the_file(start, make_file):
    """Rule: the answer to HEAD has the length of the file, no body, and the connection goes on."""
    file = make_file(200_000)
    with start(file.handler()).connect() as sock:
        sock.sendall(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = read_all(sock)
    first, _, rest = answer.partition(b"\r\n\r\n")
    second, _, got = rest.partition(b"\r\n\r\n")
    assert b"content-length: 200000" in first
    assert second.startswith(b"HTTP/1.1 200")
    assert got == file.data


def test_slow_readers_get_every_byte_and_do_not_stop_the_others(start, make_file):
    """Rule: readers that stall hold back only themselves, and lose nothing."""
    file = make_file(12 * MIB)
    running = start(file.handler())
    slow = [running.connect() for _ in range(20)]
    for sock in slow:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    wait_until(lambda: len(running.server.server_state.tasks) == 20)
    assert running.get("/")[1] == file.data
    assert len(running.server.server_state.tasks) == 20
    digest = hashlib.sha256(file.data).digest()
    for sock in slow:
        with sock:
            assert hashlib.sha256(read_all(sock).partition(b"\r\n\r\n")[2]).digest() == digest


def test_a_file_that_waits_for_bytes_before_it_keeps_the_order(start, make_file):
    """Rule: a file is not sent past bytes that the transport still holds for a slow reader."""
    file = make_file(MIB)
    first = os.urandom(12 * MIB)
    sent = threading.Event()

    async def handler(scope, receive, send):
        await send(head(len(first) + len(file.data)))
        await send(body(first, True))
        sent.set()
        await send_file(scope, send, file.fd, 0, len(file.data))

    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert sent.wait(20)
        assert read_all(sock).partition(b"\r\n\r\n")[2] == first + file.data


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "close"])
def test_a_client_that_leaves_mid_file_ends_the_send_quietly(start, make_file, caplog, reset):
    """Rule: the application learns of it by ClientGone and http.disconnect; nothing is logged as a fault."""
    file = make_file(32 * MIB)
    seen: list[object] = []

    async def handler(scope, receive, send):
        await send(head(len(file.data)))
        await receive()
        try:
            await send_file(scope, send, file.fd, 0, len(file.data))
        except ClientGone as error:
            seen.append(error)
            seen.append((await receive())["type"])
            raise

    running = start(handler)
    sock = running.connect()
    sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert sock.recv(1000)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    wait_until(lambda: not running.server.server_state.connections and not running.server.server_state.tasks)
    assert isinstance(seen[0], ConnectionError)
    assert seen[1] == "http.disconnect"
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_send_after_the_client_left_raises(start):
    """Rule: an application that streams without end stops at the piece after the client left (ASGI 2.4)."""
    stopped = threading.Event()

    async def handler(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send(body(b"x" * 1000, True))
                await asyncio.sleep(0)
        except OSError:
            stopped.set()
            raise

    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(100)
    assert stopped.wait(20)


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_a_short_file_breaks_the_connection(start, make_file, size):
    """Rule: a file shorter than promised is never padded and never ends cleanly; the application gets BlobGone."""
    file = make_file(size)
    seen: list[Exception] = []

    async def handler(scope, receive, send):
        await send(head(size + 10))
        try:
            await send_file(scope, send, file.fd, 0, size + 10)
        except BlobGone as error:
            seen.append(error)
            raise

    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            read_all(sock)
    assert len(seen) == 1


def test_keep_alive_after_files(start, make_file):
    """Rule: file responses leave the connection usable, large and small ones in turn."""
    small, large = make_file(100), make_file(5 * MIB)

    async def handler(scope, receive, send):
        file = large if scope["path"] == "/large" else small
        await file.handler()(scope, receive, send)

    with start(handler).client() as client:
        for path, file in [("/large", large), ("/small", small)] * 3:
            client.request("GET", path)
            assert client.getresponse().read() == file.data
            kept = client.sock
            assert kept is not None


def test_pipelined_requests_are_answered_in_order(start, make_file):
    """Rule: requests sent ahead are answered one after the other, files included (RFC 9112 section 9.3.2)."""
    files = {f"/{size}": make_file(size) for size in (10, 2 * MIB, 20_000)}

    async def handler(scope, receive, send):
        await files[scope["path"]].handler()(scope, receive, send)

    order = ["/2097152", "/10", "/20000", "/2097152", "/20000", "/10"]
    with start(handler).connect() as sock:
        sock.sendall(b"".join(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for path in order))
        for path in order:
            assert read_response(sock)[1] == files[path].data
