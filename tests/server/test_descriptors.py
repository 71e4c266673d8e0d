"""Open files beside a response over a unix socket: receivers, order, and the bound of unreceived files."""

from __future__ import annotations

import os
import socket
from array import array
from contextlib import closing

import pytest

from gateway.server.cycle import DESCRIPTORS
from gateway.server.local import DescriptorsInFlight, Passing, is_another_user
from tests.other_user import OtherUser, as_another_user, open_folder
from tests.server.applications import head
from tests.server.conftest import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
MANY = 600
"""More than two messages can carry."""


@pytest.fixture
def path():
    """A socket's place that other users reach."""
    with open_folder() as folder:
        yield str(folder / "s")


def connected(path):
    """A raw connection."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(path)
    return sock


def read(sock, ending):
    """Everything until the ending, and the descriptors that came with it, in order."""
    data, files = b"", []
    while not data.endswith(ending):
        piece, ancillary, flags, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(253 * 4))
        assert piece
        assert not flags & socket.MSG_CTRUNC
        data += piece
        for _, _, numbers in ancillary:
            files += array("i", numbers)
    return data, files


@pytest.fixture
def numbered(tmp_path):
    """Open files, each with its number in it."""
    files = []
    for number in range(MANY):
        (tmp_path / str(number)).write_text(str(number))
        os.chmod(tmp_path / str(number), 0o600)
        files.append(os.open(tmp_path / str(number), os.O_RDONLY))
    yield files
    for file in files:
        os.close(file)


def attaching(files, body=b"see the files"):
    """An application that answers with files if permitted, otherwise with "no."."""

    async def handler(scope, receive, send):
        passing = scope["extensions"].get(DESCRIPTORS)
        if passing is None or not passing.admit(len(files)):
            await send(head(3))
            await send({"type": "http.response.body", "body": b"no."})
            return
        await send(head(len(body)))
        await send({"type": DESCRIPTORS, "body": body, "files": files})
        passing.sent()

    return handler


def test_another_user_gets_open_files(start, numbered, path):
    """Rule: all files come, in order, over as many messages as they need; they can be read, and not be opened for writing."""
    start(attaching(numbered), unix_socket=path)

    def ask():
        with closing(connected(path)) as sock:
            sock.sendall(GET)
            data, files = read(sock, b"see the files")
            sock.sendall(GET)
            again, more = read(sock, b"see the files")
        assert data == again
        assert data.startswith(b"HTTP/1.1 200")
        assert data.count(b"see the files") == 1
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{files[0]}", os.O_WRONLY)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(files[0], b"x")
        return [[int(os.pread(file, 10, 0)) for file in each] for each in (files, more)]

    assert as_another_user(ask) == [list(range(MANY))] * 2


def test_root_gets_none(start, numbered, path):
    """Rule: root could open the files for writing; it gets bytes."""
    start(attaching(numbered), unix_socket=path)
    with closing(connected(path)) as sock:
        sock.sendall(GET)
        assert read(sock, b"no.")[1] == []


def test_tcp_gets_none(start, numbered, path):
    """Rule: TCP connections get no descriptors: they have no peer user, and cannot carry files."""
    running = start(attaching(numbered), unix_socket=path)
    assert running.get("/")[1] == b"no."


def test_the_gateways_own_user_gets_none():
    """Rule: a peer that could write blobs anyway gets no descriptor; the kernel identifies the peer."""

    def own():
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            return is_another_user(one)

    assert as_another_user(own) is False


def test_a_peer_that_has_not_received_gets_no_more(start, numbered, path):
    """Rule: at most one answer's files wait in a connection; the next answer goes without."""
    admitted = []
    answer = attaching(numbered[:3])

    class Noted(Passing):
        """Records the admitted counts."""

        def admit(self, count):
            admitted.append(super().admit(count))
            return admitted[-1]

    async def handler(scope, receive, send):
        passing = scope["extensions"][DESCRIPTORS]
        scope["extensions"] = {DESCRIPTORS: Noted(passing._in_flight, passing._receiver)}
        await answer(scope, receive, send)

    start(handler, unix_socket=path)

    def ask(steps):
        with closing(connected(path)) as sock:
            sock.sendall(GET + GET)
            steps.wait()
            _, files = read(sock, b"no.")
            sock.sendall(GET)
            _, more = read(sock, b"see the files")
            return len(files), len(more)

    with OtherUser(ask) as child:
        wait_until(lambda: len(admitted) == 2)
        child.steps.reached()
        assert child.result() == (3, 3)
    assert admitted == [True, False, True]


class Receiver:
    """A connection whose state the test sets."""

    def __init__(self):
        self.lost = False
        self.waiting = False

    def unreceived(self):
        """True if the peer has not received everything."""
        return self.waiting


def test_descriptors_in_flight_are_bounded():
    """Rule: the count covers all connections; received descriptors and those of lost connections no longer count."""
    in_flight = DescriptorsInFlight(10)
    one, other, third = Receiver(), Receiver(), Receiver()
    assert in_flight.admit(one, 6)
    in_flight.sent(one)
    one.waiting = True
    assert not in_flight.admit(one, 1)
    assert not in_flight.admit(other, 5)
    assert in_flight.admit(other, 4)
    in_flight.sent(other)
    other.waiting = True
    assert not in_flight.admit(third, 1)
    other.waiting = False
    assert in_flight.admit(third, 4)
    in_flight.sent(third)
    one.lost = True
    assert in_flight.admit(other, 6)
    assert not in_flight.admit(Receiver(), 11)


def test_descriptors_that_are_still_to_be_sent_count():
    """Rule: of an answer in parts, the parts to come count although the peer has received all before; unless it is lost."""
    in_flight = DescriptorsInFlight(10)
    slow, other = Receiver(), Receiver()
    assert in_flight.admit(slow, 6)
    assert not in_flight.admit(other, 5)
    in_flight.sent(slow)
    assert in_flight.admit(other, 5)
    assert not in_flight.admit(slow, 6)
    other.lost = True
    assert in_flight.admit(slow, 6)


def test_an_answer_may_have_further_descriptors():
    """Rule: an answer of unknown length gets descriptors one by one, until as many are unreceived as are allowed."""
    in_flight = DescriptorsInFlight(4)
    slow, other = Receiver(), Receiver()
    assert in_flight.admit(slow, 0)
    slow.waiting = True
    assert [in_flight.admit_another(slow, unsent) for unsent in range(5)] == [True] * 4 + [False]
    assert not in_flight.admit(other, 1)
    slow.waiting = False
    assert [in_flight.admit_another(slow, unsent) for unsent in (3, 4)] == [True, False]
    in_flight.sent(slow)
    assert in_flight.admit(other, 4)
