"""Signed HTTP to the origins: what the gateway asks goes out, what they answer comes back, nothing is interpreted.

Where a request goes is decided by the configuration alone. The address is taken from ``[[origins]]`` once; of a request
only its path and query are used, after a check that they can be nothing else on the request line. They are sent byte
for byte: no decoding, no dot segments removed, no slashes merged, because every such path is a legal, different key.

aiohttp repeats a GET, HEAD, PUT or DELETE once when the connection broke before an answer came (RFC 9110, 9.2.2 and
RFC 9112, 9.3.1), which hides kept-alive connections that the origin had just closed. A body that has begun to be read is
never sent twice: it is handed over as a stream that cannot be rewound.

aiohttp limits the silence before an answer only until anything has come: an interim answer (1xx) ends this limit. So the
head of an answer has a limit of its own, counted from when nothing but the origin is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from gateway import __version__
from gateway.config import Credential, Origin
from gateway.metrics import ORIGIN_FAILURES, ORIGIN_IN_FLIGHT, ORIGIN_LATENCY, ORIGIN_REQUESTS
from gateway.model.errors import IdentityGone, OriginUnavailable, S3Error
from gateway.model.keys import OriginIdentity
from gateway.model.objects import Header
from gateway.origin.credentials import CredentialChain, KeyRing
from gateway.origin.reach import Reach
from gateway.origin.response import OriginResponse, described, kind_of
from gateway.origin.signer import Signer
from gateway.origin.upload import Upload

if TYPE_CHECKING:
    from aiohttp import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_OWN_HEADERS: tuple[Header, ...] = (
    ("User-Agent", f"larder/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)
_NO_CONTENT_TYPE = frozenset({"Content-Type"})
_READ_BUFFER = 128 * 1024
_LONGEST_HEADER = 64 * 1024
_KEEP_IDLE = 15.0
_KEEP_DNS = 60

_head_limit: ContextVar[list[asyncio.Timeout]] = ContextVar("head_limit")
"""What limits the wait for the head of this task's answer, for requests without a body; none any more when that is there.

A list, because a connection remembers the context that it was made in, and with it whatever a limit refers to: the task, and
the task's result, for as long as the connection is kept.
"""


class _Answers(ResponseHandler):
    """Reads the answers of one connection; ``may_have_body`` says that the answer to a HEAD may be followed by a body.

    aiohttp takes such a body for the next answer, and fails when it arrives together with the head.
    """

    may_have_body = False

    def set_response_params(self, *, skip_payload: bool = False, **others: Any) -> None:
        super().set_response_params(skip_payload=skip_payload and not self.may_have_body, **others)


class _Connector(TCPConnector):
    """Starts the limit of an answer's head when its request has got a connection: waiting for a free one does not count."""

    def __init__(self, origin: Origin, within: float | None) -> None:
        super().__init__(limit=origin.max_connections, keepalive_timeout=_KEEP_IDLE, ttl_dns_cache=_KEEP_DNS)
        self._factory = cast("partial[ResponseHandler]", partial(_Answers, loop=self._loop))
        self._within = within

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if isinstance(connection.protocol, _Answers):
            connection.protocol.may_have_body = req.headers.get("Connection") == "close"
        for limit in _head_limit.get(()):
            if self._within is not None:
                limit.reschedule(asyncio.get_running_loop().time() + self._within)
        return connection


class _Link:
    """The connections to one origin, and how many answers are still coming through them."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        base = URL(origin.endpoint)
        self._scheme = base.scheme
        self._authority = base.raw_authority
        self.host = base.host_port_subcomponent or ""
        self.active = 0
        self.head_within = origin.connect_timeout + origin.read_timeout if origin.read_timeout else None
        self.session = ClientSession(
            connector=_Connector(origin, self.head_within),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            timeout=ClientTimeout(
                total=None, sock_connect=origin.connect_timeout or None, sock_read=origin.read_timeout or None
            ),
        )
        self.reach = Reach(origin.name, self._probe, origin.check_timeout)

    async def _probe(self) -> None:
        """Have the origin answer anything, over a connection of its own: kept ones may lead nowhere, or none may be free."""
        async with (
            ClientSession(connector=TCPConnector(force_close=True), cookie_jar=DummyCookieJar()) as session,
            session.head(self.url("/", ""), headers=CIMultiDict(_OWN_HEADERS), allow_redirects=False),
        ):
            return

    async def close(self) -> None:
        await self.reach.close()
        await self.session.close()

    def began(self) -> None:
        self.active += 1
        ORIGIN_IN_FLIGHT.inc()

    def ended(self) -> None:
        self.active -= 1
        ORIGIN_IN_FLIGHT.dec()

    def url(self, raw_path: str, query: str) -> URL:
        if not raw_path.startswith("/") or "?" in raw_path or not _is_plain(raw_path) or not _is_plain(query):
            raise S3Error("InvalidURI")
        return URL.build(
            scheme=self._scheme, authority=self._authority, path=raw_path, query_string=query, encoded=True
        )


class OriginClient:
    """Sends requests to all origins of one gateway worker. To be created inside a running event loop.

    Args:
        origins: where requests may go.
        credentials: of the gateway; those with keys of their own at the origin add identities.
        now: seconds since the epoch, for signatures.
    """

    def __init__(
        self, origins: Sequence[Origin], credentials: Sequence[Credential], *, now: Callable[[], float]
    ) -> None:
        self._signer = Signer(now)
        self._chain = CredentialChain(now)
        self._links = {origin.name: _Link(origin) for origin in origins}
        self._ring = KeyRing(origins, credentials, self._chain)
        self._retired: list[_Link] = []

    def has(self, identity: OriginIdentity) -> bool:
        """Whether the configuration has this identity."""
        return self._ring.has(identity)

    def reach(self, identity: OriginIdentity) -> Reach:
        """What is known of the way to an identity's origin.

        Raises:
            IdentityGone: the origin is not of this configuration.
        """
        link = self._links.get(identity.origin)
        if link is None:
            raise IdentityGone("the origin is not configured any more")
        return link.reach

    def lost(self, identity: OriginIdentity) -> bool:
        """Whether an identity's origin cannot be reached, or is not of this configuration."""
        link = self._links.get(identity.origin)
        return link is None or link.reach.lost

    @property
    def problem(self) -> str:
        """Which origins this worker cannot reach, in words; empty while it reaches all that it asks."""
        return "; ".join(link.reach.problem for link in self._links.values() if link.reach.lost)

    async def replace(self, origins: Sequence[Origin], credentials: Sequence[Credential]) -> None:
        """Take over a reloaded configuration.

        Origins that did not change keep their connections. Answers that are still coming from one that did change, or
        is gone, come to their end; its idle connections are closed with the last of them, at the next reload or close.
        """
        old = self._links
        self._links = {
            origin.name: old[origin.name] if origin.name in old and old[origin.name].origin == origin else _Link(origin)
            for origin in origins
        }
        self._ring = KeyRing(origins, credentials, self._chain)
        kept = set(map(id, self._links.values()))
        retired = self._retired + [link for link in old.values() if id(link) not in kept]
        self._retired = [link for link in retired if link.active]
        for link in retired:
            if not link.active:
                await link.close()

    async def send(
        self,
        identity: OriginIdentity,
        method: str,
        raw_path: str,
        query: str,
        headers: Sequence[Header],
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        content_length: int | None = None,
        payload_hash: str = "UNSIGNED-PAYLOAD",
    ) -> OriginResponse:
        """Sign and send one request; return when the head of the answer is there.

        Args:
            identity: whose keys sign it; an anonymous identity's request goes unsigned.
            method: upper-case HTTP method.
            raw_path: percent-encoded ``/bucket/key``, sent byte for byte.
            query: percent-encoded, without "?", sent byte for byte.
            headers: further headers; of a client's only those of ``is_forwarded``.
            body: sent as it is; whatever it raises is raised here, and the origin never sees a complete request.
            content_length: of ``body`` in bytes; needed for a stream, as S3 takes no chunked bodies.
            payload_hash: what ``x-amz-content-sha256`` says of the body.

        Raises:
            OriginUnavailable: no connection, or it broke or fell silent before the head of an answer came.
            S3Error: ``InvalidURI``, the path or query cannot stand on a request line; ``IncompleteBody``, the body was
                not ``content_length`` long.
            IdentityGone: the origin or the identity is not of this configuration.
        """
        try:
            link = self._links[identity.origin]
            keys = await self._ring.keys(identity)
        except KeyError:
            # A request that was let in goes on while its key is revoked or its origin removed; it ends as one without an origin.
            raise IdentityGone("the origin, or the keys for it, are not configured any more") from None
        url = link.url(raw_path, query)
        pairs = [*map(_as_sent, headers), *_OWN_HEADERS, ("Host", link.host)]
        if keys is not None:
            self._signer.sign(
                method, raw_path, query, pairs, payload_hash=payload_hash, keys=keys, region=link.origin.region
            )
        if isinstance(body, bytes):
            content_length = len(body)
        if content_length is not None:
            pairs.append(("Content-Length", str(content_length)))
        upload = None
        if body is not None:
            upload = Upload(body, content_length, patience=link.origin.read_timeout, head_within=link.head_within)
        began = time.perf_counter()
        try:
            response = await _exchange(link, method, url, pairs, upload)
        except OriginUnavailable:
            link.reach.doubt()
            ORIGIN_REQUESTS.labels(method, "failed").inc()
            raise
        link.reach.heard()
        ORIGIN_REQUESTS.labels(method, f"{response.status // 100}xx").inc()
        ORIGIN_LATENCY.labels(method).observe(time.perf_counter() - began)
        return response

    async def close(self) -> None:
        """Close every connection; answers still coming break off."""
        links = [*self._links.values(), *self._retired]
        self._links, self._retired = {}, []
        for link in links:
            await link.close()


async def _exchange(link: _Link, method: str, url: URL, pairs: list[Header], upload: Upload | None) -> OriginResponse:
    link.began()
    try:
        if upload is None:
            response = await _ask(link, method, url, pairs)
        else:
            response = await _send_body(link.session, method, url, pairs, upload)
    except BaseException as error:
        link.ended()
        if upload and upload.failure:
            raise upload.failure from None
        if isinstance(error, (ClientError, OSError)):
            ORIGIN_FAILURES.labels(kind_of(error)).inc()
            raise OriginUnavailable(f"{link.origin.endpoint}: {described(error)}") from error
        raise
    if not 200 <= response.status < 600:  # no final answer of HTTP (RFC 9110 section 15), so none to be passed on
        response.close()
        link.ended()
        ORIGIN_FAILURES.labels("invalid").inc()
        raise OriginUnavailable(f"{link.origin.endpoint}: it answered with status {response.status}")
    return OriginResponse(response, upload, link.ended)


async def _ask(link: _Link, method: str, url: URL, pairs: list[Header]) -> ClientResponse:
    async with asyncio.timeout(None) as limit:
        limits = [limit]
        token = _head_limit.set(limits)
        link.reach.asked()
        try:
            return await link.session.request(method, url, headers=CIMultiDict(pairs), allow_redirects=False)
        finally:
            link.reach.ended()
            limits.clear()
            _head_limit.reset(token)


async def _send_body(
    session: ClientSession, method: str, url: URL, pairs: list[Header], upload: Upload
) -> ClientResponse:
    try:
        async with asyncio.timeout(None) as upload.limit:
            return await session.request(
                method,
                url,
                headers=CIMultiDict(pairs),
                data=upload.pieces(),
                skip_auto_headers=_NO_CONTENT_TYPE,
                allow_redirects=False,
            )
    finally:
        upload.limit = None


def _is_plain(text: str) -> bool:
    return text.isascii() and (text.isprintable() or not text) and " " not in text and "#" not in text


def _as_sent(pair: Header) -> Header:
    """Text that aiohttp, which writes UTF-8, turns into the bytes that ``value`` stands for."""
    if pair[1].isascii():
        return pair
    try:
        return pair[0], pair[1].encode("latin-1").decode("utf-8")
    except UnicodeError:
        return pair
