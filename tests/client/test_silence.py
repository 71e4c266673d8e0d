"""A gateway that hangs accepts connections and answers nothing: the client does not wait for its time-out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from larder.http import silence
from larder.http.connection import Connection
from larder.http.credentials import Credentials
from larder.http.silence import Hung

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
KEYS = Credentials("k", "s")
LONG = 60.0
"""Seconds after which a test has failed, because the client waited for its own time-out."""


class Server:
    """Accepts connections; ``answers`` says for each request line whether it is answered, and with what."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.hung = threading.Event()
        """No request is answered."""
        self.hung_kept = threading.Event()
        """No request over a connection that has answered one is answered."""
        self.half = threading.Event()
        """Answers stop after a byte of the body."""
        self.requests: list[bytes] = []
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        answered = 0
        with suppress(OSError):
            while head := connection.recv(65536):
                line = head.partition(b"\r\n")[0]
                self.requests.append(line)
                if self.hung.is_set() or (answered and self.hung_kept.is_set()):
                    continue
                connection.sendall(ANSWER[:-1] if self.half.is_set() and b"healthz" not in line else ANSWER)
                answered += 1

    def close(self) -> None:
        """End everything."""
        for each in (self.listener, *self.connections):
            each.close()


@contextmanager
def serving() -> Iterator[Server]:
    """A server that answers."""
    server = Server()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed sooner."""
    monkeypatch.setattr(silence, "SILENCE", 0.2)
    monkeypatch.setattr("larder.http.connection.SILENCE", 0.2)


def ask(connection: Connection) -> bytes:
    """The body of an answer."""
    with connection.exchange("GET", "/-/v1/fleet") as response:
        return response.read()


def test_a_gateway_that_does_not_confirm_is_given_up() -> None:
    """Rule: a gateway that is silent and does not answer over another connection either is not waited for."""
    with serving() as server:
        server.hung.set()
        began = time.monotonic()
        with pytest.raises(Hung):
            ask(Connection(server.endpoint, credentials=KEYS, timeout=LONG))
        assert time.monotonic() - began < LONG / 2
        assert any(b"/-/healthz" in line for line in server.requests)


def test_a_kept_connection_to_a_hung_worker_is_replaced() -> None:
    """Rule: while the gateway confirms, a request over a kept connection that is silent is sent again over a new one."""
    with serving() as server:
        connection = Connection(server.endpoint, credentials=KEYS, timeout=LONG)
        assert ask(connection) == b"ok"
        server.hung_kept.set()
        assert ask(connection) == b"ok"
        assert sum(b"/-/v1/fleet" in line for line in server.requests) == 3


def test_a_gateway_that_hangs_within_an_answer_is_given_up() -> None:
    """Rule: the rest of an answer is waited for only while the gateway confirms that it is alive."""
    with serving() as server:
        connection = Connection(server.endpoint, credentials=KEYS, timeout=LONG)
        server.half.set()
        with connection.exchange("GET", "/-/v1/fleet") as response:
            server.hung.set()
            with pytest.raises(Hung):
                response.read()


def test_a_live_gateway_is_waited_for_over_a_new_connection() -> None:
    """Rule: the first answer over a connection may take as long as the time-out allows, if the gateway confirms."""
    with serving() as server:
        listener = server.listener
        connection = Connection(server.endpoint, credentials=KEYS, timeout=LONG)
        server.half.set()
        with connection.exchange("GET", "/-/v1/fleet") as response:
            confirmed = threading.Event()

            def complete() -> None:
                while sum(b"/-/healthz" in line for line in server.requests) < 2:
                    confirmed.wait(0.01)
                server.connections[0].sendall(b"k")

            threading.Thread(target=complete, daemon=True).start()
            assert response.read() == b"ok"
        assert listener.fileno() > 0
