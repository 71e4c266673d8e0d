"""The extension ``larder.files``: a whole response made of files, in one message."""

from __future__ import annotations

import os

import pytest

from gateway.server.head import encode_lines
from tests.server.conftest import read_all

SIZES = (3 * 1024**2 + 7, 100, 40_000)


def _files(tmp_path):
    files = []
    for number, size in enumerate(SIZES):
        path = tmp_path / str(number)
        path.write_bytes(os.urandom(size))
        files.append(path)
    return files


def _handler(files, *, claimed=None):
    lines = encode_lines([(b"content-length", b"%d" % (claimed or sum(SIZES))), (b"x-test", b"1")])

    async def handler(scope, receive, send):
        assert "larder.files" in scope["extensions"]
        fds = [os.open(path, os.O_RDONLY) for path in files]
        try:
            spans = [(fd, 0, size, os.fstat(fd).st_ino) for fd, size in zip(fds, SIZES, strict=True)]
            await send({"type": "larder.files", "status": 200, "head": lines, "files": spans})
        finally:
            for fd in fds:
                os.close(fd)

    return handler


def test_files_are_sent_in_order_and_the_connection_goes_on(start, tmp_path):
    """Rule: a response has one head and the files' bytes only; the next request on the connection gets its own."""
    files = _files(tmp_path)
    expected = b"".join(path.read_bytes() for path in files)
    running = start(_handler(files))
    with running.connect() as sock:
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        sock.sendall(request + request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        received = read_all(sock)
    first, second = received[: len(received) // 2], received[len(received) // 2 :]
    assert first.startswith(b"HTTP/1.1 200")
    assert first.partition(b"\r\n\r\n")[2].startswith(expected[:1000])
    assert received.count(b"x-test: 1\r\n") == 2
    assert second.endswith(expected)
    assert received.count(expected) == 2


def test_a_request_with_an_unread_body_ends_the_connection(start, tmp_path):
    """Rule: the rest of a body is never read as the next request."""
    files = _files(tmp_path)
    running = start(_handler(files))
    with running.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
        received = read_all(sock)
    assert b"connection: close\r\n" in received.partition(b"\r\n\r\n")[0] + b"\r\n"


def test_a_file_that_is_too_short_breaks_the_connection_without_a_second_answer(start, tmp_path):
    """Rule: a file that turns out too short after the first byte breaks the connection, without a second answer."""
    files = _files(tmp_path)
    files[0].write_bytes(b"x" * 2_000_000)
    running = start(_handler(files))
    with running.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        received, broken = _read_to_the_end(sock)
    assert broken
    assert received.count(b"HTTP/1.1") <= 1


def _read_to_the_end(sock):
    received = b""
    try:
        while piece := sock.recv(1 << 20):
            received += piece
    except ConnectionError:
        return received, True
    return received, False


def test_header_lines_cannot_be_split():
    """Rule: a value with a line break is refused when the lines are made."""
    with pytest.raises(ValueError):
        encode_lines([(b"content-length", b"1"), (b"etag", b"a\r\nset-cookie: x")])
