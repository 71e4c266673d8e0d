"""Signed HTTP to the origins: what the gateway asks goes out, what they answer comes back, nothing is interpreted.

Where a request goes is decided by the configuration alone. The address is taken from ``[[origins]]`` once; of a request
only its path and query are used, after a check that they can be nothing else on the request line. They are sent byte
for byte: no decoding, no dot segments removed, no slashes merged, because every such path is a legal, different key.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache, partial

from prometheus_client import Counter, Histogram
from yarl import URL

from gateway.config import Credential, Origin
from gateway.metrics import ORIGIN_BYTES, ORIGIN_FAILURES, ORIGIN_IN_FLIGHT, ORIGIN_LATENCY, ORIGIN_REQUESTS
from gateway.model.errors import IdentityGone, OriginUnavailable, S3Error
from gateway.model.keys import OriginIdentity
from gateway.model.objects import Header
from gateway.net.exchange import OWN_HEADERS, Connections, StreamedResponse, Upload, kind_of, probe
from gateway.origin.credentials import CredentialChain, KeyRing
from gateway.origin.reach import Reach
from gateway.origin.signer import Signer

_READ_BUFFER = 128 * 1024
"""Bytes of an answer that are read ahead."""


class _Link:
    """The connections to one origin, and how many answers are still coming through them."""

    bytes = ORIGIN_BYTES
    silence: float | None = None

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        base = URL(origin.endpoint)
        self._scheme = base.scheme
        self._authority = base.raw_authority
        self.host = base.host_port_subcomponent or ""
        self.active = 0
        self.head_within = origin.connect_timeout + origin.read_timeout if origin.read_timeout else None
        self.connections = Connections(
            limit=origin.max_connections,
            connect=origin.connect_timeout or None,
            silence=origin.read_timeout or None,
            buffer=_READ_BUFFER,
        )
        self.reach = Reach(origin.name, partial(probe, self.url("/", "")), origin.check_timeout)

    async def close(self) -> None:
        await self.reach.close()
        await self.connections.close()

    def began(self) -> None:
        self.active += 1
        ORIGIN_IN_FLIGHT.inc()

    def ended(self) -> None:
        self.active -= 1
        ORIGIN_IN_FLIGHT.dec()

    def failed(self, what: str, cause: Exception | None) -> OriginUnavailable:
        if cause is not None:
            ORIGIN_FAILURES.labels(kind_of(cause)).inc()
        return OriginUnavailable(f"the origin {self.origin.endpoint} {what}")

    async def check(self) -> None:
        """Reads have time-outs of their own."""

    def url(self, raw_path: str, query: str) -> URL:
        if not raw_path.startswith("/") or "?" in raw_path or not _is_plain(raw_path + query):
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
    ) -> StreamedResponse:
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
        pairs = [*map(_as_sent, headers), *OWN_HEADERS, ("Host", link.host)]
        if keys is not None:
            self._signer.sign(
                method, raw_path, query, pairs, payload_hash=payload_hash, keys=keys, region=link.origin.region
            )
        content_length = len(body) if isinstance(body, bytes) else content_length
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
        requests, latency = _series(method, response.status // 100)
        requests.inc()
        latency.observe(time.perf_counter() - began)
        return response

    async def close(self) -> None:
        """Close every connection; answers still coming break off."""
        links = [*self._links.values(), *self._retired]
        self._links, self._retired = {}, []
        for link in links:
            await link.close()


async def _exchange(link: _Link, method: str, url: URL, pairs: list[Header], upload: Upload | None) -> StreamedResponse:
    link.began()
    try:
        if upload is None:
            link.reach.asked()
            try:
                response = await link.connections.ask(link, method, url, pairs, within=link.head_within)
            finally:
                link.reach.ended()
        else:
            response = await link.connections.upload(link, method, url, pairs, upload)
    except BaseException:
        link.ended()
        raise
    if not 200 <= response.status < 600:  # no final answer of HTTP (RFC 9110 section 15), so none to be passed on
        response.abort()
        ORIGIN_FAILURES.labels("invalid").inc()
        raise OriginUnavailable(f"{link.origin.endpoint}: it answered with status {response.status}")
    return response


@cache  # as many as there are series
def _series(method: str, hundreds: int) -> tuple[Counter, Histogram]:
    """The metrics of answers by method and class of the status, looked up once for each kind."""
    return ORIGIN_REQUESTS.labels(method, f"{hundreds}xx"), ORIGIN_LATENCY.labels(method)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text and "#" not in text


def _as_sent(pair: Header) -> Header:
    """Text that aiohttp, which writes UTF-8, turns into the bytes that ``value`` stands for."""
    if pair[1].isascii():
        return pair
    try:
        return pair[0], pair[1].encode("latin-1").decode("utf-8")
    except UnicodeError:
        return pair
