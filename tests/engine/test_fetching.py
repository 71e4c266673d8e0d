"""Streams of bytes that break off, end early, or give too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.engine.base import fetching
from gateway.engine.base.fetching import ByteStream
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import BrokenBody, LarderError, OriginUnavailable
from gateway.net.exchange import StreamedResponse

BODY = b"0123456789"


class Answer:
    """Gives pieces, and then its failure, or the end."""

    def __init__(self, pieces: Sequence[bytes], failure: LarderError | None = None) -> None:
        self._left = list(pieces)
        self._failure = failure
        self.aborted = False

    def at_once(self, length: int) -> bytes | None:
        """Everything, if it is one piece."""
        return self._left.pop() if list(map(len, self._left)) == [length] else None

    async def next_chunk(self) -> bytes:
        """The next piece."""
        if self._left:
            return self._left.pop(0)
        if self._failure is not None:
            raise self._failure
        return b""

    def release(self) -> None:
        """Do nothing: the fake holds nothing."""

    def abort(self) -> None:
        """Remember it."""
        self.aborted = True


class Source:
    """Answers again and again, each time from an offset on, two bytes at most."""

    def __init__(self, failure: LarderError) -> None:
        self.asked: list[int] = []
        self._failure = failure

    async def __call__(self, offset: int) -> StreamedResponse:
        """The next two bytes, and then the failure."""
        self.asked.append(offset)
        return answer(Answer([BODY[offset : offset + 2]], self._failure))


def answer(fake: Answer) -> StreamedResponse:
    """Cast the fake to the type that readers expect."""
    return cast(StreamedResponse, fake)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the pauses between attempts at the origin, without waiting."""
    made: list[Any] = []

    async def pause(turn: int = 1) -> None:
        made.append(turn)

    monkeypatch.setattr(fetching, "pause", pause)
    return made


async def test_a_stream_goes_on_where_it_broke_off(pauses: list[Any]) -> None:
    """Rule: a stream resumes at the first missing byte after a pause; the broken answer is closed."""
    broken = Answer([BODY[:6]], OriginUnavailable("broken"))
    source = Source(OriginUnavailable("broken"))
    stream = ByteStream(answer(broken), len(BODY), source)
    assert await stream.read() == BODY
    assert (source.asked, broken.aborted, len(pauses)) == ([6, 8], True, 2)
    assert stream.resumed


async def test_after_a_node_the_origin_is_asked_at_once(pauses: list[Any]) -> None:
    """Rule: after a node breaks off, the origin is asked without a pause."""
    source = Source(OriginUnavailable("never reached"))
    stream = ByteStream(answer(Answer([BODY[:8]], PeerUnavailable("broken"))), len(BODY), source)
    assert await stream.read() == BODY
    assert (source.asked, pauses) == ([8], [])


async def test_a_stream_goes_on_only_so_often() -> None:
    """Rule: the failure after the last attempt is the stream's."""
    source = Source(OriginUnavailable("again"))
    stream = ByteStream(answer(Answer([b"0"], OriginUnavailable("first"))), len(BODY), source)
    with pytest.raises(OriginUnavailable, match="again"):
        await stream.read()
    assert (source.asked, stream.received) == ([1, 3], 5)


async def test_what_may_not_be_asked_for_again_fails_at_once() -> None:
    """Rule: a stream that cannot be reopened, or has no known length, fails with its answer."""
    for length, source in ((len(BODY), None), (None, Source(OriginUnavailable("never")))):
        with pytest.raises(PeerUnavailable):
            await ByteStream(answer(Answer([b"0"], PeerUnavailable("broken"))), length, source).read()


async def test_an_end_that_comes_early_is_a_failure() -> None:
    """Rule: a stream gives as many bytes as it promised, or fails."""
    with pytest.raises(OriginUnavailable, match="early"):
        await ByteStream(answer(Answer([BODY[:9]])), len(BODY)).read()


async def test_more_than_was_promised_is_a_failure() -> None:
    """Rule: bytes beyond the announced length are a failure, and are not passed on."""
    with pytest.raises(BrokenBody):
        await ByteStream(answer(Answer([BODY + b"x"])), len(BODY)).read()


async def test_without_a_length_the_end_of_the_answer_is_the_end() -> None:
    """Rule: an answer without a length is complete at its end."""
    assert await ByteStream(answer(Answer([b"01", b"2"])), None).read() == b"012"


async def test_a_chunk_is_cut_where_its_taker_wants() -> None:
    """Rule: the rest of a chunk stays for the next call; a call for no bytes does not read."""
    stream = ByteStream(answer(Answer([BODY])), len(BODY))
    assert [await stream.next_chunk(4), await stream.next_chunk(0), await stream.next_chunk(100)] == [
        b"0123",
        b"",
        BODY[4:],
    ]
    assert await ByteStream(None, 0).read() == b""
