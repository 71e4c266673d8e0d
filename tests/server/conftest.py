"""Real servers on free ports: in a thread, with an application given by the test."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from uvicorn.config import Config

from gateway.base.config_server import ServerSettings
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.handshake import Handshake
from gateway.server.listening import listen
from gateway.server.local import LocalListener
from gateway.server.protocol import GatewayProtocol
from gateway.server.run import TlsConfig
from gateway.server.send import send_file
from gateway.server.stoppable import StoppableServer
from tests.server.applications import Handler, head, with_lifespan


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Poll until the condition holds; the deadline is only there to end a broken run."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)
    return result


@dataclass
class Running:
    """A server that runs: where it listens, and its uvicorn object."""

    port: int
    server: StoppableServer
    tls: ssl.SSLContext | None = None
    events: list[str] = field(default_factory=list)

    def connect(self) -> socket.socket:
        """A raw connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return self.tls.wrap_socket(sock, server_hostname="localhost") if self.tls else sock

    def ask(self, request: bytes) -> bytes:
        """Send raw bytes and read until the server closes."""
        with self.connect() as sock:
            sock.sendall(request)
            return read_all(sock)

    @contextmanager
    def client(self) -> Iterator[HTTPConnection]:
        """A keep-alive client."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.sock = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    def get(self, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
        """Send one request on a new connection."""
        with self.client() as connection:
            connection.request(method, path)
            response = connection.getresponse()
            return response, response.read()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end of the stream."""
    pieces = []
    while piece := sock.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def read_response(sock: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of one response with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(1)
        assert piece, f"the connection ended within a head: {data!r}"
        data += piece
    length = next((int(line[15:]) for line in data.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    body = b""
    while len(body) < length:
        piece = sock.recv(length - len(body))
        assert piece, "the connection ended within a body"
        body += piece
    return data, body


@dataclass(frozen=True)
class File:
    """A file of random bytes, and its open descriptor."""

    fd: int
    data: bytes

    def handler(self, offset: int = 0, count: int | None = None) -> Handler:
        """Answers every request with a piece of the file."""
        wanted = len(self.data) - offset if count is None else count

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send(head(wanted))
            await send_file(scope, send, self.fd, offset, wanted)

        return answer


@pytest.fixture
def make_file(tmp_path: Path) -> Iterator[Callable[[int], File]]:
    """Makes files of so many random bytes."""
    with ExitStack() as closing:

        def make(size: int) -> File:
            path = tmp_path / f"{size}"
            path.write_bytes(os.urandom(size))
            fd = os.open(path, os.O_RDONLY)
            closing.callback(os.close, fd)
            return File(fd, path.read_bytes())

        yield make


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_name(request: pytest.FixtureRequest) -> str:
    """Returns the name of an event loop; the test runs under both."""
    return str(request.param)


@pytest.fixture
def start(loop_name: str) -> Iterator[Callable[..., Running]]:
    """Starts servers with an application; stops them at the end and checks that no connection is left."""
    running: list[tuple[Running, threading.Thread]] = []
    closing = ExitStack()

    def begin(
        handler: Handler,
        *,
        protocol: Any = GatewayProtocol,
        client_tls: Any = None,
        unix_socket: str = "",
        **options: Any,
    ) -> Running:
        listener = listen(ServerSettings(port=0))
        sockets = [listener]
        if unix_socket:
            local = LocalListener(unix_socket, 16)
            closing.callback(local.close)
            sockets.append(local.socket)
        tls = "ssl_certfile" in options
        config = (TlsConfig if tls else Config)(
            app=with_lifespan(handler),
            http=type("Greeting", (Handshake,), {"following": protocol}) if tls else protocol,
            loop=loop_name,
            ws="none",
            interface="asgi3",
            log_config=None,
            **{
                "server_header": False,
                "date_header": False,
                "proxy_headers": False,
                "timeout_graceful_shutdown": 5,
                **options,
            },
        )
        server = StoppableServer(config)
        thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        wait_until(lambda: server.started)
        running.append((Running(port, server, client_tls), thread))
        return running[-1][0]

    yield begin
    for each, thread in running:
        each.server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        assert not each.server.server_state.tasks
    closing.close()
