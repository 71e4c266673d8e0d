"""Open files that come with answers over a unix socket."""

import io
import os
import resource
import socket
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest
from batch_wire import NOT_RESIDENT, Item, attached_form

import larder
from larder.base.errors import TruncatedBatch, UnexpectedAnswer
from larder.http.connection import Connection
from larder.http.credentials import Credentials
from larder.http.local import LocalSocket, acceptable, close_all
from larder.reading.frames import Decoder

KEY = Credentials("key", "secret")
ITEMS = [Item(1, 11, b"eleven"), Item(4, 10, b"ten"), Item(0, 10, b"ten"), Item(3, 13, b"")]
REQUEST = [10, 11, 12, 13, 10]


class Files:
    """Open files as they come with an answer."""

    def __init__(self, folder, contents):
        self.paths = []
        self.open = []
        self._taken = False
        for number, content in enumerate(contents):
            path = folder / f"item-{number}"
            path.write_bytes(content)
            self.paths.append(path)
            self.open.append(os.open(path, os.O_RDONLY))

    def take_descriptors(self):
        """All, once."""
        taken, self._taken = self._taken, True
        return [] if taken else list(self.open)

    def closed(self):
        """True if every descriptor is closed."""
        return all(not os.path.exists(f"/proc/self/fd/{file}") for file in self.open)


@pytest.fixture
def files(tmp_path):
    """The items' files."""
    return Files(tmp_path, [item.data for item in ITEMS])


def decoder(files, body=None, **options):
    """A decoder of an answer with files."""
    length = len(attached_form(ITEMS) if body is None else body)
    return Decoder(np.array(REQUEST, "<u4"), length=length, files=files, **options)


def test_items_are_read_from_files(files):
    """Rule: each item comes from its own file, in the order of the entries; no file stays open."""
    received = decoder(files).decode(io.BytesIO(attached_form(ITEMS)))
    assert received.positions == [1, 4, 0, 3]
    assert [bytes(data) for data in received.data] == [b"eleven", b"ten", b"ten", b""]
    assert (received.attached, received.corrupt) == (4, 0)
    assert files.closed()


class Parts(io.RawIOBase):
    """An answer whose entries come in parts with their files, each part only when all files before it are closed."""

    def __init__(self, folder, items, part):
        self.body = attached_form(items)
        self.at = 0
        self.open = []
        self._arrived = []
        self._parts = [items[first : first + part] for first in range(0, len(items), part)]
        self._folder = folder

    def readinto(self, view):
        """No more than the current part."""
        begins = 16 + 32 * self._given
        if self.at == begins and self._parts:
            assert self.all_closed()
            self._come(self._parts.pop(0))
        end = 16 + 32 * self._given if self._given else 16
        size = min(len(view), end - self.at if self._parts or self.at < end else len(self.body) - self.at)
        view[:size] = self.body[self.at : self.at + size]
        self.at += size
        return size

    @property
    def _given(self):
        return len(self.open)

    def _come(self, items):
        for item in items:
            path = self._folder / f"part-{len(self.open)}"
            path.write_bytes(item.data)
            self.open.append(os.open(path, os.O_RDONLY))
            self._arrived.append(self.open[-1])

    def take_descriptors(self):
        """Return the arrived descriptors once."""
        taken, self._arrived = self._arrived, []
        return taken

    def all_closed(self):
        """True if every descriptor is closed."""
        return all(not os.path.exists(f"/proc/self/fd/{file}") for file in self.open)


@pytest.mark.parametrize("part", [1, 32, 70])
def test_items_are_read_while_others_are_opened(tmp_path, part):
    """Rule: the files of a part, however large it is, are read and closed before the next part is waited for."""
    items = [Item(at, 100 + at, b"item %d" % at) for at in range(70)]
    parts = Parts(tmp_path, items, part)
    decoding = Decoder(np.arange(100, 170, dtype="<u4"), length=len(parts.body), files=parts)
    received = decoding.decode(parts)
    assert [bytes(data) for data in received.data] == [item.data for item in items]
    assert parts.all_closed()


def test_items_without_a_file_are_neither_received_nor_failed(tmp_path):
    """Rule: items whose files the gateway could not open are requested again; the others have their own files."""
    files = Files(tmp_path, [b"eleven", b"ten"])
    items = [ITEMS[0], Item(4, 10, status=NOT_RESIDENT, flags=0), ITEMS[2]]
    received = decoder(files, body=attached_form(items)).decode(io.BytesIO(attached_form(items)))
    assert [bytes(data) for data in received.data] == [b"eleven", b"ten"]
    assert (received.positions, received.failures, received.corrupt) == ([1, 0], {}, 0)
    assert files.closed()


def test_closing_leaves_other_files_open(tmp_path):
    """Rule: exactly the given descriptors are closed, in any order; an empty list closes none."""
    files = Files(tmp_path, [b"x"] * 6)
    close_all([])
    close_all([files.open[4], files.open[1], files.open[3]])
    left = [os.path.exists(f"/proc/self/fd/{file}") for file in files.open]
    assert left == [True, False, True, False, False, True]
    close_all(each for each, is_open in zip(files.open, left, strict=True) if is_open)
    assert files.closed()


def test_an_item_within_a_file(tmp_path):
    """Rule: an entry's offset says where in its file the item begins."""
    files = Files(tmp_path, [b"before" + item.data + b"after" for item in ITEMS])
    received = decoder(files).decode(io.BytesIO(attached_form(ITEMS, [6] * 4)))
    assert [bytes(data) for data in received.data] == [item.data for item in ITEMS]


@pytest.mark.parametrize("damage", ["short", "other", "far", "beyond"])
def test_a_file_that_lacks_its_item(files, damage):
    """Rule: a truncated or changed file, or an offset that no file has, costs this item only; it is not received."""
    if damage == "short":
        os.truncate(files.paths[0], 5)
    if damage == "other":
        files.paths[0].write_bytes(b"Eleven")
    offsets = [{"far": 1 << 40, "beyond": (1 << 64) - 1}.get(damage, 0), 0, 0, 0]
    received = decoder(files).decode(io.BytesIO(attached_form(ITEMS, offsets)))
    assert received.positions == [4, 0, 3]
    assert received.corrupt == 1
    assert files.closed()


def test_an_evicted_item_stays_readable(files):
    """Rule: a removed file stays readable while it is open."""
    for path in files.paths:
        path.unlink()
    assert decoder(files).decode(io.BytesIO(attached_form(ITEMS))).attached == 4


@pytest.mark.parametrize("number", [0, 3, 5])
def test_another_number_of_files_than_items(tmp_path, number):
    """Rule: if files were lost in transit, none is read, and all are closed."""
    files = Files(tmp_path, [b"ten"] * number)
    decoding = decoder(files)
    with pytest.raises(TruncatedBatch, match=f"{number} of 4 open files"):
        decoding.decode(io.BytesIO(attached_form(ITEMS)))
    assert decoding.received.positions == []
    assert files.closed()


def test_every_cut(tmp_path):
    """Rule: an answer that is cut anywhere gives nothing; its files are closed, or wait for the connection's end."""
    body = attached_form(ITEMS)
    for size in range(len(body)):
        files = Files(tmp_path, [item.data for item in ITEMS])
        decoding = decoder(files)
        with pytest.raises(TruncatedBatch):
            decoding.decode(io.BytesIO(body[:size]))
        assert decoding.received.positions == []
        close_all(files.take_descriptors())
        assert files.closed()


def test_every_flipped_byte(tmp_path):
    """Rule: with any one byte wrong, the received items have their right bytes and were requested."""
    body = attached_form(ITEMS)
    for at in range(len(body)):
        files = Files(tmp_path, [item.data for item in ITEMS])
        decoding = decoder(files)
        damaged = bytearray(body)
        damaged[at] ^= 1
        try:
            decoding.decode(io.BytesIO(damaged))
        except (TruncatedBatch, UnexpectedAnswer):
            assert decoding.received.positions == []
        for position, data in zip(decoding.received.positions, decoding.received.data, strict=True):
            assert bytes(data) == {1: b"eleven", 4: b"ten", 0: b"ten", 3: b""}[position]
        for file in files.open:
            if os.path.exists(f"/proc/self/fd/{file}"):
                os.close(file)


def test_files_nobody_can_bring():
    """Rule: over TCP, an answer that claims to have files is refused as not a gateway's."""
    with pytest.raises(UnexpectedAnswer):
        decoder(None).decode(io.BytesIO(attached_form(ITEMS)))


def test_more_than_the_limit(files):
    """Rule: the limit of an answer counts its items' bytes, in the body and in files."""
    with pytest.raises(UnexpectedAnswer):
        decoder(files, limit=11).decode(io.BytesIO(attached_form(ITEMS)))


# --- connections


@contextmanager
def listening(path, answer):
    """A server on a unix socket: ``answer`` gets each connection after a whole head was read. Yields the heads."""
    heads = []

    def serve():
        while True:
            sock, _ = listener.accept()
            with sock:
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = sock.recv(1 << 16)
                    if not piece:
                        break
                    data += piece
                if data == b"":
                    return
                heads.append(data.decode().lower())
                answer(sock)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heads
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
                last.shutdown(socket.SHUT_WR)
                thread.join()


def attaching(files):
    """Sends some files with the head, and some within the body."""

    def answer(sock):
        socket.send_fds(sock, [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nh"], files[:2])
        socket.send_fds(sock, [b"el"], files[2:3])
        socket.send_fds(sock, [b"lo"], files[3:])

    return answer


def near(path):
    """A connection that uses a socket; the address leads nowhere."""
    connection = Connection("http://127.0.0.1:1", credentials=KEY, timeout=20)
    connection.local = LocalSocket.at(str(path))
    return connection


def test_files_come_in_order(tmp_path, files):
    """Rule: files that come with the head or with any part of the body are collected, in order."""
    with listening(tmp_path / "s", attaching(files.open)), closing(near(tmp_path / "s")) as connection:
        with connection.exchange("GET", "/") as response:
            assert response.read() == b"hello"
            taken = response.attached.take_descriptors()
        assert [os.pread(file, 10, 0) for file in taken] == [item.data for item in ITEMS]
        assert not any(os.get_inheritable(file) for file in taken)
        assert response.attached.take_descriptors() == []
    for file in [*taken, *files.open]:
        os.close(file)


def test_files_that_nobody_takes_are_closed(tmp_path, files):
    """Rule: files of an answer that were not taken are closed before the connection's next request, and at its end."""
    before = len(os.listdir("/proc/self/fd"))
    with listening(tmp_path / "s", attaching(files.open)):
        connection = near(tmp_path / "s")
        with connection.exchange("GET", "/") as response:
            assert response.read() == b"hello"
            held = response.attached
        assert held.take_descriptors() == []
        with connection.exchange("GET", "/") as response:
            assert response.read(1) == b"h"
        connection.close()
        assert response.attached.take_descriptors() == []
    assert len(os.listdir("/proc/self/fd")) == before
    for file in files.open:
        os.close(file)


def test_bytes_are_requested_after_a_failure(tmp_path):
    """Rule: after a failed request the next one asks for bytes, because files may have caused the failure."""
    dataset = larder.DatasetInfo("d", "0" * 64, 10)
    retry = larder.Retry(attempts=2, base=0)
    with listening(tmp_path / "s", lambda sock: None) as heads:
        reader = larder.BatchReader("http://127.0.0.1:1", dataset, credentials=KEY, retry=retry)
        reader._api.connection.local = LocalSocket.at(str(tmp_path / "s"))
        with pytest.raises(larder.GatewayUnavailable):
            reader.fetch([1])
    assert [f"x-larder-descriptors: {acceptable()}" in head for head in heads] == [True, False]


def test_an_answer_leaves_descriptors_for_others():
    """Rule: a process accepts files for only a part of its descriptors at once."""
    assert 0 < acceptable() < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
