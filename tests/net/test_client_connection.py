"""Parsing the answers of one connection, for any split into pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.net.connection import MAX_HEAD, IncomingAnswer, KnownHead, ReusingConnection
from gateway.net.deadlines import NEVER
from tests.effort import examples
from tests.net.wire import ADDRESS, REQUEST, Keeper, Played, Wire

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_NAMES = st.sampled_from([b"ETag", b"x-amz-meta-a", b"X-AMZ-META-A", b"!#$%&'*+.^_`|~-", b"Date"])
_VALUES = st.text('ab :,="\t\xe9\xff', max_size=12).map(lambda text: text.strip(" \t").encode("latin-1"))
_INTERIM = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"]


@dataclass(frozen=True)
class Sent:
    """An origin's answer: its bytes, and the expected headers and body. ``ends``: the framing determines the end."""

    data: bytes
    headers: list[tuple[str, str]]
    body: bytes
    ends: bool


@st.composite
def answers(draw: st.DrawFn) -> Sent:
    """Answers with every framing, after interim answers."""
    pairs = draw(st.lists(st.tuples(_NAMES, _VALUES), max_size=6))
    chunks = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    framing = draw(st.sampled_from(["length", "chunked", "end of the connection"]))
    body = payload = b"".join(chunks)
    if framing == "length":
        pairs.append((b"Content-Length", b"%d" % len(body)))
    elif framing == "chunked":
        pairs.append((b"Transfer-Encoding", b"chunked"))
        trailer = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
        payload = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailer + b"\r\n"
    pairs = draw(st.permutations(pairs))
    space = draw(st.sampled_from([b"", b" ", b"  \t"]))
    # llhttp knows "chunked" without white space after it only.
    after = b"" if framing == "chunked" else space
    head = b"".join(b"%b:%b%b%b\r\n" % (name, space, value, after) for name, value in pairs)
    before = b"".join(draw(st.lists(st.sampled_from(_INTERIM), max_size=2)))
    data = before + b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + payload
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
    return Sent(data, headers, body, framing != "end of the connection")


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes in pieces."""
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples of a property."""
    with asyncio.Runner() as running:
        yield running


def in_loop(runner: asyncio.Runner, work: Callable[[], None]) -> None:
    """Run something that needs a running event loop."""

    async def run() -> None:
        work()

    runner.run(run())


PLACES = st.lists(st.integers(0, 2**16), max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(sent=answers(), places=PLACES)
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(
    runner: asyncio.Runner, sent: Sent, places: list[int]
) -> None:
    """Rule: headers and body do not depend on how the network cuts them; interim answers are passed over."""

    def play() -> None:
        played = Played()
        played.hear(cut(sent.data, places))
        assert played.answer.complete == sent.ends
        played.hang_up()
        assert (played.answer.status, played.answer.headers, played.body) == (200, sent.headers, sent.body)
        assert played.answer.complete
        assert played.keeper.ends == [sent.ends]

    in_loop(runner, play)


@settings(max_examples=examples(100), deadline=None)
@given(sent=answers(), places=PLACES, at=st.integers(0, 2**16))
def test_a_truncated_answer_never_passes_for_a_whole_one(
    runner: asyncio.Runner, sent: Sent, places: list[int], at: int
) -> None:
    """Rule: a connection that ends before the framing's end fails the answer, and adds no byte to the body."""

    def play() -> None:
        data = sent.data[: at % len(sent.data)]
        played = Played()
        played.hear(cut(data, places))
        played.hang_up()
        if sent.ends:
            assert not played.answer.complete
            assert played.keeper.ends == [False]
        assert sent.body.startswith(played.body)

    in_loop(runner, play)


@settings(max_examples=examples(100), deadline=None)
@given(sent=answers(), after=st.binary(min_size=1, max_size=30), places=PLACES)
def test_bytes_that_nobody_asked_for_end_the_connection(
    runner: asyncio.Runner, sent: Sent, after: bytes, places: list[int]
) -> None:
    """Rule: bytes after an answer are not read as another one, whether they come with it or later."""

    def play() -> None:
        if not sent.ends or not after.strip(b"\r\n"):
            return
        played = Played()
        played.hear(cut(sent.data + after, places))
        assert played.answer.complete
        assert played.body == sent.body
        assert played.wire.is_closing()

    in_loop(runner, play)


@st.composite
def garbled(draw: st.DrawFn) -> bytes:
    """Answers with bytes changed, removed and inserted, or no answers at all."""
    data = bytearray(draw(st.one_of(answers().map(lambda sent: sent.data), st.binary(max_size=200))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


@settings(max_examples=examples(200), deadline=None)
@given(data=garbled(), places=PLACES, method=st.sampled_from(["GET", "HEAD"]))
def test_whatever_a_peer_sends_ends_in_an_answer_or_a_failure(
    runner: asyncio.Runner, data: bytes, places: list[int], method: str
) -> None:
    """Rule: no bytes raise, and after the end of the connection every exchange has ended, exactly once."""

    def play() -> None:
        played = Played(method)
        played.hear(cut(data, places))
        played.hang_up()
        answer = played.answer
        assert answer.begun.done()
        assert answer.complete != (answer.failure is not None)
        assert answer.complete <= (200 <= answer.status <= 999)
        assert (answer.begun.exception() is None) == bool(answer.status) or answer.failure is not None
        assert len(played.keeper.ends) == 1
        if method == "HEAD":
            assert played.body == b""

    in_loop(runner, play)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"x: 1\r\n" * (MAX_HEAD // 6),
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_HEAD // 25 + 1),
        b"HTTP/1.1 200 " + b"O" * MAX_HEAD,
    ],
    ids=["one long header", "many headers", "many interim answers", "a long reason"],
)
async def test_a_head_has_a_limit(head: bytes) -> None:
    """Rule: the memory that a peer can occupy before an answer begins is bounded."""
    played = Played()
    played.hear([head[at : at + 4096] for at in range(0, len(head), 4096)])
    assert (played.refused, played.wire.is_closing()) == ("invalid", True)


@pytest.mark.parametrize("odd", [b"5;x=" + b"a" * 200_000, b"0\r\nx: " + b"a" * 200_000], ids=["extension", "trailer"])
async def test_what_is_between_chunks_has_a_limit(odd: bytes) -> None:
    """Rule: endless extensions or trailers fail the answer."""
    played = Played()
    played.hear([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"])
    played.hear([odd[at : at + 4096] for at in range(0, len(odd), 4096)])
    assert played.body == b"hello"
    assert played.answer.failure is not None
    assert played.answer.failure.kind == "invalid"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_an_ambiguous_head_is_refused(answer: bytes) -> None:
    """Rule: an answer with an ambiguous head is refused (RFC 9112, sections 5 and 6)."""
    played = Played()
    played.hear([answer])
    assert (played.refused, played.wire.is_closing()) == ("invalid", True)


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body_leaves_the_connection_to_the_next_one(method: str, head: bytes) -> None:
    """Rule: HEAD, 204 and 304 have no body, with any Content-Length (RFC 9112, section 6.3)."""
    played = Played(method)
    played.hear([head])
    assert (played.answer.complete, played.keeper.ends) == (True, [True])
    played.method = "GET"
    played.ask()
    played.hear([EMPTY])
    assert (played.answer.status, played.answer.complete) == (200, True)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (EMPTY, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: x\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
async def test_the_peer_decides_whether_a_connection_is_kept(answer: bytes, *, kept: bool) -> None:
    """Rule: RFC 9112, section 9.3."""
    played = Played()
    played.hear([answer])
    assert (played.keeper.ends, played.wire.is_closing()) == ([kept], not kept)


async def test_a_request_to_close_is_kept_even_if_the_peer_forgets_it() -> None:
    """Rule: a connection is not reused after a request with "Connection: close"."""
    played = Played()
    played.hear([EMPTY])
    played.ask(last=True)
    played.hear([EMPTY])
    assert played.keeper.ends == [True, False]


async def test_an_idle_connection_that_is_spoken_to_is_closed() -> None:
    """Rule: an idle connection is closed when its server sends anything, as some do before they close it."""
    played = Played()
    played.hear([EMPTY, b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"])
    assert (played.answer.status, played.wire.is_closing()) == (200, True)


async def test_reading_stops_while_the_reader_is_behind() -> None:
    """Rule: of an answer, the buffer is read ahead and not more; a slow reader is not the peer's silence."""
    played = Played(buffer=10)
    played.hear([b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + b"a" * 11])
    assert not played.wire.reading
    assert played.connection.deadline == NEVER
    played.connection.resume()
    assert played.wire.reading
    assert played.connection.deadline < NEVER


async def test_a_small_rest_is_read_whole() -> None:
    """Rule: reading continues for a slow reader if the buffered and the remaining bytes are few."""
    played = Played(buffer=10, whole=30)
    played.hear([b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + b"a" * 11])
    assert not played.wire.reading
    played.answer.pieces, played.answer.size = [], 0
    played.connection.resume()
    played.hear([b"a" * 11])
    assert (played.wire.reading, played.answer.size) == (True, 11)
    played.hear([b"a" * 18])
    assert (played.answer.complete, played.keeper.ends) == (True, [True])


async def test_a_body_of_unknown_length_is_not_read_whole() -> None:
    """Rule: a body of unknown length is read ahead up to the size of the buffer."""
    played = Played(buffer=10, whole=2**40)
    played.hear([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n" + b"a" * 11 + b"\r\n"])
    assert not played.wire.reading


async def test_an_interim_answer_does_not_prolong_the_limit() -> None:
    """Rule: the head of the final answer has a limit that only it ends."""
    played = Played(within=1.0, silence=60.0)
    by = played.connection.deadline
    played.hear([b"HTTP/1.1 100 Continue\r\n\r\n"])
    assert played.connection.deadline == by


async def test_padded_chunk_sizes_are_read() -> None:
    """Rule: white space after a chunk size, which some servers send, is ignored."""
    played = Played()
    played.hear([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5  \r\nhello\r\n0\r\n\r\n"])
    assert (played.body, played.answer.complete, played.keeper.ends) == (b"hello", True, [True])


async def test_a_broken_connection_is_no_end_of_an_answer() -> None:
    """Rule: an answer without a length ends when the peer closes the connection, not when it breaks."""
    head = b"HTTP/1.1 200 OK\r\n\r\nabc"
    closed, broken = Played(), Played()
    for played in (closed, broken):
        played.hear([head])
    closed.hang_up()
    broken.hang_up(ConnectionResetError("reset"))
    assert (closed.answer.complete, broken.answer.complete) == (True, False)
    assert broken.body == b"abc"


@pytest.mark.parametrize(("heard", "unanswered"), [(b"", True), (b"H", False), (b"HTTP/1.1 100 C\r\n\r\n", False)])
async def test_only_a_request_without_a_byte_of_an_answer_may_be_repeated(heard: bytes, *, unanswered: bool) -> None:
    """Rule: RFC 9112, section 9.3.1."""
    played = Played()
    played.hear([heard])
    played.hang_up()
    failure = played.answer.begun.exception()
    assert getattr(failure, "unanswered", None) is unanswered


async def test_a_connection_waits_idle_for_a_while_only() -> None:
    """Rule: an idle connection that is overdue is closed, and no exchange fails by that."""
    played = Played()
    played.hear([EMPTY])
    assert played.connection.deadline < NEVER
    played.connection.expire()
    assert played.wire.is_closing()
    assert played.keeper.ends == [True]


@given(body=st.binary(min_size=1, max_size=60), places=PLACES)
@settings(max_examples=examples(100))
def test_what_is_read_into_shared_memory_lasts(runner: asyncio.Runner, body: bytes, places: Sequence[int]) -> None:
    """Rule: an answer with the expected head, in any pieces, is complete and unchanged after others were read into its memory."""

    def hear() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        room = memoryview(bytearray(256))
        connection = ReusingConnection(room, Keeper(), ADDRESS, 60.0, 2**40, 0)
        connection.connection_made(Wire())
        loop = asyncio.get_running_loop()
        answer = IncomingAnswer(loop, loop.create_future())
        answer.expected = KnownHead(
            head, 200, [("Content-Length", str(len(body)))], {"content-length": str(len(body))}, len(body)
        )
        connection.send(answer, REQUEST, bodiless=False, last=False, within=60.0)
        for piece in cut(head + body, places):
            if piece:
                connection.get_buffer(-1)[: len(piece)] = piece
                connection.buffer_updated(len(piece))
                room[:] = bytes(256)
        assert (answer.complete, answer.status, b"".join(answer.pieces)) == (True, 200, body)

    in_loop(runner, hear)
