"""Answers that an application gives at once, in ``begin``: without a task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from gateway.model.errors import BlobGone
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.cycle import DIRECT, Cycle
from gateway.server.head import encode_lines
from rig.processes import wait_until
from tests.server.applications import body, head
from tests.server.conftest import read_all, read_response

GET = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
SMALL, LARGE = 100, 32 * 1024**2


class Prompt:
    """Answers with a file at once, and names the task and the path; requests of ``/later`` by a task."""

    def __init__(self, path: Path, size: int) -> None:
        path.write_bytes(os.urandom(size))
        self.data = path.read_bytes()
        self.fd = os.open(path, os.O_RDONLY)
        self.claimed = size
        self.left: list[bool] = []
        self.sent: list[bool] = []
        self.failure: Exception | None = None

    async def __call__(self, scope, receive, send) -> None:
        """Answer in a task."""
        await send(head(4, (b"x-path", scope["raw_path"])))
        await send(body(b"task"))

    def begin(self, scope, receive, send, send_files) -> Awaitable[None] | None:
        """Answer at once."""
        if scope["path"] == "/later":
            return self(scope, receive, send)
        if self.failure is not None:
            raise self.failure
        if scope["path"] == "/deferred":
            cycle = scope["extensions"][DIRECT]()
            cycle.deferred = True
            asyncio.get_running_loop().call_soon(self._send, cycle, scope, receive, send)
            return None
        if scope["path"] == "/nothing":
            return None
        task = b"no" if asyncio.current_task() is None else b"yes"
        lines = [(b"content-length", b"%d" % self.claimed), (b"x-task", task), (b"x-path", scope["raw_path"])]
        rest = send_files(200, encode_lines(lines), [(self.fd, 0, self.claimed, os.fstat(self.fd).st_ino)])
        self.left.append(rest is not None)
        return rest

    def _send(self, cycle: Cycle, scope: Scope, receive: Receive, send: Send) -> None:
        data = bytearray(self.data)
        lines = [(b"content-length", b"%d" % self.claimed), (b"x-path", scope["raw_path"])]
        self.sent.append(cycle.send_now(200, encode_lines(lines), [data[:10], memoryview(data)[10:]]))
        if not self.sent[-1]:
            cycle.go_on(self(scope, receive, send))
        data[:] = bytes(len(data))


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[Prompt]:
    """An application with a small file."""
    made = Prompt(tmp_path / "file", SMALL)
    yield made
    os.close(made.fd)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Prompt]:
    """An application with a file that fits in no socket."""
    made = Prompt(tmp_path / "file", LARGE)
    yield made
    os.close(made.fd)


def test_an_answer_given_at_once_needs_no_task(start, prompt):
    """Rule: the request is answered before ``begin`` returns, and the connection stays usable."""
    with start(prompt).connect() as sock:
        for _ in range(2):
            sock.sendall(GET % b"/a")
            answer, data = read_response(sock)
            assert b"x-task: no\r\n" in answer
            assert data == prompt.data
        sock.sendall(LAST % b"/later")
        assert read_all(sock).endswith(b"task")


def test_a_long_pipeline_is_answered_in_order(start, prompt):
    """Rule: requests that arrive together are answered in their order, however many they are."""
    paths = [b"/%d" % number for number in range(3000)]
    with start(prompt).connect() as sock:
        sock.sendall(b"".join(GET % path for path in paths) + LAST % b"/later")
        received = read_all(sock)
    found = [line.removeprefix(b"x-path: ") for line in received.split(b"\r\n") if line.startswith(b"x-path: ")]
    assert found == [*paths, b"/later"]


def test_a_slow_reader_gets_the_rest_from_a_task(start, large):
    """Rule: bytes that the socket does not take at once are sent when it can take them; the next request waits."""
    with start(large).connect() as sock:
        sock.sendall(GET % b"/a")
        received = sock.recv(1)  # it has begun: the next request does not arrive together with it
        sock.sendall(LAST % b"/later")
        received += read_all(sock)
    assert received.partition(b"\r\n\r\n")[2].startswith(large.data)
    assert received.endswith(b"task")
    assert large.left == [True]


def test_a_file_that_is_too_short_breaks_the_connection(start, large):
    """Rule: a file that turns out too short after the first byte breaks the connection."""
    large.claimed = LARGE + 1
    with start(large).connect() as sock:
        sock.sendall(GET % b"/a")
        with pytest.raises(ConnectionError):
            read_all(sock)


@pytest.mark.parametrize("failure", [ValueError("a mistake"), BlobGone("a file is gone"), None])
def test_an_application_that_does_not_answer_is_an_internal_error(start, prompt, failure):
    """Rule: raising before the answer, or returning without one, is answered 500, as in a task."""
    prompt.failure = failure
    with start(prompt).connect() as sock:
        sock.sendall(GET % b"/nothing")
        assert read_all(sock).startswith(b"HTTP/1.1 500")


def test_a_deferred_answer_is_sent_without_a_task(start, prompt):
    """Rule: a request that ``begin`` defers is answered later, from memory that need not last."""
    with start(prompt).connect() as sock:
        for _ in range(2):
            sock.sendall(GET % b"/deferred")
            answer, data = read_response(sock)
            assert b"x-path: /deferred\r\n" in answer
            assert data == prompt.data
        sock.sendall(LAST % b"/deferred")
        assert read_all(sock).endswith(b"connection: close\r\n\r\n" + prompt.data)


def test_a_slow_reader_of_a_deferred_answer_gets_all_of_it(start, large):
    """Rule: the transport keeps what the socket does not take; the next request is then answered by a task."""
    with start(large).connect() as sock:
        sock.sendall(GET % b"/deferred")
        received = sock.recv(1)
        sock.sendall(LAST % b"/deferred")
        wait_until(lambda: len(large.sent) == 2, 60.0, "the second request")
        received += read_all(sock)
    assert large.sent == [True, False]
    assert received.partition(b"\r\n\r\n")[2].startswith(large.data)
    assert received.endswith(b"task")
