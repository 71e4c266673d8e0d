"""One HTTP exchange with an origin or another node: sends a request, and reads its answer as it arrives.

The caller (``Remote``) provides signatures, addresses and the meaning of failures; this module has the connections, the limits on
time and size, and the state of a body.

aiohttp repeats a GET, HEAD, PUT or DELETE once if the connection broke before an answer began (RFC 9110, 9.2.2 and
RFC 9112, 9.3.1), which hides kept-alive connections that the other side had just closed. A body that has begun to be read is
never sent twice: it is passed as a stream that cannot be rewound.

aiohttp limits the silence before an answer only until the first byte: an interim answer (1xx) ends this limit. So the
head of an answer has a separate limit, counted from the moment when only the other side is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from prometheus_client import Counter
from yarl import URL

from gateway import __version__
from gateway.model.errors import LarderError, S3Error
from gateway.model.objects import Header

if TYPE_CHECKING:
    from aiohttp import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

OWN_HEADERS: tuple[Header, ...] = (
    ("User-Agent", f"larder/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)
_NO_CONTENT_TYPE = frozenset({"Content-Type"})
_LONGEST_HEADER = 64 * 1024
_KEEP_IDLE = 15.0
"""Seconds for which an idle connection is kept."""
_KEEP_DNS = 60
"""Seconds for which a resolved name is cached."""

_head_limit: ContextVar[list[tuple[asyncio.Timeout, float]]] = ContextVar("head_limit")
"""The limit on the wait for the head of this task's answer, for requests without a body, and its seconds.

A list, emptied once the head has arrived: a connection keeps the context in which it was made, and with it everything that a
limit refers to, the task and its result, for as long as the connection is kept.
"""


class Remote(Protocol):
    """The other side of an exchange: the counter of its bytes, and the meaning of its failures.

    ``silence`` is the seconds for which a body may pause before ``check`` is called; ``None`` for never.
    """

    bytes: Counter
    silence: float | None

    def failed(self, what: str, cause: Exception | None) -> LarderError:
        """The error to raise when the other side fails; ``what`` follows its name in a sentence."""

    async def check(self) -> None:
        """Return if the other side is alive, else raise the error made by ``failed``."""

    def ended(self) -> None:
        """An answer has been released or aborted."""


class StreamedResponse:
    """An answer whose head is complete; end it with ``release`` or ``abort``.

    ``headers`` keeps order, spelling and repetitions; each character of a value is one byte.
    """

    __slots__ = ("_open", "_remote", "_response", "_upload", "headers", "status")

    def __init__(self, response: ClientResponse, remote: Remote, upload: Upload | None = None) -> None:
        self._response = response
        self._remote = remote
        self._upload = upload
        self._open = True
        self.status: int = response.status
        self.headers: list[Header] = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers
        ]

    def header(self, name: str) -> str | None:
        """The first value of a header, by case-insensitive name, or ``None``."""
        wanted = name.lower()
        for candidate, value in self.headers:
            if candidate.lower() == wanted:
                return value
        return None

    async def next_chunk(self) -> bytes:
        """The bytes received since the last call, waiting for at least one; ``b""`` at the end of the body.

        Raises:
            LarderError: ``Remote.failed``. The body ended before its Content-Length, the connection broke, nothing arrived
                within the limit, or the other side is not alive.
        """
        content, remote = self._response.content, self._remote
        try:
            # Return the bytes received before the connection broke; aiohttp's own reads would discard them.
            chunk = content._read_nowait(-1) if content.exception() is not None else b""
            while not chunk:
                chunk = await (content.readany() if remote.silence is None else self._while_alive(remote.silence))
                if content.at_eof():
                    break  # otherwise the parser delivered an empty piece
        except (ClientError, OSError) as error:
            self.abort()
            raise remote.failed(f"broke off its answer: {described(error)}", error) from error
        remote.bytes.inc(len(chunk))
        return chunk

    async def _while_alive(self, silence: float) -> bytes:
        while True:
            limit = asyncio.timeout(silence)
            try:
                async with limit:
                    return await self._response.content.readany()
            except TimeoutError:
                if not limit.expired():
                    raise
                await self._remote.check()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives. Raises what ``next_chunk`` raises."""
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """Read the whole body and release the connection.

        Raises:
            LarderError: as ``next_chunk``; or the body has more than ``limit`` bytes, and the connection is closed.
        """
        pieces: list[bytes] = []
        size = 0
        while chunk := await self.next_chunk():
            pieces.append(chunk)
            size += len(chunk)
            if size > limit:
                self.abort()
                raise self._remote.failed(f"gave an answer larger than {limit} bytes", None)
        self.release()
        return b"".join(pieces)

    def release(self) -> None:
        """Return the connection for reuse.

        It is closed instead if the body has not ended, or if the other side answered before it had read the request.
        """
        if self._response.content.at_eof() and (self._upload is None or self._upload.finished):
            self._response.release()
            self._end()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection: the rest of the body is not needed. No effect after ``release``."""
        self._response.close()
        self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._remote.ended()


class Upload:
    """Iterates over a request body, records its failure, and enforces its announced length.

    The time that a client takes to send its body is not limited here; the time that the other side takes to accept a piece of
    it is. A body can fail on the client's side (a bad chunk signature, a broken connection) while it is being sent. Then the
    other side must never see a complete request, and the caller must get the original failure.

    ``failure`` is the exception raised by the body; ``finished``: all of it was handed over. While ``limit`` is set, it expires
    if the other side does not accept a piece for ``patience`` seconds, or does not answer within ``head_within`` after the
    last.
    """

    def __init__(
        self,
        body: bytes | AsyncIterator[bytes],
        length: int | None,
        *,
        patience: float | None,
        head_within: float | None,
    ) -> None:
        self._body = body
        self._left = length
        self._patience = patience
        self._head_within = head_within
        self.limit: asyncio.Timeout | None = None
        self.failure: Exception | None = None
        self.finished = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises S3Error ``IncompleteBody`` if its length differs from the announced one."""
        try:
            if isinstance(self._body, bytes):
                yield self._handed(self._body)
            else:
                async for piece in self._body:
                    yield self._handed(piece)
                    self._expect(None)
            self._expect(None)
            if self._left:
                raise S3Error("IncompleteBody")
            self.finished = True
            self._expect(self._head_within)
        except Exception as error:
            self.failure = error
            raise

    def _handed(self, piece: bytes) -> bytes:
        self._expect(self._patience)
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise S3Error("IncompleteBody")
        return piece

    def _expect(self, within: float | None) -> None:
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time() + within if within else None)


class _ResponseReader(ResponseHandler):
    """Reads the answers of one connection; ``may_have_body``: the answer to a HEAD may be followed by a body.

    aiohttp would take such a body for the next answer, and fail if it arrives together with the head.
    """

    may_have_body = False

    def set_response_params(self, *, skip_payload: bool = False, **others: Any) -> None:
        super().set_response_params(skip_payload=skip_payload and not self.may_have_body, **others)


class _Connector(TCPConnector):
    """Starts the limit of an answer's head when its request gets a connection: waiting for a free one does not count."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=_KEEP_IDLE, ttl_dns_cache=_KEEP_DNS)
        self._factory = cast("partial[ResponseHandler]", partial(_ResponseReader, loop=self._loop))

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if isinstance(connection.protocol, _ResponseReader):
            connection.protocol.may_have_body = req.headers.get("Connection") == "close"
        for limit, within in _head_limit.get(()):
            limit.reschedule(asyncio.get_running_loop().time() + within)
        return connection


class Connections:
    """Kept connections, to one origin or to the nodes of a fleet. Create it inside a running event loop.

    Args:
        limit: most connections at once; 0 for no limit.
        connect: time-out of a connection attempt in seconds; ``None`` for none.
        silence: seconds without a byte from the other side after which an exchange fails; ``None`` for never.
        buffer: bytes of an answer that are read ahead of their reader.
    """

    def __init__(self, *, limit: int, connect: float | None, silence: float | None, buffer: int) -> None:
        self._session = ClientSession(
            connector=_Connector(limit),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=buffer,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            timeout=ClientTimeout(total=None, sock_connect=connect, sock_read=silence),
        )

    async def ask(
        self,
        remote: Remote,
        method: str,
        url: URL,
        headers: Sequence[Header],
        body: bytes = b"",
        *,
        within: float | None,
        repeat: bool = False,
    ) -> StreamedResponse:
        """Send a complete request; return at the head of its answer.

        Args:
            remote: the other side.
            method: upper-case HTTP method.
            url: the address, sent byte for byte.
            headers: in the order in which they are sent.
            body: the whole body.
            within: seconds from getting a connection to the head of the answer; ``None`` for no limit.
            repeat: send it once more, whatever the method, if its connection broke before an answer began.

        Raises:
            LarderError: ``Remote.failed``.
        """
        try:
            while True:
                try:
                    async with asyncio.timeout(None) as limit:
                        limits = [] if within is None else [(limit, within)]
                        token = _head_limit.set(limits)
                        try:
                            return StreamedResponse(await self._request(method, url, headers, body or None), remote)
                        finally:
                            limits.clear()
                            _head_limit.reset(token)
                except (ServerDisconnectedError, ConnectionResetError, BrokenPipeError):
                    if not repeat:
                        raise
                    repeat = False
        except (ClientError, OSError) as error:
            raise remote.failed(f"gave no answer: {described(error)}", error) from error

    async def upload(
        self, remote: Remote, method: str, url: URL, headers: Sequence[Header], body: Upload
    ) -> StreamedResponse:
        """Send a request with a streamed body; return at the head of its answer.

        Raises:
            LarderError: ``Remote.failed``.
            Exception: ``Upload.failure``.
        """
        try:
            async with asyncio.timeout(None) as body.limit:
                response = await self._request(method, url, headers, body.pieces())
        except BaseException as error:
            if body.failure is not None:
                raise body.failure from None
            if isinstance(error, (ClientError, OSError)):
                raise remote.failed(f"gave no answer: {described(error)}", error) from error
            raise
        finally:
            body.limit = None
        return StreamedResponse(response, remote, body)

    def _request(
        self, method: str, url: URL, headers: Sequence[Header], data: bytes | AsyncIterator[bytes] | None
    ) -> Awaitable[ClientResponse]:
        return self._session.request(
            method,
            url,
            headers=CIMultiDict(headers),
            data=data,
            skip_auto_headers=_NO_CONTENT_TYPE,
            allow_redirects=False,
        )

    async def close(self) -> None:
        """Close every connection; answers in progress break off."""
        await self._session.close()


async def probe(url: URL) -> None:
    """Request any answer from a server, over a new connection: kept ones may be dead, or none may be free.

    Raises:
        ClientError, OSError: there was no answer.
    """
    async with (
        ClientSession(connector=TCPConnector(force_close=True), cookie_jar=DummyCookieJar()) as session,
        session.head(url, headers=CIMultiDict(OWN_HEADERS), allow_redirects=False),
    ):
        return


def described(error: Exception) -> str:
    """A connection failure in words, for clients and logs.

    Never its ``repr``: that of aiohttp's response errors contains the request's headers, signature and token included.
    """
    text = "not valid HTTP" if isinstance(error, ClientResponseError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def kind_of(error: Exception) -> str:
    """A connection failure in one word, for the metric's label."""
    if isinstance(error, TimeoutError):
        return "timeout"
    kinds = {
        ClientConnectorDNSError: "dns",
        ClientSSLError: "tls",
        ClientConnectorError: "connect",
        ClientResponseError: "invalid",
    }
    return next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "broken")
