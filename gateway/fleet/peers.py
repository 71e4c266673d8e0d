"""Asking other nodes: signed HTTP, kept connections, little patience, and no error that a client would see.

A node that does not answer, breaks off or refuses the call as such is suspected (gateway/fleet/membership.py), and whoever asked
is told ``PeerUnavailable``: the next in the ring can be asked, or the origin. What a node does answer is an answer, whatever its
status, and the caller's to judge.

A connection that the other end has just closed is not a dead node: as all calls only read, one that broke before an answer began
is made once more, on another connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)
from multidict import CIMultiDict
from yarl import URL

from gateway import __version__, metrics
from gateway.fleet.peer_gate import REFUSED
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.objects import Header
from gateway.model.peer_auth import PeerSigner
from gateway.model.wire import WireRequest

_CONNECT = 0.5
_KEEP_IDLE = 15.0
# Of each answer that is not read on, because its reader is slow, about this much and one read of the socket is in memory: with
# 256 KiB that came to 710 KiB for each of 300 slow readers, with 32 KiB to 220, at the same cost per byte.
_READ_BUFFER = 32 * 1024
_LONGEST_HEADER = 64 * 1024
_NO_CONTENT_TYPE = frozenset({"Content-Type"})
_OWN_HEADERS: tuple[Header, ...] = (
    ("User-Agent", f"larder/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)


class PeerUnavailable(LarderError):
    """Another node could not be reached, fell silent, broke off, or refused the call as such."""


class Suspecting(Protocol):
    """What is needed of the membership."""

    me: str

    def suspect(self, node_id: str, refused: str = "") -> None:
        """A call to a node failed; ``refused`` is why, in one word, if it answered that it admits no such call."""
        ...


@dataclass(frozen=True, slots=True)
class _PeerCall:
    method: str
    url: URL
    headers: tuple[Header, ...]
    body: bytes
    timeout: float


class PeerResponse:
    """Another node's answer; end it with ``release`` or ``abort``.

    ``headers`` keeps order, spelling and repetitions; each character of a value is one byte.
    """

    __slots__ = ("_members", "_node", "_response", "headers", "status")

    def __init__(self, response: ClientResponse, node: Node, members: Suspecting) -> None:
        self._response = response
        self._node = node
        self._members = members
        self.status: int = response.status
        self.headers: list[Header] = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers
        ]

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever its spelling, or ``None``."""
        wanted = name.lower()
        return next((value for candidate, value in self.headers if candidate.lower() == wanted), None)

    async def next_chunk(self) -> bytes:
        """Whatever has arrived since the last call, waiting for at least one byte; ``b""`` at the end of the body.

        Raises:
            PeerUnavailable: the body broke off, or nothing came for as long as the answer might take to begin.
        """
        content = self._response.content
        try:
            chunk = await content.readany()
            # An empty buffer that is not the end: the parser delivered an empty piece.
            while not chunk and not content.at_eof():
                chunk = await content.readany()
        except (ClientError, OSError) as error:
            self._broken(error)
        metrics.PEER_BYTES.inc(len(chunk))
        return chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives. Raises what ``next_chunk`` raises."""
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """The whole body, and the connection released.

        Raises:
            PeerUnavailable: as ``next_chunk``; or there are more than ``limit`` bytes.
        """
        pieces: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            pieces.append(chunk)
            size += len(chunk)
            if size > limit:
                self.abort()
                raise PeerUnavailable(f"node {self._node.id}: its answer is larger than {limit} bytes")
        self.release()
        return b"".join(pieces)

    def release(self) -> None:
        """Give the connection back for the next request; it is closed instead when there is more body to come."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection: nobody wants the rest of the body. Harmless after ``release``."""
        self._response.close()

    def _broken(self, error: Exception) -> NoReturn:
        self.abort()
        metrics.PEER_REQUESTS.labels("broken").inc()
        self._members.suspect(self._node.id)
        raise PeerUnavailable(f"node {self._node.id} broke off its answer: {_described(error)}") from error


class Peers:
    """Asks other nodes on behalf of one worker. To be created inside a running event loop.

    Args:
        membership: is told of nodes that do not answer.
        secret: of the fleet.
    """

    def __init__(self, membership: Suspecting, secret: str) -> None:
        self._members = membership
        self._signer = PeerSigner(secret, membership.me)
        self._session = ClientSession(
            # Not limited: waiting for a free connection would look like a node that is slow.
            connector=TCPConnector(limit=0, keepalive_timeout=_KEEP_IDLE),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )

    async def request(
        self,
        node: Node,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Sequence[Header] = (),
        body: bytes = b"",
        timeout: float = 10.0,
    ) -> PeerResponse:
        """Ask a node; return when the head of its answer is there.

        Args:
            node: whom.
            method: upper-case HTTP method.
            path: percent-encoded, from ``/-/peer/`` on, sent byte for byte.
            query: percent-encoded, without "?", sent byte for byte.
            headers: further headers, in ASCII.
            body: the whole of it.
            timeout: seconds until the answer begins, and of silence within it.

        Raises:
            PeerUnavailable: it did not answer, or refused the call as such. It has been suspected.
        """
        url = URL(node.address)
        url = URL.build(scheme=url.scheme, authority=url.raw_authority, path=path, query_string=query, encoded=True)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        signed = self._signer.headers(WireRequest(method, path.encode(), query.encode(), raw), body, time.time())
        call = _PeerCall(method, url, (*headers, *signed, *_OWN_HEADERS), body, timeout)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                response = await self._twice(call)
        except (ClientError, OSError) as error:
            self._failed(node, _described(error), error)
        metrics.PEER_LATENCY.observe(time.perf_counter() - began)
        answer = PeerResponse(response, node, self._members)
        if (reason := answer.header(REFUSED)) is not None:
            answer.abort()
            self._refused(node, reason)
        metrics.PEER_REQUESTS.labels("failed" if answer.status >= 500 else "answered").inc()
        return answer

    async def close(self) -> None:
        """Close every connection; answers still coming break off."""
        await self._session.close()

    async def _twice(self, call: _PeerCall) -> ClientResponse:
        try:
            return await self._once(call)
        except (ServerDisconnectedError, ConnectionResetError, BrokenPipeError):
            return await self._once(call)

    async def _once(self, call: _PeerCall) -> ClientResponse:
        return await self._session.request(
            call.method,
            call.url,
            headers=CIMultiDict(call.headers),
            data=call.body or None,
            skip_auto_headers=_NO_CONTENT_TYPE,
            allow_redirects=False,
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=call.timeout),
        )

    def _refused(self, node: Node, reason: str) -> NoReturn:
        metrics.PEER_REQUESTS.labels("refused").inc()
        self._members.suspect(node.id, reason)
        raise PeerUnavailable(f"node {node.id} at {node.address}: it refuses calls of this node: {reason}")

    def _failed(self, node: Node, why: str, cause: Exception) -> NoReturn:
        metrics.PEER_REQUESTS.labels("unavailable").inc()
        self._members.suspect(node.id)
        raise PeerUnavailable(f"node {node.id} at {node.address}: {why}") from cause


def _described(error: Exception) -> str:
    """A failure in words for the log; never its ``repr``, which may contain the request's headers."""
    text = "not valid HTTP" if isinstance(error, ClientResponseError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
