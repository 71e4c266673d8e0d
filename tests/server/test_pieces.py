"""The extension ``larder.pieces``: a part of a body made of bytes and spans of files, in one message."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.model.errors import BrokenBody
from gateway.server.channel import SMALL
from gateway.server.cycle import HIGH_WATER
from gateway.server.send import send_pieces
from tests.server.applications import head
from tests.server.conftest import read_all, wait_until

SIZES = (0, 1, 100, SMALL - 1, SMALL, SMALL + 1, HIGH_WATER, HIGH_WATER + 1, 3 * 1024**2 + 7)
"""Seconds for which a slow client takes nothing."""


class Mixture:
    """Random pieces of many sizes, bytes or files, and the bytes expected of them."""

    def __init__(self, folder: Path, seed: int, count: int = 40) -> None:
        chance = random.Random(seed)
        self.fds: list[int] = []
        self.pieces: list[Any] = []
        self.expected = b""
        for number in range(count):
            data = chance.randbytes(chance.choice(SIZES if number % 10 == 0 else SIZES[:6]))
            self.expected += data
            if chance.random() < 0.5:
                self.pieces.append(data)
                continue
            path = folder / f"{seed}-{number}"
            path.write_bytes(b"before" + data + b"behind")
            self.fds.append(os.open(path, os.O_RDONLY))
            self.pieces.append((self.fds[-1], 6, len(data), path.stat().st_ino))

    def close(self) -> None:
        """Close the files."""
        for fd in self.fds:
            os.close(fd)


def chunks_of(raw: bytes) -> tuple[list[int], bytes]:
    """Sizes and contents of the chunks of a chunked body, which must be complete."""
    sizes, body = [], b""
    while True:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            assert raw == b"\r\n"
            return sizes, body
        sizes.append(size)
        body += raw[:size]
        assert raw[size : size + 2] == b"\r\n"
        raw = raw[size + 2 :]


@pytest.mark.parametrize("seed", range(3))
def test_pieces_leave_in_order_with_a_length(start: Any, tmp_path: Path, seed: int) -> None:
    """Rule: bytes and spans of files of any size arrive unchanged."""
    mixture = Mixture(tmp_path, seed)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        assert "larder.pieces" in scope["extensions"]
        await send(head(len(mixture.expected)))
        await send_pieces(scope, send, mixture.pieces)

    _, received = start(handler).get("/")
    mixture.close()
    assert received == mixture.expected


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_one_chunk(start: Any, tmp_path: Path, seed: int) -> None:
    """Rule: without a length, each message of pieces is one chunk however many pieces it has; the next one follows it."""
    mixture = Mixture(tmp_path, seed)
    parts = [mixture.pieces[:10], mixture.pieces[10:11], mixture.pieces[11:]]

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, part in enumerate(parts):
            await send_pieces(scope, send, part, number < len(parts) - 1)

    raw = start(handler).ask(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    mixture.close()
    sizes, body = chunks_of(raw.partition(b"\r\n\r\n")[2])
    assert body == mixture.expected
    assert len(sizes) == sum(any(p if isinstance(p, bytes) else p[2] for p in part) for part in parts)


def test_elsewhere_pieces_are_joined(tmp_path: Path) -> None:
    """Rule: a server without the extension, or TLS, gets parts of about 256 KiB too, never one message for each piece."""
    mixture = Mixture(tmp_path, 9)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    run_to_end(send_pieces({}, send, mixture.pieces))
    mixture.close()
    assert b"".join(message["body"] for message in sent) == mixture.expected
    assert [message["more_body"] for message in sent] == [True] * (len(sent) - 1) + [False]
    assert all(len(message["body"]) >= HIGH_WATER for message in sent[:-2])


def run_to_end(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_no_pieces_end_the_body(start: Any) -> None:
    """Rule: an empty last message ends the body."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send_pieces(scope, send, [b"x"], True)
        await send_pieces(scope, send, [b""], True)
        await send_pieces(scope, send, [])

    raw = start(handler).ask(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert chunks_of(raw.partition(b"\r\n\r\n")[2]) == ([1], b"x")


@pytest.mark.parametrize("size", [100, SMALL + 1])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_that_is_too_short_breaks_the_connection(start: Any, tmp_path: Path, size: int, chunked: bool) -> None:
    """Rule: missing bytes of an announced length end the connection; a chunked body gets no final chunk."""
    path = tmp_path / "short"
    path.write_bytes(b"x" * (size - 1))

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            headers = [] if chunked else [(b"content-length", b"%d" % (size + 3))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send_pieces(scope, send, [b"abc", (fd, 0, size, path.stat().st_ino)])
        finally:
            os.close(fd)

    received = b""
    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        try:
            received = read_all(sock)
        except ConnectionResetError:
            pass
    assert not received.endswith(b"0\r\n\r\n")


def test_more_than_the_length_is_refused(start: Any) -> None:
    """Rule: pieces count towards the content-length like any other body."""
    failures: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(head(3))
        try:
            await send_pieces(scope, send, [b"ab", b"cd"])
        except RuntimeError as error:
            failures.append(str(error))
            raise

    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            read_all(sock)
        except ConnectionResetError:
            pass
    assert failures == ["the response is longer than its content-length"]


def test_a_reader_that_stands_still_gets_no_more_than_a_little_ahead(start: Any) -> None:
    """Rule: of a large piece of memory only a little waits in the transport: the rest stays where it is counted."""
    body = os.urandom(24 * 1024**2)
    transports: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        transports.append(send.__self__._channel.transport)
        await send(head(len(body)))
        await send_pieces(scope, send, [body])

    with start(handler).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        wait_until(lambda: transports and transports[0].get_write_buffer_size() > 0)
        assert transports[0].get_write_buffer_size() <= HIGH_WATER
        assert read_all(sock).endswith(body)


@pytest.mark.parametrize("error", [BrokenBody("cut"), ValueError("a mistake")])
def test_the_digest_in_a_blobs_address_is_not_logged(
    start: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Rule: a digest is a capability, so the log of a failed download omits it."""
    digest = "ab" * 32

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(head(10))
        await send_pieces(scope, send, [b"12345"], True)
        raise error

    with caplog.at_level("DEBUG"), start(handler).connect() as sock:
        sock.sendall(f"GET /-/v1/blobs/{digest} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        try:
            read_all(sock)
        except ConnectionResetError:
            pass
        wait_until(lambda: "/-/v1/blobs/REDACTED" in caplog.text)
    assert digest not in caplog.text
