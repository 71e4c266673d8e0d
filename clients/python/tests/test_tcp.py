"""The connection over TCP wakes its reader for many bytes, and never later than it must."""

import fcntl
import os
import socket
import struct
import termios
import threading
from contextlib import closing

import pytest

from larder.tcp import TcpConnection

MANY = 1 << 17


@pytest.fixture
def ends():
    """A connected reader with a timeout of ``0.3`` seconds, and its sender."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with closing(TcpConnection(host, port, timeout=0.3)) as connection:
            connection.connect()
            sender, _ = listener.accept()
            with sender:
                yield connection.sock, sender


def deliver(sender, data):
    """Send, and return when the reader's kernel has everything."""
    sender.sendall(data)
    waiting = bytes(4)
    while struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, waiting))[0]:
        os.sched_yield()


def test_a_large_read_is_woken_once(ends):
    """Rule: a read of many bytes does not return with the first packet of them."""
    reader, sender = ends
    reader.settimeout(20)
    buffer = bytearray(MANY)
    counts = []
    thread = threading.Thread(target=lambda: counts.append(reader.recv_into(buffer)))
    thread.start()
    for _ in range(16):
        deliver(sender, b"x" * (MANY // 16))
    thread.join()
    assert counts == [MANY]


def test_a_small_read_returns_with_the_first_byte(ends):
    """Rule: a read of a few bytes, such as those of a head, takes what is there, also after a large one."""
    reader, sender = ends
    sender.sendall(b"x" * MANY + b"y")
    left = memoryview(bytearray(MANY))
    while left:
        left = left[reader.recv_into(left) :]
    assert reader.recv_into(bytearray(8192)) == 1


def test_a_slow_network_is_not_waited_for(ends, monkeypatch):
    """Rule: a read gets what came, though it is less than would wake it, after a while; later ones do not wait for more."""
    reader, sender = ends
    monkeypatch.setattr("larder.tcp._PATIENCE", 1)
    sender.sendall(b"x" * 10)
    assert reader.recv_into(bytearray(MANY)) == 10
    monkeypatch.setattr("larder.tcp._PATIENCE", 3_600_000)
    sender.sendall(b"x" * 10)
    assert reader.recv_into(bytearray(MANY)) == 10


def test_a_silent_sender_times_out(ends):
    """Rule: if no byte comes before the timeout, a large read fails as a small one does."""
    reader, _ = ends
    with pytest.raises(TimeoutError):
        reader.recv_into(bytearray(MANY))
    with pytest.raises(TimeoutError):
        reader.recv_into(bytearray(10))


def test_the_end_wakes_a_large_read(ends):
    """Rule: if the sender ends early, a large read gets what came, then the end."""
    reader, sender = ends
    reader.settimeout(20)
    sender.sendall(b"x" * 10)
    sender.shutdown(socket.SHUT_WR)
    assert [reader.recv_into(bytearray(MANY)) for _ in range(2)] == [10, 0]


def test_a_reset_wakes_a_large_read(ends):
    """Rule: a reset ends a large read at once."""
    reader, sender = ends
    reader.settimeout(20)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
    with pytest.raises(ConnectionResetError):
        reader.recv_into(bytearray(MANY))
