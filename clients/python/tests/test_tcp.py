"""Large reads from TCP connections."""

import socket
import threading
import time
from contextlib import closing

import pytest
from fake_gateway import FakeBatchGateway, Store, serving

from larder.http import tcp
from larder.http.silence import SILENCE, Silence
from larder.http.tcp import SUPPORTED, LargeReads, TcpConnection

HALF = 1 << 17
PATIENCE = 30.0


@pytest.fixture
def ends():
    """A connection over TCP: the sender's end and the reader's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = socket.create_connection(listener.getsockname(), timeout=PATIENCE)
        sender, _ = listener.accept()
    with closing(sender), closing(LargeReads(reader, Silence(lambda: True, SILENCE))) as large:
        yield sender, large


def rest_when_waiting(sender, reader, rest):
    """A thread that acts once the reader waits for more bytes than there are."""

    def act():
        deadline = time.monotonic() + PATIENCE
        while reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) <= HALF:
            assert time.monotonic() < deadline, "the reader does not wait"
        rest(sender)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_this_system_supports_them():
    """Rule: on Linux, connections read like this."""
    assert SUPPORTED


def test_a_large_read_waits_until_it_is_complete(ends):
    """Rule: a large read returns all of its bytes at once, however many segments they come in."""
    sender, reader = ends
    sender.sendall(b"a" * HALF)
    thread = rest_when_waiting(sender, reader, lambda sender: sender.sendall(b"b" * HALF))
    buffer = bytearray(2 * HALF)
    assert reader.recv_into(buffer) == 2 * HALF
    assert buffer == b"a" * HALF + b"b" * HALF
    thread.join()


def test_a_small_read_takes_what_there_is(ends):
    """Rule: a small read does not wait, also after a large one: nobody has announced how many bytes come."""
    sender, reader = ends
    sender.sendall(bytes(2 * HALF) + b"head")
    assert reader.recv_into(bytearray(2 * HALF)) == 2 * HALF
    assert reader.recv_into(bytearray(8192)) == 4


def test_a_large_read_ends_with_the_connection(ends):
    """Rule: if the connection ends, a large read returns what came before."""
    sender, reader = ends
    sender.sendall(bytes(HALF))
    thread = rest_when_waiting(sender, reader, lambda sender: sender.shutdown(socket.SHUT_WR))
    assert [reader.recv_into(bytearray(2 * HALF)) for _ in range(2)] == [HALF, 0]
    thread.join()


def test_a_slow_network_is_not_waited_for(ends, monkeypatch):
    """Rule: a read that is not complete in time returns what there is, and the next one does not wait."""
    monkeypatch.setattr(tcp, "_PATIENCE_MS", 0)
    sender, reader = ends
    sender.sendall(bytes(HALF))
    came = 0
    while came < HALF:
        came += reader.recv_into(bytearray(2 * HALF))
        assert reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    assert came == HALF


def _connected(server):
    host, _, port = server.endpoint.removeprefix("http://").partition(":")
    return TcpConnection(host, int(port), Silence(lambda: True, PATIENCE), blocksize=1 << 16)


def test_a_slow_answer_does_not_matter_to_the_next():
    """Rule: reads of each answer wait, even if one of the answer before was not complete in time."""
    with serving(FakeBatchGateway(Store({}))) as server:
        server.other = lambda handler, asked: handler.send(200, b"hello")
        with closing(_connected(server)) as connection:
            connection.connect()
            connection.sock.waits = False
            connection.request("GET", "/x")
            assert connection.getresponse().read() == b"hello"
            assert connection.sock.waits


def test_silence_is_an_error(ends, monkeypatch):
    """Rule: a read of which nothing comes fails after the socket's own time."""
    monkeypatch.setattr(tcp, "_PATIENCE_MS", 0)
    _, reader = ends
    reader.settimeout(0.01)
    with pytest.raises(TimeoutError):
        reader.recv_into(bytearray(HALF))
