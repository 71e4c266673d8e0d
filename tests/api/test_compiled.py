"""Repeated hits by compiled code: what it answers, and that it leaves everything else to the Python code.

``tests/scenarios/test_repeated_heads.py`` compares its answers with those of the general path, of a running gateway.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.s3 import compiled
from gateway.api.s3.compiled import CompiledHits
from gateway.model.guards import Guard
from gateway.server.template import DATE, SIGNATURE
from tests.compiled import DAY, FAR, HEAD, Watched, Wire, head, holds


def test_the_library_is_there() -> None:
    """Rule: where the tests run there is a compiler, so the gateway has the compiled code."""
    assert compiled.AVAILABLE


def test_an_answer() -> None:
    """Rule: an answer is the object's head, the next number, the date, and the bytes; it is noted to be counted."""
    wire = Wire()
    wire.put(b"/b/k", b"of k")
    before = time.time()
    assert wire.answer(head(b"/b/k"))
    (sent, reads, now, seconds, start, stop), *others = wire.reads.answered
    assert (sent, reads, start, stop, others) == (b"/b/k", wire.reads.reads, 0, 4, [])
    assert before <= now <= time.time()
    assert 0 <= seconds < 60
    pattern = re.escape(HEAD % 4) + rb"00000000000000A0\r\ndate: [^\r]+ GMT\r\n\r\nof k"
    assert re.fullmatch(pattern, wire.received())
    assert wire.general == []


@given(
    path=st.text("abcXYZ019-._~/", max_size=20).map(lambda text: b"/" + text.encode()),
    known=st.booleans(),
    right=st.booleans(),
)
def test_any_path_and_signature(path: bytes, known: bool, right: bool) -> None:
    """Rule: a signed head of a known path is answered; an unknown path or another secret is left to the Python code."""
    wire = Wire()
    if known:
        wire.put(path, b"x")
    request = head(path, secret="secret-of-the-tests" if right else "another")
    assert wire.answer(request) is (known and right)
    assert wire.general == ([] if known and right else [request])
    assert bool(wire.received()) is (known and right)


@given(
    at=st.integers(0, 400),
    byte=st.binary(min_size=1, max_size=1),
    kind=st.sampled_from(["replace", "insert", "delete"]),
)
def test_any_change_of_a_head(at: int, byte: bytes, kind: str) -> None:
    """Rule: a head that differs from a signed one in any byte is never answered."""
    wire, request = Wire(), head(b"/b/k")
    at = min(at, len(request) - 1)
    changed = request[:at] + (b"" if kind == "delete" else byte) + request[at + (kind != "insert") :]
    for path in (b"/b/k", b"/b", b"/", b"/b/kk"):
        wire.put(path, b"x")
    assert wire.answer(changed) is (changed == request)
    wire.received()


@given(data=st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    """Rule: what is no head of the shape is left to the Python code."""
    wire = Wire()
    assert not wire.answer(data)
    assert wire.general == [data]
    wire.received()


def test_heads_with_the_ids_of_an_sdk() -> None:
    """Rule: an id that is signed belongs to the text that is verified."""
    wire = Wire(head(b"/b/k", invocation=b"0" * 36))
    wire.put(b"/b/k", b"x")
    request = head(b"/b/k", invocation=b"6f9619ff-8b86-d011-b42d-00cf4fc964ff")
    assert wire.answer(request)
    assert not wire.answer(request.replace(b"6f9619ff", b"6f9619fe"))
    wire.received()


def test_a_second_is_prepared_once() -> None:
    """Rule: requests of one date share what ``begin`` gives; an invalid date is left to the Python code, and asked for again."""
    wire = Wire()
    wire.put(b"/b/k", b"x")
    dates = [DAY + b"T120000Z", DAY + b"T120000Z", DAY + b"T120001Z", b"99999999T999999Z", DAY + b"T120001Z"]
    assert [wire.answer(head(b"/b/k", date)) for date in dates] == [True, True, True, False, True]
    assert wire.begun == [dates[0], dates[2], dates[3]]
    wire.received()


@pytest.mark.parametrize(("since", "until", "dated"), [(FAR, FAR, FAR), (0.0, 1.0, FAR), (0.0, FAR, 1.0)])
def test_times(since: float, until: float, dated: float) -> None:
    """Rule: an object is sent from its first moment to before its last one, and a date counts only that long."""
    wire = Wire(until=dated)
    wire.put(b"/b/k", b"x", since=since, until=until)
    assert not wire.answer(head(b"/b/k"))
    wire.received()


def test_bytes_that_have_left_memory() -> None:
    """Rule: a copy without its bytes is not sent."""
    wire = Wire()
    copy = wire.put(b"/b/k", b"bytes")
    copy.body = b""
    assert not wire.answer(head(b"/b/k"))
    assert wire.received() == b""


NUMBERS = memoryview(bytearray(80)).cast("Q")
STATE: Any = Watched(value=NUMBERS, half=0.5, when=time.monotonic() + 1000)
ITEMS = {"key": STATE}


@pytest.mark.parametrize(
    ("guard", "held"),
    [
        (("is", STATE, "value", NUMBERS), True), (("is", STATE, "value", STATE), False), (("is", STATE, "none", None), False),
        (("item", ITEMS, "key", STATE), True), (("item", ITEMS, "key", None), False), (("item", ITEMS, "none", STATE), False),
        (("item", ITEMS, [], STATE), False), (("at", NUMBERS, 3, 0), True), (("at", NUMBERS, 3, 1), False),
        (("at", NUMBERS, 99, 0), False), (("most", STATE, "half", 0.5), True), (("most", STATE, "half", 0.4), False),
        (("most", STATE, "value", 9.0), False), (("until", STATE, "when", None), True), (("until", STATE, "half", None), False),
        (("until", STATE, "none", None), False),
    ],
)  # fmt: skip
def test_guards(guard: Guard, held: bool) -> None:
    """Rule: an object is sent while every guard holds; one that cannot be compared does not hold."""
    assert holds([guard]) is held
    assert holds([("is", STATE, "value", NUMBERS), guard]) is held


def test_guards_of_the_connection() -> None:
    """Rule: the guards of a connection hold for each request, and may be replaced; before it has any, it answers nothing, though
    another connection has made an object ready.
    """
    wire = Wire(guards=[("is", STATE, "value", None)])
    wire.put(b"/b/k", b"x")
    assert not wire.answer(head(b"/b/k"))
    wire.reads.guards = None
    assert not wire.answer(head(b"/b/k"))
    wire.reads.guards = ()
    assert wire.answer(head(b"/b/k"))
    wire.received()


def test_a_full_socket() -> None:
    """Rule: what the socket does not take is given to the channel, with the number of bytes that it took."""
    wire, body = Wire(), bytes(range(256)) * 4096
    wire.put(b"/b/k", body)
    wire.far.setblocking(False)
    while not wire.kept:
        assert wire.answer(head(b"/b/k"))
    (whole, taken), *others = wire.kept
    assert others == []
    assert whole.endswith(body)
    assert 0 <= taken < len(whole)
    wire.far.setblocking(True)
    assert wire.received().endswith(whole[:taken])


def test_a_socket_that_has_failed() -> None:
    """Rule: an answer for a client that has left is given to the channel as failed, and counts as answered."""
    wire = Wire()
    wire.put(b"/b/k", b"x")
    wire.far.close()
    assert wire.answer(head(b"/b/k"))
    assert [taken for _, taken in wire.kept] == [-1]
    wire.close()


def test_many_answers_are_counted_together() -> None:
    """Rule: the answers are handed over when there are 256."""
    wire = Wire()
    wire.put(b"/b/k", b"x")
    for _ in range(600):
        assert wire.answer(head(b"/b/k"))
        wire.far.recv(1000)
    assert (wire.drains, len(wire.reads.answered)) == (2, 600 - 2 * 256)
    wire.received()


def test_a_shape_that_it_does_not_take() -> None:
    """Rule: heads with more slots than it knows are left to the Python code."""
    template: Any = Watched(names=(DATE, SIGNATURE, *[b"traceparent"] * 7), pieces=(b"",) * 19, range_at=None)
    with closing(Wire()) as wire:
        assert wire.reads.answer_of(template, ()) is None


@pytest.mark.parametrize("arguments", [(), ([], bytearray(8), b""), ([None] * 13, b"", b""), ((), bytearray(), b"")])
def test_what_are_no_heads_of_a_connection(arguments: tuple[Any, ...]) -> None:
    """Rule: a list or a state of another size is refused."""
    with pytest.raises(TypeError, match="not the heads"):
        compiled._repeated.answer(*arguments)


def test_a_connection_keeps_a_bounded_number_of_objects() -> None:
    """Rule: no kind of readers has more objects than the limit, also if so many kinds came after it that it was given up."""
    engine: Any = Watched(guards=lambda _ready: [("is", STATE, "value", NUMBERS)])
    hits, sent = CompiledHits(engine, Watched(), 10), Watched(head=b"", size=1, blocks={})  # type: ignore[arg-type]
    sent.ready = Watched(record=Watched(block_size=1), since=0.0, until=FAR)
    objects = hits.objects("a", b"x", False, False)  # type: ignore[arg-type]
    for number in range(100):
        hits.objects("a", b"made up %d" % number, False, False)  # type: ignore[arg-type]
    for number in range(95):
        hits.remember(objects, b"/b/%d" % number, sent)  # type: ignore[arg-type]
        assert 0 < len(objects) <= 10


def test_kinds_of_readers_are_kept_apart() -> None:
    """Rule: an object is sent again only to the caller, at the Host and in the form for which it was rendered."""
    hits, callers = CompiledHits(Watched(), Watched(), 10), ["a", "b"]  # type: ignore[arg-type]
    ways = [(checked, ranged) for checked in (True, False) for ranged in (True, False)]
    kinds = [(caller, host, *way) for caller in callers for host in (b"x", b"y") for way in ways]
    objects = [hits.objects(*kind) for kind in kinds]  # type: ignore[arg-type]
    assert len({id(kind) for kind in objects}) == len(kinds)
    assert all(hits.objects(*kind) is mine for kind, mine in zip(kinds, objects, strict=True))  # type: ignore[arg-type]
