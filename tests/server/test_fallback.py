"""Sending files without zero-copy: over TLS, and under other ASGI servers."""

from __future__ import annotations

import ssl
import subprocess

import pytest

from gateway.model.errors import BlobGone
from gateway.server.cycle import DIRECT
from gateway.server.send import PIECE, send_file
from tests.server.applications import head
from tests.server.conftest import read_all


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def _recording(handler, extensions):
    async def application(scope, receive, send):
        extensions.append(scope.get("extensions", {}))
        await handler(scope, receive, send)

    return application


@pytest.mark.parametrize("size", [0, 1000, PIECE, 3 * PIECE + 1])
def test_over_tls_files_are_copied(start, make_file, certificate, size):
    """Rule: zero-copy is not announced over TLS, and the bytes are the same."""
    cert, key = certificate
    file, extensions = make_file(size), []
    client = ssl.create_default_context(cafile=cert)
    running = start(_recording(file.handler(), extensions), client_tls=client, ssl_certfile=cert, ssl_keyfile=key)
    with running.client() as connection:
        for _ in range(2):
            connection.request("GET", "/")
            assert connection.getresponse().read() == file.data
    assert extensions == [{}, {}]


@pytest.mark.parametrize("protocol", ["httptools", "h11"])
def test_under_stock_uvicorn_files_are_copied(start, make_file, protocol):
    """Rule: the same application serves the same bytes under a server without the extension."""
    file, extensions = make_file(3 * PIECE + 1), []
    _, got = start(_recording(file.handler(7), extensions), protocol=protocol).get("/")
    assert got == file.data[7:]
    assert "http.response.zerocopysend" not in extensions[0]


def test_ours_announces_zero_copy(start, make_file):
    """Rule: over plain TCP the extensions are announced (otherwise the tests above would prove nothing)."""
    file, extensions = make_file(10), []
    assert start(_recording(file.handler(), extensions)).get("/")[1] == file.data
    assert set(extensions[0]) == {"http.response.zerocopysend", "larder.files", "larder.pieces", DIRECT}


def test_a_short_file_is_an_error_in_pieces_too(start, make_file):
    """Rule: without zero-copy a short file is BlobGone, never a short or padded body."""
    file, seen = make_file(PIECE + 10), []

    async def handler(scope, receive, send):
        await send(head(2 * PIECE))
        try:
            await send_file(scope, send, file.fd, 0, 2 * PIECE)
        except BlobGone as error:
            seen.append(error)

    with start(handler, protocol="httptools").connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_all(sock).partition(b"\r\n\r\n")[2] == file.data[:PIECE]
    assert len(seen) == 1
