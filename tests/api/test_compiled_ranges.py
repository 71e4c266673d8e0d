"""Repeated ranges by compiled code, read from files: what it answers, and that it leaves everything else to the Python code."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.api.s3.compiled import LARGEST, knows_pages
from gateway.model.s3.ranges import parse_range
from rig.world import KIB, content
from tests.compiled import HEAD, RANGES, Watched, Wire, head

BLOCK, SIZE = 256 * KIB, 700 * KIB
OBJECT = content(SIZE, "object")
FIRST = b"bytes=0-9"
NUMBERED = re.compile(rb"x-amz-request-id: [0-9A-F]{16}\r\ndate: [^\r]+ GMT\r\n\r\n")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[int, int]]:
    """The blocks 0 and 2 of an object of three, open."""
    opened = {}
    for number in (0, 2):
        path = tmp_path / f"{number}"
        path.write_bytes(OBJECT[number * BLOCK : (number + 1) * BLOCK])
        opened[number] = os.open(path, os.O_RDONLY)
    yield opened
    for file in opened.values():
        os.close(file)


@pytest.fixture
def wire(files: dict[int, int]) -> Iterator[Wire]:
    """A connection whose heads have a signed Range."""
    made = Wire(head(b"/b/accepted", ranged=FIRST))
    made.put_ranges(b"/b/k", SIZE, BLOCK, files)
    yield made
    made.close()


def body_of(wire: Wire, first: int, stop: int) -> bytes:
    """The received body of a range, whose head must name it."""
    start, _, body = wire.received().partition(b"\r\n\r\n")
    lines = b"content-length: %d\r\ncontent-range: bytes %d-%d/%d\r\n" % (stop - first, first, stop - 1, SIZE)
    own = (start + b"\r\n\r\n").removeprefix(RANGES + lines)
    assert NUMBERED.fullmatch(own)
    return body


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("invocation", [b"", b"6f9619ff-8b86-d011-b42d-00cf4fc964ff"])
def test_an_answer(files: dict[int, int], signs: bool, invocation: bytes) -> None:
    """Rule: a range is sent with the lines that name it, Range signed or not; it is noted with its first byte and end."""
    wire = Wire(head(b"/b/accepted", invocation=invocation and b"0" * 36, ranged=FIRST, signs=signs))
    wire.put_ranges(b"/b/k", SIZE, BLOCK, files)
    assert wire.answer(head(b"/b/k", invocation=invocation, ranged=b"bytes=1000-70000", signs=signs))
    assert [(start, stop) for *_, start, stop in wire.reads.answered] == [(1000, 70001)]
    assert body_of(wire, 1000, 70001) == OBJECT[1000:70001]


def test_the_end_of_the_object(wire: Wire) -> None:
    """Rule: a range beyond the end stops there."""
    assert wire.answer(head(b"/b/k", ranged=b"bytes=%d-999999999999999999" % (SIZE - 7)))
    assert body_of(wire, SIZE - 7, SIZE) == OBJECT[-7:]


@pytest.mark.parametrize(
    "value",
    [
        b"bytes=0-", b"bytes=-5", b"bytes=9-1", b"bytes=0-1,3-4", b"bytes=-", b"bytes=", b"items=0-1", b"bytes=+1-2",
        b"bytes=0 -1",
        b"bytes=0-1000000000000000000", b"bytes=%d-%d" % (SIZE, SIZE + 1), b"bytes=0-%d" % LARGEST,
        b"bytes=%d-%d" % (BLOCK - 1, BLOCK), b"bytes=%d-%d" % (BLOCK, BLOCK + 1), b"Bytes=0-1", b"bytes=0-1 ", b"bytes=0x1-2",
    ],
)  # fmt: skip
def test_ranges_that_it_leaves(wire: Wire, value: bytes) -> None:
    """Rule: open ranges and suffixes, what is no range, outside the object, too long, of two blocks or of a block that is not
    open: all are left to the Python code.
    """
    request = head(b"/b/k", ranged=value)
    assert not wire.answer(request)
    assert wire.general == [request]
    assert wire.received() == b""


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.one_of(st.from_regex(rb"bytes=[0-9]{0,19}-[0-9]{0,19}", fullmatch=True), st.binary(max_size=12)))
@example(value=b"bytes=007-0009")
def test_any_range(files: dict[int, int], value: bytes) -> None:
    """Rule: what is answered is what ``parse_range`` makes of the value."""
    wire = Wire(head(b"/b/accepted", ranged=FIRST))
    wire.put_ranges(b"/b/k", SIZE, BLOCK, files)
    if wire.answer(head(b"/b/k", ranged=value)):
        wanted = parse_range(value.decode("latin-1"))
        span = wanted and wanted.resolve(SIZE)
        assert span is not None
        assert body_of(wire, *span) == OBJECT[slice(*span)]
    wire.close()


@given(
    at=st.integers(0, 500),
    byte=st.binary(min_size=1, max_size=1),
    kind=st.sampled_from(["replace", "insert", "delete"]),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_of_a_head(files: dict[int, int], at: int, byte: bytes, kind: str) -> None:
    """Rule: a head that differs from a signed one in any byte is never answered."""
    wire, request = Wire(head(b"/b/accepted", ranged=FIRST)), head(b"/b/k", ranged=b"bytes=5-14")
    wire.put_ranges(b"/b/k", SIZE, BLOCK, files)
    at = min(at, len(request) - 1)
    changed = request[:at] + (b"" if kind == "delete" else byte) + request[at + (kind != "insert") :]
    assert wire.answer(changed) is (changed == request)
    wire.close()


@given(data=st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    """Rule: what is no head of the shape is left to the Python code."""
    wire = Wire(head(b"/b/accepted", ranged=FIRST))
    for prefix in (b"", b"GET /b/k", head(b"/b/k", ranged=FIRST)[:-30]):
        assert not wire.answer(prefix + data)
    assert wire.received() == b""


@pytest.mark.parametrize("change", ["removed", "cut", "written"])
def test_a_file_that_has_changed(wire: Wire, tmp_path: Path, change: str) -> None:
    """Rule: a block whose file was removed, cut or written to is left to the Python code."""
    path = tmp_path / "0"
    assert wire.answer(head(b"/b/k", ranged=FIRST))
    if change == "removed":
        path.unlink()
    elif change == "cut":
        os.truncate(path, 5)
    else:
        path.write_bytes(OBJECT[:BLOCK])
        os.utime(path, ns=(1, 1))
    assert not wire.answer(head(b"/b/k", ranged=FIRST))


def test_guards_of_a_block(wire: Wire, files: dict[int, int]) -> None:
    """Rule: a block is read while its guards hold."""
    disk = Watched(readable=True)
    wire.put_ranges(b"/b/k", SIZE, BLOCK, files, ("is", disk, "readable", True))
    assert wire.answer(head(b"/b/k", ranged=FIRST))
    disk.readable = False
    assert not wire.answer(head(b"/b/k", ranged=FIRST))


def test_a_block_that_is_closed(wire: Wire) -> None:
    """Rule: a block that is not among the open ones any more is left to the Python code, and its file is not kept open."""
    assert wire.answer(head(b"/b/k", ranged=FIRST))
    opened: Any = wire.reads.objects[b"/b/k"][2]
    opened[0][0].clear()
    assert not wire.answer(head(b"/b/k", ranged=FIRST))


def test_a_full_socket(wire: Wire) -> None:
    """Rule: a range that the socket does not take whole is left to the connection's reads, which learn how much was taken, and
    count it.
    """
    request = head(b"/b/k", ranged=b"bytes=0-%d" % (BLOCK - 1))
    answered = 0
    while not wire.unfinished:
        answered = len(wire.reads.answered)
        assert wire.answer(request)
    ((unfinished, taken),) = wire.unfinished
    assert unfinished == request
    assert len(wire.reads.answered) == answered
    data = wire.received()
    begun = data[len(data) - taken :].partition(b"\r\n\r\n")[2]
    assert 0 <= len(begun) < BLOCK
    assert OBJECT.startswith(begun)


@pytest.fixture
def whole(files: dict[int, int]) -> Iterator[Wire]:
    """A connection that is sent an object of one block, whole."""
    made = Wire()
    made.put_file(b"/b/k", BLOCK, files[0])
    yield made
    made.close()


def test_a_whole_object(whole: Wire) -> None:
    """Rule: an object of one block is sent from its file, and noted."""
    assert whole.answer(head(b"/b/k"))
    assert [(start, stop) for *_, start, stop in whole.reads.answered] == [(0, BLOCK)]
    start, _, body = whole.received().partition(b"\r\n\r\n")
    assert NUMBERED.fullmatch(b"x-amz-request-id: " + (start + b"\r\n\r\n").removeprefix(HEAD % BLOCK))
    assert body == OBJECT[:BLOCK]


def test_a_whole_object_whose_file_has_changed(whole: Wire, tmp_path: Path) -> None:
    """Rule: an object whose file was removed is left to the Python code."""
    (tmp_path / "0").unlink()
    assert not whole.answer(head(b"/b/k"))
    assert whole.received() == b""


@pytest.mark.parametrize(("size", "sent"), [(LARGEST, True), (LARGEST + 1, False)])
def test_large_objects(tmp_path: Path, size: int, sent: bool) -> None:
    """Rule: a larger object is left to the Python code."""
    path = tmp_path / "large"
    path.write_bytes(bytes(size))
    wire = Wire()
    with path.open("rb") as file:
        wire.put_file(b"/b/k", size, file.fileno())
        assert wire.answer(head(b"/b/k")) is sent
    wire.close()


def test_a_whole_object_is_no_range(wire: Wire) -> None:
    """Rule: a head without Range has another shape."""
    assert not wire.answer(head(b"/b/k"))


@pytest.mark.parametrize(("error", "known"), [(errno.EBADF, True), (errno.ENOSYS, False), (errno.EPERM, False)])
def test_kernels_that_do_not_tell_which_pages_they_have(error: int, known: bool) -> None:
    """Rule: an old kernel, or a container's profile that forbids the question, leaves files to the Python code."""

    def syscall(*_arguments: object) -> int:
        ctypes.set_errno(error)
        return -1

    assert knows_pages(syscall) is known
