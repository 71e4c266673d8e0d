"""Exchanges over real sockets, with peers that behave and peers that do not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.model.errors import OriginUnavailable
from gateway.model.objects import Header
from gateway.net import connection, dialing
from gateway.net.connection import ClientConnection
from gateway.net.dialing import Dialer, ExchangeFailed, ServerAddress
from gateway.net.exchange import Connections, StreamedResponse, probe
from gateway.net.requests import Upload
from tests.net.asking import BIG, Asking, Origin, talking
from tests.net.wire import ADDRESS, REQUEST, Keeper, Wire
from tests.origin.raw_server import EMPTY, RawServer
from tests.s3compat.certificates import make_certificates
from tests.stores import eventually


def reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection instead of closing it."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_one_connection_serves_many_exchanges() -> None:
    """Rule: a connection is used again after an answer that has ended, read or not."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    async with RawServer([[answer] * 3]) as server:
        each = Asking(server.endpoint)
        for _ in range(3):
            response = await each.ask()
            assert await response.next_chunk() == b"abc"
            assert each.connections.active == 1
            response.release()
            assert each.connections.active == 0
        assert server.connections == 1
        await each.connections.close()


async def test_an_answer_that_is_given_up_frees_its_place() -> None:
    """Rule: with one connection at most, the next request gets it after an abort, a failure, and a cancellation."""

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"/body" in request:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
            await reader.read()
        elif b"/reset" in request:
            reset(writer)
        elif b"/silent" in request:
            await reader.read()
        else:
            writer.write(EMPTY)

    async with talking(stuck) as url, asyncio.timeout(60):
        each = Asking(url)
        (await each.ask(target="/body")).abort()
        with pytest.raises(OriginUnavailable):
            await each.ask(target="/reset")
        waiting = asyncio.create_task(each.ask(target="/silent"))
        assert not (await asyncio.wait([waiting], timeout=0.05))[0]
        waiting.cancel()
        await asyncio.wait([waiting])
        assert each.connections.active == 0
        (await each.ask(target="/")).release()
        await each.connections.close()


async def test_a_body_that_is_given_up_midway_frees_its_place() -> None:
    """Rule: with one connection at most, the next request gets it after reading a body was cancelled."""

    async def halting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            EMPTY
            if b"/next" in await reader.readuntil(b"\r\n\r\n")
            else b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
        )
        await reader.read()

    async with talking(halting) as url, asyncio.timeout(60):
        each = Asking(url)
        reading = asyncio.create_task((await each.ask()).read(9))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        (await each.ask(target="/next")).release()
        await each.connections.close()


async def test_a_reset_within_a_body_keeps_what_came_before() -> None:
    """Rule: the bytes that arrived are delivered, and then the failure; so the rest alone is asked for again."""

    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await reader.readexactly(1)
        reset(writer)

    async with talking(breaking) as url, asyncio.timeout(60):
        each = Asking(url)
        response = await each.ask()
        assert response.connection is not None
        response.connection.transport.write(b"x")
        await eventually(lambda: response.failure is not None)
        assert await response.next_chunk() == b"abc"
        with pytest.raises(OriginUnavailable):
            await response.next_chunk()
        assert (each.origin.kinds, each.connections.active) == (["broken"], 0)
        await each.connections.close()


@pytest.mark.parametrize(
    ("method", "headers"), [("GET", ()), ("GET", [("If-None-Match", '"a"')]), ("DELETE", ()), ("PUT", ())]
)
async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(method: str, headers: Sequence[Header]) -> None:
    """Rule: the race between a request and the peer's keep-alive limit is hidden."""
    async with RawServer([[EMPTY, b""], [EMPTY]]) as server:
        each = Asking(server.endpoint)
        (await each.ask()).release()
        assert (await each.ask(method, headers=headers)).status == 200
        assert len(server.requests) == 3
        await each.connections.close()


@pytest.mark.parametrize(
    ("method", "headers"),
    [("POST", ()), ("PUT", [("If-None-Match", "*")]), ("PUT", [("if-match", '"a"')]), ("DELETE", [("If-Match", "*")])],
)
async def test_what_may_do_harm_twice_is_sent_once(method: str, headers: Sequence[Header]) -> None:
    """Rule: a write is not repeated if the first one may have made its condition false: its success would be answered 412."""
    async with RawServer([[EMPTY, b""], [EMPTY]]) as server:
        each = Asking(server.endpoint)
        (await each.ask()).release()
        with pytest.raises(OriginUnavailable):
            await each.ask(method, headers=headers)
        assert len(server.requests) == 2
        await each.connections.close()


async def test_a_request_is_repeated_once() -> None:
    """Rule: a peer that closes every connection is asked twice, and then has failed."""
    async with RawServer([[b""]]) as server:
        each = Asking(server.endpoint)
        with pytest.raises(OriginUnavailable):
            await each.ask()
        assert (server.connections, each.origin.kinds) == (2, ["broken"])
        await each.connections.close()


def heard(*pieces: bytes, buffer: int = 2**40) -> StreamedResponse:
    """An answer that has arrived in these pieces, each by one read of the socket."""
    connections = Connections(limit=1, connect=None, silence=None, buffer=buffer)
    begun = connections.loop.create_future()
    response = StreamedResponse(connections.loop, begun, remote=Origin(), connections=connections)
    made = ClientConnection(Keeper(), ADDRESS, 60.0, buffer)
    made.connection_made(Wire())
    made.send(response, REQUEST, bodiless=False, last=False, within=60.0)
    for piece in pieces:
        made.data_received(piece)
    return response


@asynccontextmanager
async def halting(*pieces: bytes) -> AsyncIterator[tuple[Asking, asyncio.Event]]:
    """A client of a peer that sends an answer of these pieces, each one when the event is set."""
    goes_on = asyncio.Event()

    async def sending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(map(len, pieces)))
        for piece in pieces:
            await goes_on.wait()
            goes_on.clear()
            writer.write(piece)
            await writer.drain()

    async with talking(sending) as url, asyncio.timeout(60):
        each = Asking(url, buffer=1024)
        yield each, goes_on
        await each.connections.close()


async def test_an_answer_with_a_small_body_is_given_when_that_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the caller is woken once, not for the head and each piece of a small body."""
    monkeypatch.setattr(connection, "GATHER", 3600.0)
    response = heard(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nabc", b"def")
    assert not response.begun.done()
    assert response.connection is not None
    response.connection.data_received(b"gh")
    assert response.begun.done()
    assert (await response.next_chunk(), await response.next_chunk()) == (b"abcdefgh", b"")


async def test_the_head_of_an_answer_does_not_wait_for_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: after GATHER the answer is given, and its body as it arrives."""
    monkeypatch.setattr(connection, "GATHER", 0.001)
    async with halting(b"abc", b"def") as (each, goes_on):
        response = await each.ask()
        assert response.status == 200
        for piece in (b"abc", b"def"):
            goes_on.set()
            assert await response.next_chunk() == piece


async def test_the_head_of_an_answer_does_not_wait_for_a_body_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an answer whose connection breaks within a small body has begun; its reader gets the failure."""
    monkeypatch.setattr(connection, "GATHER", 3600.0)
    response = heard(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nabc")
    assert response.connection is not None
    response.connection.connection_lost(None)
    await response.begun
    assert await response.next_chunk() == b"abc"
    with pytest.raises(OriginUnavailable):
        await response.next_chunk()


@pytest.mark.parametrize(("length", "had"), [(256 * 1024 + 1, 0), (2000, 1025)], ids=["large", "read ahead"])
async def test_the_head_of_an_answer_waits_for_no_other_body(length: int, had: int) -> None:
    """Rule: a body that is large, or fills the read-ahead, is passed on as it arrives."""
    response = heard(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + bytes(had), buffer=1024)
    assert response.begun.done()


async def test_a_body_that_came_with_its_head_is_given_as_it_is() -> None:
    """Rule: a whole small body is neither cut off its head nor put together by a copy; it is given once."""
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"
    response = heard(data)
    assert response.at_once(5) is None
    body = response.at_once(6)
    assert isinstance(body, memoryview)
    assert (body.obj, bytes(body)) == (data, b"abcdef")
    assert (response.at_once(6), await response.next_chunk()) == (None, b"")


async def test_a_whole_body_in_pieces_is_put_together() -> None:
    """Rule: a body that has arrived in several pieces is given at once, too."""
    assert heard(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc", b"def").at_once(6) == b"abcdef"


async def test_any_other_body_is_waited_for() -> None:
    """Rule: an incomplete body is left to ``next_chunk``, which returns bytes."""
    response = heard(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
    assert (response.at_once(3), response.at_once(6)) == (None, None)
    chunk = await response.next_chunk()
    assert (type(chunk), chunk) == (bytes, b"abc")


async def test_a_slow_reader_holds_the_peer_back() -> None:
    """Rule: an answer is read ahead by the buffer and one read of the socket; all of it comes through."""

    async def sending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG)
        writer.write(bytes(BIG))
        await writer.drain()

    async with talking(sending) as url, asyncio.timeout(60):
        each = Asking(url)
        response = await each.ask()
        await eventually(lambda: response.connection is not None and response.connection.paused)
        assert response.size < BIG // 4
        assert len(await response.read(BIG)) == BIG
        await each.connections.close()


async def test_an_upload_is_held_back_by_the_peer_and_arrives_whole() -> None:
    """Rule: a body is sent as fast as the peer takes it."""
    got = 0

    async def taking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        while got < BIG:
            got += len(await reader.read(1 << 16))
        writer.write(EMPTY)

    async with talking(taking) as url, asyncio.timeout(60):
        each = Asking(url)
        response = await each.upload(*[bytes(BIG // 64)] * 64)
        assert (response.status, got) == (200, BIG)
        response.release()
        await each.connections.close()


async def test_an_early_answer_ends_the_upload() -> None:
    """Rule: after an early answer the client's body is not read any further."""
    left: list[bool] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1000)
                await asyncio.sleep(0.001)
        finally:
            left.append(True)

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async with talking(refusing) as url, asyncio.timeout(60):
        each = Asking(url)
        headers = [("Host", each.address.name)]
        body = Upload(endless(), 2**40, patience=30.0, head_within=30.0)
        response = await each.connections.upload(each.origin, "PUT", each.address, "/", headers, body)
        assert (response.status, await response.read(10)) == (403, b"no")
        await eventually(lambda: bool(left))
        await each.connections.close()


@pytest.mark.parametrize("header", [("x", "a\r\nHost: evil"), ("x", "a\nb"), ("x\r\nHost", "evil"), ("x", "\0")])
async def test_a_header_cannot_end_its_line(header: tuple[str, str]) -> None:
    """Rule: no header value can start another header (RFC 9110, section 5.5)."""
    async with RawServer([[EMPTY]]) as server:
        each = Asking(server.endpoint)
        with pytest.raises(ValueError, match="line break"):
            await each.connections.ask(each.origin, "GET", each.address, "/", [header], within=None)
        assert server.connections == 0
        await each.connections.close()


async def test_a_name_that_is_not_found_is_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a DNS failure is distinct from a refused connection."""

    def unknown(*_args: object, **_options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    each = Asking("http://larder.invalid")
    with pytest.raises(OriginUnavailable, match=r"cannot resolve larder\.invalid"):
        await each.ask()
    assert each.origin.kinds == ["dns"]
    await each.connections.close()


async def test_the_addresses_of_a_name_are_used_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: one look-up serves for a while; each connection begins with another address and skips those that refuse."""
    async with RawServer([[EMPTY]]) as server:
        port = ServerAddress.of(server.endpoint).port
        asked: list[str] = []

        def found(host: str, *_args: object, **_options: object) -> list[object]:
            asked.append(host)
            kinds = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kinds, ("127.0.0.1", port)), (*kinds, ("127.0.0.1", 1))]

        monkeypatch.setattr(socket, "getaddrinfo", found)
        for _ in range(2):
            each = Asking(f"http://larder.test:{port}")
            for _ in range(2):
                response = await each.ask()
                assert response.connection is None
                each.connections._idle.clear()
            await each.connections.close()
        assert asked == ["larder.test"] * 2


@pytest.mark.parametrize("reusing", [False, True])
async def test_tls_is_verified_and_carries_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reusing: bool
) -> None:
    """Rule: a server is believed by its certificate alone, and by the host it is valid for."""
    certificates = make_certificates(tmp_path)

    async def sending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG)
            writer.write(bytes(BIG))
            await writer.drain()

    async with talking(sending, certificates.tls.server) as url, asyncio.timeout(60):
        stranger = Asking(url)
        with pytest.raises(OriginUnavailable):
            await stranger.ask()
        assert stranger.origin.kinds == ["tls"]
        await stranger.connections.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        dialing._tls.cache_clear()
        each = Asking(url, reusing=reusing)
        for _ in range(2):
            assert len(await (await each.ask()).read(BIG)) == BIG
        await probe(each.address)
        wrong = Asking(url.replace("127.0.0.1", "localhost"))
        with pytest.raises(OriginUnavailable, match="localhost"):
            await wrong.ask()
        await wrong.connections.close()
        await each.connections.close()
    dialing._tls.cache_clear()


async def test_a_connection_attempt_has_a_limit() -> None:
    """Rule: an address that does not answer is given up after the connect time-out."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = ServerAddress.of(f"http://127.0.0.1:{full.getsockname()[1]}")
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        with pytest.raises(ExchangeFailed) as failed:
            await Dialer(0.1).dial(address, asyncio.Protocol)
        assert failed.value.kind == "timeout"
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:5000", ("127.0.0.1", 5000, False, "127.0.0.1:5000")),
        ("https://s3.eu-west-1.amazonaws.com", ("s3.eu-west-1.amazonaws.com", 443, True, "s3.eu-west-1.amazonaws.com")),
        ("HTTPS://[2001:db8::1]:8443", ("2001:db8::1", 8443, True, "[2001:db8::1]:8443")),
        ("http://[::1]:80", ("::1", 80, False, "[::1]")),
        ("https://minio:443", ("minio", 443, True, "minio")),
    ],
)
def test_addresses(url: str, address: tuple[str, int, bool, str]) -> None:
    """Rule: Host names the port unless it is the scheme's own (RFC 9110, section 7.2)."""
    assert ServerAddress.of(url) == address


def test_a_connection_that_is_closed_before_it_is_used_fails_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a monitored connection that is lost before its request counts as a failure of the remote side, on uvloop too, whose
    closed transports refuse to write."""
    dial = Dialer.dial

    async def lost(self: Dialer, *how: Any) -> Any:
        made = await dial(self, *how)
        made.transport.abort()
        return made

    monkeypatch.setattr(Dialer, "dial", lost)
    monkeypatch.setattr(Origin, "silence", 30.0)

    async def talk() -> None:
        async with RawServer([[EMPTY]]) as server:
            each = Asking(server.endpoint)
            for _ in range(2):
                with pytest.raises(OriginUnavailable):
                    await each.ask()
            assert each.origin.kinds == ["broken"] * 2
            await each.connections.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


async def test_uploads_leave_half_of_the_connections_to_reads() -> None:
    """Rule: of uploads whose clients send nothing more, half of the connections are held; a read finds one at once."""
    begun = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal begun
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            begun += 1
        await reader.read()

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with talking(talk) as url:
        each = Asking(url, limit=4)
        host = [("Host", each.address.name)]
        bodies = [Upload(never(), 9, patience=30.0, head_within=30.0) for _ in range(8)]
        uploads = [
            asyncio.ensure_future(each.connections.upload(each.origin, "PUT", each.address, "/", host, body))
            for body in bodies
        ]
        answer = await each.ask()
        assert answer.status == 200
        assert begun <= 2
        assert each.connections.active == 1 + len(uploads)
        for upload in uploads:
            upload.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        assert each.connections.active == 1
        await each.connections.close()
