"""The end of a connection: a client that sends no more, a client that has left, a server that stops."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.model.errors import ClientGone
from gateway.server.channel import SMALL, TURN, Channel
from gateway.server.protocol import GatewayProtocol
from tests.server.applications import body, head
from tests.server.conftest import read_all, read_response, wait_until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"


class Observed(GatewayProtocol):
    """Tells the test what has happened to the connection."""

    ended = threading.Event()
    stopped = threading.Event()
    received = 0

    def eof_received(self) -> bool:
        """The client has sent its last byte."""
        kept = super().eof_received()
        self.ended.set()
        return kept

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        super().data_received(data)
        self.received += len(data)

    def shutdown(self) -> None:
        """The server stops."""
        super().shutdown()
        self.stopped.set()


@pytest.fixture
def observed() -> type[Observed]:
    """A class of connections with events of its own."""
    return type("Fresh", (Observed,), {"ended": threading.Event(), "stopped": threading.Event()})


def answering_after(event: threading.Event) -> Any:
    """An application that answers once an event has happened."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(event.wait, 20)
        await send(head(2))
        await send(body(b"ok"))

    return answer


@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_sends_no_more_is_answered(start: Any, observed: type[Observed], requests: int) -> None:
    """Rule: every request that arrived whole is answered, the last one with the close of the connection."""
    with start(answering_after(observed.ended), protocol=observed).connect() as sock:
        sock.sendall(GET * requests)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == (ANSWER + b"\r\nok") * (requests - 1) + ANSWER + b"connection: close\r\n\r\nok"


@pytest.mark.parametrize(
    "sent", [GET[:9], b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"], ids=["head", "body"]
)
def test_a_request_that_was_cut_is_not_answered(start: Any, observed: type[Observed], sent: bytes) -> None:
    """Rule: the end of the client's side within a request ends the connection."""
    with start(answering_after(observed.ended), protocol=observed).connect() as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_a_client_that_has_left_is_noticed_by_sending(start: Any, observed: type[Observed]) -> None:
    """Rule: what is sent to a client that closed its connection fails soon."""
    noticed = threading.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(observed.ended.wait, 20)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send(body(bytes(SMALL), True))
                await asyncio.sleep(0)
        except ClientGone:
            noticed.set()
            raise

    running = start(handler, protocol=observed)
    with running.connect() as sock:
        sock.sendall(GET)
        wait_until(lambda: running.server.server_state.tasks)
    assert noticed.wait(20)


def test_an_application_that_asks_later_learns_that_the_client_left(start: Any, observed: type[Observed]) -> None:
    """Rule: ``receive`` after the whole body returns http.disconnect, also if the client's side had ended before."""
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(observed.ended.wait, 20)
        seen.extend([(await receive())["type"], (await receive())["type"]])

    running = start(handler, protocol=observed)
    with running.connect() as sock:
        sock.sendall(GET)
        wait_until(lambda: running.server.server_state.tasks)
    wait_until(lambda: seen == ["http.request", "http.disconnect"])


def test_an_invalid_request_leaves_the_last_answer_of_a_server_that_stops(start: Any, observed: type[Observed]) -> None:
    """Rule: a server that stops drops the requests that wait; what becomes of one does not touch the answer under way."""
    released = threading.Event()
    requests = GET + b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
    running = start(answering_after(released), protocol=observed)
    with running.connect() as sock:
        sock.sendall(requests)
        connections = running.server.server_state.connections
        wait_until(lambda: [each.received for each in connections] == [len(requests)])
        (connection,) = connections
        running.server.should_exit = True
        assert observed.stopped.wait(20)
        sock.sendall(b"zz\r\n")
        wait_until(lambda: connection.received > len(requests))
        released.set()
        assert read_response(sock)[1] == b"ok"
        assert read_all(sock) == b""


class LostAtOnce(Channel):
    """A channel whose connection is lost in the turn of the loop in which the last byte was sent."""

    __slots__ = ()

    def _on_writable(self) -> None:
        super()._on_writable()
        if self._done is not None and self._done.done():
            self.lose()


async def test_a_connection_lost_before_the_sender_wakes_is_a_client_that_left(tmp_path: Path) -> None:
    """Rule: a client that leaves right after its last byte is reported as such, not as a fault of the server."""
    size = 2 * TURN
    (tmp_path / "file").write_bytes(os.urandom(size))
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    with theirs, (tmp_path / "file").open("rb") as file:
        span = file.fileno(), 0, size, os.fstat(file.fileno()).st_ino
        sending = asyncio.create_task(LostAtOnce(transport, loop).send_files(b"head", [span]))
        left = size + 4
        while left and not sending.done():
            left -= len(await loop.sock_recv(theirs, 1 << 20))
        with pytest.raises(ClientGone):
            await sending
    transport.abort()


async def test_a_file_for_a_client_that_left_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    """Rule: a file that is sent after the connection was lost raises ClientGone, as everything else."""
    (tmp_path / "file").write_bytes(bytes(SMALL + 1))
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    channel = Channel(transport, loop)
    with theirs, (tmp_path / "file").open("rb") as file:
        transport.abort()
        channel.lose()
        await asyncio.sleep(0)
        span = file.fileno(), 0, SMALL + 1, os.fstat(file.fileno()).st_ino
        with pytest.raises(ClientGone):
            await channel.send_files(b"head", [span])
