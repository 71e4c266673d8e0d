"""A client of one server, for tests of the exchange, and a server that a test writes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from prometheus_client import Counter

from gateway.model.errors import LarderError, OriginUnavailable
from gateway.model.objects import Header
from gateway.net.dialing import ExchangeFailed, ServerAddress
from gateway.net.exchange import Connections, StreamedResponse
from gateway.net.requests import Upload
from tests.origin.raw_server import content

BYTES = Counter("test_exchange_bytes", "Bytes that these tests received.")
BIG = 4 * 1024**2
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Origin:
    """The remote side; records the kinds of its failures."""

    bytes = BYTES
    silence: float | None = None

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def failed(self, what: str, cause: ExchangeFailed | None) -> LarderError:
        """Note it."""
        self.kinds.append("" if cause is None else cause.kind)
        return OriginUnavailable(what)

    async def check(self) -> None:
        """Report the remote side as alive."""


class Asking:
    """A client of one server."""

    def __init__(
        self,
        url: str,
        *,
        limit: int = 1,
        silence: float | None = 30.0,
        buffer: int = 64 * 1024,
        whole: int = 0,
        reusing: bool = False,
    ) -> None:
        self.address = ServerAddress.of(url)
        self.origin = Origin()
        self.connections = Connections(
            limit=limit, connect=30.0, silence=silence, buffer=buffer, whole=whole, reusing=reusing
        )

    async def ask(
        self, method: str = "GET", target: str = "/", body: bytes = b"", headers: Sequence[Header] = ()
    ) -> StreamedResponse:
        """One request."""
        sent = [("Host", self.address.name), *headers]
        return await self.connections.ask(self.origin, method, self.address, target, sent, body, within=30.0)

    async def upload(self, *pieces: bytes, patience: float = 30.0) -> StreamedResponse:
        """One request with a streamed body."""
        length = sum(map(len, pieces))
        body = Upload(content(*pieces), length, patience=patience, head_within=30.0)
        host = [("Host", self.address.name)]
        return await self.connections.upload(self.origin, "PUT", self.address, "/", host, body)


@asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that treats every connection with ``talk``."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
