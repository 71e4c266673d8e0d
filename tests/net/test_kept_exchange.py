"""Requests sent at once over a kept connection, whose answer is expected to have a known head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.net.connection import KnownHead
from gateway.net.dialing import ExchangeFailed
from gateway.net.exchange import StreamedResponse
from tests.net.asking import Asking, talking


class Acting:
    """Acts at the beginning of an answer: takes its pieces if ``takes``; ``over`` is set then."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.response: StreamedResponse | None = None
        self.over = asyncio.Event()
        self.taken = b""
        self.failure: Exception | None = None

    def done(self) -> bool:
        """Whether the answer has begun."""
        return self.over.is_set()

    def set_result(self, _result: None, /) -> None:
        """Note it."""
        self.over.set()
        if self.takes and self.response is not None and self.response.complete:
            self.taken = b"".join(self.response.pieces)
            self.response.pieces = []

    def set_exception(self, failure: Exception, /) -> None:
        """Note it."""
        self.failure = failure
        self.over.set()


@asynccontextmanager
async def kept_alive(*answers: bytes) -> AsyncIterator[tuple[Asking, KnownHead]]:
    """A client with a kept connection and the head of the answer that it has got; further requests get ``answers``."""
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (first + b"before", *answers):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        await reader.read()

    async with talking(talk) as url:
        each = Asking(url, limit=0, whole=1024**2, reusing=True)
        response = await each.ask()
        assert await response.read(100) == b"before"
        yield each, KnownHead(response.head, response.status, response.headers, response.fields, 6)
        await each.connections.close()


def sent_on(each: Asking, known: KnownHead, acting: Acting) -> StreamedResponse:
    """Send a GET over the kept connection."""
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    response = each.connections.get_kept(each.origin, each.address, request, known, acting, 30.0)
    assert response is not None
    acting.response = response
    return response


@pytest.mark.parametrize("takes", [True, False])
async def test_an_expected_answer_is_taken_where_it_is_received(*, takes: bool) -> None:
    """Rule: an answer with the expected head is there when its beginning is announced; what is not taken then stays readable."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"
    async with kept_alive(head + b"middle", head + b"behind") as (each, known):
        first, second = Acting(takes=takes), Acting(takes=True)
        response = sent_on(each, known, first)
        await first.over.wait()
        assert (response.status, response.head, response.fields["content-length"]) == (200, known.data, "6")
        sent_on(each, known, second)
        await second.over.wait()
        assert second.taken == b"behind"
        assert (first.taken, b"".join(response.pieces)) == ((b"middle", b"") if takes else (b"", b"middle"))


async def test_an_answer_with_another_head_is_an_ordinary_one() -> None:
    """Rule: without the expected head an answer is parsed like any other."""
    async with kept_alive(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nanother") as (each, known):
        acting = Acting(takes=False)
        response = sent_on(each, known, acting)
        await acting.over.wait()
        assert response.head is not known.data
        assert (response.fields["content-length"], await response.read(100)) == ("7", b"another")


async def test_a_broken_connection_is_announced_in_place_of_an_answer() -> None:
    """Rule: if the connection ends before the head, what waits gets the failure, and waiting for the answer returns false."""
    async with kept_alive() as (each, known):
        acting = Acting(takes=False)
        response = sent_on(each, known, acting)
        await each.connections.close()
        await acting.over.wait()
        assert isinstance(acting.failure, ExchangeFailed)
        assert not await response.come()
        assert each.connections.get_kept(each.origin, each.address, b"", known, acting, 30.0) is None


async def test_an_answer_that_takes_long_can_be_waited_for() -> None:
    """Rule: whoever does not want to act at the beginning any more waits for the same answer."""
    async with kept_alive(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nmiddle") as (each, known):
        response = sent_on(each, known, Acting(takes=True))
        assert await response.come()
        assert await response.read(100) == b"middle"
