"""Late reads of an origin are sent a second time, where a rule says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from gateway.base.metrics import ORIGIN_HEDGES
from gateway.model.errors import OriginUnavailable
from gateway.origin.client import OriginClient
from gateway.policies.reads.hedging import OFF
from gateway.policies.reads.rules import Caching, Rules
from tests.origin.raw_server import AS_ALICE, client_for, origin_at

FAILS = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
ENOUGH = 64
"""Reads after which the client knows what is late."""


def answer_of(body: bytes) -> bytes:
    """An answer with a body."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class PromptedServer:
    """Answers at once until ``held`` is true; then each request waits in ``waiting`` for the answer that a test gives it."""

    def __init__(self) -> None:
        self.held = False
        self.waiting: asyncio.Queue[asyncio.Future[bytes]] = asyncio.Queue()
        self.broken: asyncio.Queue[int] = asyncio.Queue()
        """The connections that a client closed while its request waited, by the request's place."""
        self._asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer_of(b"quick") if not self.held else await self._prompted(reader))
                await writer.drain()
                del head
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _prompted(self, reader: asyncio.StreamReader) -> bytes:
        place, answer = self._asked, asyncio.get_running_loop().create_future()
        self._asked += 1
        self.waiting.put_nowait(answer)
        closed = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([answer, closed], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self.broken.put_nowait(place)
            raise ConnectionError("the client has gone")
        closed.cancel()
        await asyncio.gather(closed, return_exceptions=True)
        return bytes(answer.result())


@asynccontextmanager
async def hedging() -> AsyncIterator[tuple[PromptedServer, OriginClient]]:
    """A store that has answered enough reads at once and now waits for the test, and a client of it."""
    prompted = PromptedServer()
    server = await asyncio.start_server(prompted.serve, "127.0.0.1", 0)
    client = await client_for(origin_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    rules = Rules([Caching(hedge="p95")])
    client.hedges.services = SimpleNamespace(rules=rules)
    try:
        for _ in range(ENOUGH):
            await body_of(client)
        prompted.held = True
        yield prompted, client
    finally:
        await client.close()
        server.close()


async def body_of(client: OriginClient) -> bytes:
    """The body of a read of an object."""
    return await (await client.send(AS_ALICE, "GET", "/b/k", "", ())).read(1000)


def counted(outcome: str) -> float:
    """Hedges of this process so far."""
    return float(ORIGIN_HEDGES.labels(outcome)._value.get())


async def test_the_second_request_wins() -> None:
    """A read without an answer is sent again; the second answer is taken and the first request's connection closed."""
    issued, won = counted("issued"), counted("won")
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(body_of(client))
        await store.waiting.get()
        (await store.waiting.get()).set_result(answer_of(b"second"))
        assert await read == b"second"
        assert await store.broken.get() == 0
    assert (counted("issued") - issued, counted("won") - won) == (1, 1)


async def test_the_first_request_may_still_win() -> None:
    """The answer that comes first is taken, though it is late, and the second request is given up."""
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(body_of(client))
        first = await store.waiting.get()
        await store.waiting.get()
        first.set_result(answer_of(b"first"))
        assert await read == b"first"
        assert await store.broken.get() == 1
        assert client.in_flight == 0


async def test_a_failure_of_one_request_leaves_the_other() -> None:
    """An answer 503 to the second request is not taken while the first may still be answered."""
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(body_of(client))
        first = await store.waiting.get()
        (await store.waiting.get()).set_result(FAILS)
        first.set_result(answer_of(b"first"))
        assert await read == b"first"


async def test_what_both_answer_is_the_answer() -> None:
    """When both requests fail, the caller gets the failure."""
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(client.send(AS_ALICE, "GET", "/b/k", "", ()))
        for answer in (await store.waiting.get(), await store.waiting.get()):
            answer.set_result(FAILS)
        response = await read
        assert response.status == 503
        response.release()


async def test_two_broken_connections_are_one_failure() -> None:
    """When both connections end without an answer, the origin is unavailable."""
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(client.send(AS_ALICE, "GET", "/b/k", "", ()))
        for answer in (await store.waiting.get(), await store.waiting.get()):
            answer.set_result(b"no HTTP\r\n\r\n")
        with pytest.raises(OriginUnavailable):
            await read


async def test_who_gives_up_ends_both_requests() -> None:
    """A cancelled read closes both connections, and nothing is in flight."""
    async with hedging() as (store, client), asyncio.timeout(30):
        read = asyncio.create_task(body_of(client))
        await store.waiting.get()
        await store.waiting.get()
        read.cancel()
        assert {await store.broken.get(), await store.broken.get()} == {0, 1}
        assert client.in_flight == 0


@pytest.mark.parametrize(
    ("method", "path", "share"),
    [
        ("GET", "/b/k", 0.95),
        ("HEAD", "/b/k%20x", 0.95),
        ("PUT", "/b/k", 0),
        ("DELETE", "/b/k", 0),
        ("GET", "/b", 0),
        ("GET", "/b/", 0),
    ],
)
async def test_only_reads_of_objects_are_hedged(method: str, path: str, share: float) -> None:
    """Writes and listings are sent once."""
    async with hedging() as (_, client):
        assert client.hedges.quantile(method, path) == share


async def test_the_first_matching_rule_decides() -> None:
    """A rule without hedges keeps its objects from a later rule that has them; paths are decoded before they are matched."""
    client = await client_for(origin_at("http://127.0.0.1:1"))
    rules = Rules([Caching(match="b/a b/**", hedge="p99"), Caching(match="b/**", hedge=OFF), Caching(hedge="p90")])
    client.hedges.services = SimpleNamespace(rules=rules)
    shares = [client.hedges.quantile("GET", path) for path in ("/b/a%20b/k", "/b/k", "/c/k")]
    assert shares == [0.99, 0, 0.9]
    await client.close()
