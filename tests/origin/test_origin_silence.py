"""An origin that cannot be reached, falls silent, or ends its answer too early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from gateway.model.errors import OriginBusy, OriginUnavailable
from gateway.net import places
from rig.origin import FakeOrigin
from rig.origin_faults import DieAfter, Gate, Hang
from tests.origin.raw_server import AS_ALICE, EMPTY, RawServer, client_for, content, origin_at, status_of


async def test_nobody_listening_is_origin_unavailable() -> None:
    """A refused connection becomes OriginUnavailable."""
    client = await client_for(origin_at("http://127.0.0.1:1"))
    with pytest.raises(OriginUnavailable):
        await client.send(AS_ALICE, "GET", "/b/k", "", ())
    await client.close()


async def test_silence_before_the_head_is_origin_unavailable() -> None:
    """An origin that accepts and says nothing is given up after read_timeout."""
    async with FakeOrigin() as origin:
        gate = origin.inject(Hang(times=2)).gate
        client = await client_for(origin_at(origin.endpoint, read_timeout=0.2))
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        gate.open()
        await client.close()


class InterimServer:
    """Reads requests and answers with interim answers only; ``left`` is set when the client closed a connection."""

    def __init__(self, interim: bytes, *, every: float | None = None) -> None:
        self.left = asyncio.Event()
        self._interim = interim
        self._every = every

    async def __aenter__(self) -> InterimServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._interim)
            gone = asyncio.create_task(reader.read())
            while not (await asyncio.wait([gone], timeout=self._every))[0]:
                writer.write(self._interim)
            await gone
        except ConnectionError:
            pass
        finally:
            self.left.set()
            writer.close()


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
INTERIMS = {
    "continue": (CONTINUE, None),
    "early hints": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", None),
    "again and again": (CONTINUE, 0.05),
}


@pytest.mark.parametrize(("interim", "every"), INTERIMS.values(), ids=INTERIMS.keys())
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_silence_after_an_interim_answer_is_origin_unavailable(
    method: str, interim: bytes, every: float | None
) -> None:
    """An interim answer does not count: the time limit applies to the final head, and the connection is dropped after it."""
    async with InterimServer(interim, every=every) as server, asyncio.timeout(30):
        client = await client_for(origin_at(server.endpoint, read_timeout=0.2, connect_timeout=0.2))
        body = {"body": content(b"abc", b"def"), "content_length": 6} if method == "PUT" else {}
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, method, "/b/k", "", (), **body)
        await server.left.wait()
        await client.close()


async def test_an_interim_answer_before_the_final_one_is_passed_over() -> None:
    """An interim answer is skipped, and the connection serves the next request."""
    async with RawServer([[CONTINUE + EMPTY, EMPTY]]) as server:
        client = await client_for(origin_at(server.endpoint))
        for _ in range(2):
            response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
            response.release()
            assert response.status == 200
        assert server.connections == 1
        await client.close()


async def test_the_wait_for_a_free_connection_is_not_the_origins_silence() -> None:
    """A request that waits for others to end is not given up for it."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        begun.set()
        yield b"abc"
        await may_end.wait()
        yield b"def"

    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        client = await client_for(origin_at(origin.endpoint, read_timeout=0.2, connect_timeout=0.1, max_connections=1))
        uploading = asyncio.create_task(client.send(AS_ALICE, "PUT", "/b/new", "", (), body=slow(), content_length=6))
        await begun.wait()
        waiting = asyncio.create_task(status_of(client))
        assert not (await asyncio.wait([waiting], timeout=0.7))[0]
        may_end.set()
        await (await uploading).read(1000)
        assert await waiting == 200
        await client.close()


async def test_who_gets_no_connection_is_told_that_all_are_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: the wait for a free connection has a limit, which is logged once a minute; a connection that gets free is used."""
    monkeypatch.setattr(places, "WITHIN", 0.01)
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(1 << 20))
        client = await client_for(origin_at(origin.endpoint, max_connections=1))
        slow_reader = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        with caplog.at_level(logging.WARNING, "larder.origin"):
            for _ in range(2):
                with pytest.raises(OriginBusy, match="all 1 connections"):
                    await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert [record.getMessage().partition(" was free")[0] for record in caplog.records] == [
            "no connection to origin default"
        ]
        slow_reader.abort()
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).abort()
        await client.close()


async def test_a_short_body_is_origin_unavailable() -> None:
    """A body that ends before its Content-Length is never taken for a whole one."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(300_000))
        origin.inject(DieAfter(size=100_000))
        client = await client_for(origin_at(origin.endpoint))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        with pytest.raises(OriginUnavailable):
            [chunk async for chunk in response.chunks()]
        await client.close()


async def test_silence_within_the_body_is_origin_unavailable() -> None:
    """The read timeout is the longest silence, in the middle of a body too."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(1000))
        gate: Gate = origin.inject(Hang(after=500)).gate
        client = await client_for(origin_at(origin.endpoint, read_timeout=0.2))
        response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
        assert len(await response.next_chunk()) == 500
        with pytest.raises(OriginUnavailable):
            await response.next_chunk()
        gate.open()
        await client.close()
