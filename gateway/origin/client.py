"""Signed HTTP to the origins: sends the gateway's requests, and returns the answers without interpreting them.

The configuration alone decides where a request goes. The address is read from ``[[origins]]`` once. Only the path and query of a
request are used, after a check that they cannot break out of the request line. They are sent byte for byte, without decoding,
removal of dot segments or merging of slashes, because each such path is a different legal key.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from types import ModuleType

from gateway.base.config import Credential, Origin
from gateway.base.imports import imported
from gateway.base.metrics import (
    ORIGIN_ANSWERS,
    ORIGIN_BYTES,
    ORIGIN_FAILURES,
    ORIGIN_LATENCY,
    ORIGIN_REQUESTS,
    LoopHistogram,
    LoopSum,
)
from gateway.base.tasks import SingleFlight
from gateway.model.errors import (
    GatewayRefused,
    IdentityGone,
    LarderError,
    OriginBusy,
    OriginUnavailable,
    OutOfResources,
    S3Error,
)
from gateway.model.keys import OriginIdentity
from gateway.model.objects import Header
from gateway.model.s3.request_headers import PAYER, REQUESTER
from gateway.net.dialing import BUSY, EXHAUSTED, ExchangeFailed, ServerAddress
from gateway.net.exchange import Connections, StreamedResponse, probe
from gateway.net.places import WITHIN
from gateway.net.requests import Upload
from gateway.origin.credentials import KeyRing, Keys, KeySource, is_chained
from gateway.origin.headers import has_what_was_asked
from gateway.origin.hedges import Hedges
from gateway.origin.reach import Reach
from gateway.origin.refusals import DENIED, SUSPECT, TRUSTED, UNCLEAR, Refusals, refusal_of
from gateway.origin.signing import Signer

CHAIN = "gateway.origin.chain"
"""The module of the AWS credential chain, imported when an origin first needs it."""
_PAYS: Header = (PAYER.decode(), REQUESTER.decode())
"""The header of a request whose charges the client accepts."""
_READ_BUFFER = 128 * 1024
"""Bytes of an answer that are read ahead."""
_KEPT_DENIALS = 1024
_COMPLAIN = 60.0
"""Seconds between two warnings that no connection was free."""

log = logging.getLogger("larder.origin")


class _Link:
    """The connections to one origin."""

    silence: float | None = None

    def __init__(self, origin: Origin) -> None:
        self.bytes = LoopSum(ORIGIN_BYTES)
        self.origin = origin
        self.address = ServerAddress.of(origin.endpoint)
        self._complain_at = float("-inf")
        self.patience = origin.read_timeout or math.inf
        self.head_within = origin.connect_timeout + self.patience
        self.connections = Connections(
            limit=origin.max_connections,
            connect=origin.connect_timeout or None,
            silence=origin.read_timeout or None,
            buffer=_READ_BUFFER,
        )
        self.reach = Reach(origin.name, partial(probe, self.address), origin.check_timeout)

    async def close(self) -> None:
        await self.reach.close()
        await self.connections.close()

    def failed(self, what: str, cause: ExchangeFailed | None) -> OriginUnavailable:
        if cause is not None:
            ORIGIN_FAILURES.labels(cause.kind).inc()
            if cause.kind == BUSY:
                self._complain()
                return OriginBusy(
                    f"all {self.origin.max_connections} connections to {self.origin.endpoint}, or the caller's share, are in use"
                )
            if cause.kind == EXHAUSTED:
                return OutOfResources(f"the origin {self.origin.endpoint} was not asked: {cause}")
        return OriginUnavailable(f"the origin {self.origin.endpoint} {what}")

    def _complain(self) -> None:
        """Log once a minute that connections are lacking."""
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN
            log.warning(
                "no connection to origin %(origin)s was free for %(limit)g s; if it bears more, raise origins.max_connections",
                {"origin": self.origin.name, "limit": WITHIN},
            )

    async def check(self) -> None:
        """Do nothing: read time-outs limit the silence of an origin."""


class _LazyChain:
    """The AWS credential chain, imported when an origin first needs it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._chain: KeySource | None = None

    def prepare(self) -> None:
        """Import the chain now. The first import in a process takes half a second."""
        self._use(imported(CHAIN))

    async def current(self) -> Keys | None:
        """See ``CredentialChain.current``."""
        if self._chain is None:
            self._use(await asyncio.to_thread(imported, CHAIN))
        assert self._chain is not None
        return await self._chain.current()

    def _use(self, module: ModuleType) -> None:
        if self._chain is None:
            self._chain = module.CredentialChain(self._now)


class OriginClient:
    """Sends requests to all origins of one gateway worker. Create it inside a running event loop.

    Args:
        origins: the destinations of requests.
        credentials: of the gateway; those with their own origin keys add identities.
        now: seconds since the epoch, for signatures.
    """

    def __init__(
        self, origins: Sequence[Origin], credentials: Sequence[Credential], *, now: Callable[[], float]
    ) -> None:
        self._signer = Signer(now)
        self._chain = _LazyChain(now)
        if is_chained(origins):
            self._chain.prepare()
        self._links = {origin.name: _Link(origin) for origin in origins}
        self._ring = KeyRing(origins, credentials, self._chain)
        self._retired: list[_Link] = []
        self.hedges = Hedges()
        self._refusals = Refusals(now)
        self._accepted: dict[OriginIdentity, float] = {}
        """By identity: when the last request accepted by its origin was sent, by the performance counter."""
        self._denied: dict[tuple[OriginIdentity, str], float] = {}
        """By identity and path: when a GET was last refused because of the reader."""
        self._questions: SingleFlight[OriginIdentity, GatewayRefused | None] = SingleFlight()

    def has(self, identity: OriginIdentity) -> bool:
        """Whether the configuration has this identity."""
        return self._ring.has(identity)

    def reach(self, identity: OriginIdentity) -> Reach:
        """The reachability of an identity's origin.

        Raises:
            IdentityGone: the origin is not configured.
        """
        link = self._links.get(identity.origin)
        if link is None:
            raise IdentityGone("the origin is no longer configured")
        return link.reach

    def lost(self, identity: OriginIdentity) -> bool:
        """Whether an identity's origin is unreachable, or not configured."""
        link = self._links.get(identity.origin)
        return link is None or link.reach.lost

    @property
    def in_flight(self) -> int:
        """The requests in progress, each until the end of its answer."""
        return sum(link.connections.active for link in (*self._links.values(), *self._retired))

    @property
    def problem(self) -> str:
        """The origins that this worker cannot reach, in words; empty if there are none."""
        return "; ".join(link.reach.problem for link in self._links.values() if link.reach.lost)

    @property
    def contacts(self) -> dict[str, str]:
        """This worker's last contact with each origin that it has used, by name: a ``Contact``."""
        return {name: link.reach.contact.value for name, link in self._links.items() if link.reach.met}

    @property
    def refused_keys(self) -> str:
        """How origins refuse or redirect the gateway's keys, with remedies, in words; empty if they do not."""
        return self._refusals.problem

    async def replace(self, origins: Sequence[Origin], credentials: Sequence[Credential]) -> None:
        """Adopt a reloaded configuration.

        Unchanged origins keep their connections; others close theirs after the last answer, at the next reload or close.
        """
        old = self._links
        self._links = {
            origin.name: old[origin.name] if origin.name in old and old[origin.name].origin == origin else _Link(origin)
            for origin in origins
        }
        self._ring = KeyRing(origins, credentials, self._chain)
        self._accepted = {identity: at for identity, at in self._accepted.items() if self._ring.has(identity)}
        kept = set(map(id, self._links.values()))
        retired = self._retired + [link for link in old.values() if id(link) not in kept]
        self._retired = [link for link in retired if link.connections.active]
        for link in retired:
            if not link.connections.active:
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
        cold: bool = False,
        explained: bool = True,
    ) -> StreamedResponse:
        """Sign and send one request; returns at the head of the answer.

        Args:
            identity: signs the request; requests of an anonymous identity are sent unsigned.
            method, raw_path, query: upper-case; percent-encoded ``/bucket/key`` and parameters without "?", byte for byte.
            headers: further headers; of a client's headers only those that ``is_forwarded`` allows.
            body: sent unchanged; its exceptions are raised here, and the origin then never sees a complete request.
            content_length: of ``body`` in bytes; required for a stream, as S3 does not accept chunked bodies.
            payload_hash: the value of ``x-amz-content-sha256``.
            cold: the reader has no cached grants that a refusal would revoke, so recently accepted keys are trusted.
            explained: whether a GET of one byte explains a refused HEAD; ``False`` if the caller sends its own GET.

        Raises:
            OriginUnavailable: no connection, or it broke or fell silent before the head of an answer.
            GatewayRefused: the origin refuses the gateway's keys, clock or region, or redirects it; or the gateway has no keys.
            S3Error: ``InvalidURI``: path or query fit no request line; ``IncompleteBody``: the body has another length.
            IdentityGone: the origin or the identity is not configured.
        """
        try:
            link = self._links[identity.origin]
            keys = self._ring.fixed.get(identity) or await self._ring.keys(identity)
        except KeyError:
            raise IdentityGone("the origin, or the keys for it, are no longer configured") from None
        except OriginUnavailable as failure:
            raise self._refusals.without_keys(identity, failure) from failure
        if identity.pays or (link.origin.requester_pays and identity.access_key_id):
            headers = [*(pair for pair in headers if pair[0].lower() != _PAYS[0]), _PAYS]
        target, host, region = _target(raw_path, query), link.address.name, link.origin.region
        pairs = self._signer.signed(method, raw_path, query, headers, keys, host, region, payload_hash)
        began, ask = time.perf_counter(), partial(_sent, link, method, target, pairs, body, content_length)
        share = self.hedges.services.rules.hedging and self.hedges.quantile(method, raw_path)
        response = await (self.hedges.sent(identity.origin, method, share, ask) if share else ask())
        # Relayed means a final HTTP status (RFC 9110 section 15), with the requested bytes.
        parted = method == "GET" and (response.status == 206 or "content-range" in response.fields)
        if not 200 <= response.status < 600 or (parted and not has_what_was_asked(response, headers, query)):
            raise _invalid(link, method, response)
        link.reach.heard()
        _series(link.origin.name, method, response.status // 100).observe(time.perf_counter() - began)
        if response.status in SUSPECT:
            trusted = cold and response.status != 400 and identity not in self._refusals.current
            if explained or response.status not in UNCLEAR:
                await self._judge(response, identity, method, (raw_path, query), began - TRUSTED * trusted)
        elif response.status < 500:
            self._accepted[identity] = began
            self._refusals.current.pop(identity, None)
        return response

    async def _judge(
        self, response: StreamedResponse, identity: OriginIdentity, method: str, place: tuple[str, str], began: float
    ) -> None:
        """Raise ``GatewayRefused`` if an answer refuses the gateway rather than a reader; its request was sent at ``began``.

        Keys that were accepted after ``began`` are not in doubt.
        """
        body = b""
        with suppress(OriginUnavailable):  # raised again for the reader of the body
            body = await response.beginning()
        refusal = refusal_of(response.status, body, response.header("x-amz-bucket-region") or "")
        if refusal is not None:
            response.abort()
            self._refusals.refused(identity, refusal)
            own = self._ring.owns(identity)
            what = f"the origin {identity.origin!r} refuses the gateway: {refusal.said}"
            raise GatewayRefused(what, body, own=own, revokes=own and refusal.withdraws)
        if method != "HEAD":
            self._accepted[identity] = began
            self._refusals.current.pop(identity, None)
            self._deny(identity, place[0], began)
        elif identity.access_key_id and self._in_doubt(identity, place[0], began):
            # An answer to HEAD has no document: ask once by GET, for all requests in doubt about this key.
            refused = await self._questions.result(identity, partial(self._refused_get, identity, *place))
            if refused is not None:
                response.abort()
                raise refused

    def _in_doubt(self, identity: OriginIdentity, raw_path: str, began: float) -> bool:
        """Whether a refused HEAD of ``began`` may concern the key: not if it was accepted since, or the object just denied."""
        if self._accepted.get(identity, -math.inf) > began:
            return False
        return began - self._denied.get((identity, raw_path), -math.inf) > DENIED

    def _deny(self, identity: OriginIdentity, raw_path: str, began: float) -> None:
        if len(self._denied) >= _KEPT_DENIALS:
            self._denied.clear()
        self._denied[identity, raw_path] = began

    async def _refused_get(self, identity: OriginIdentity, raw_path: str, query: str) -> GatewayRefused | None:
        """How the gateway is refused a GET of one byte; ``None`` if it is not refused."""
        of_object = raw_path.strip("/").partition("/")[2]
        asked = query if of_object or query else "list-type=2&max-keys=1"
        try:
            (await self.send(identity, "GET", raw_path, asked, [("Range", "bytes=0-0")])).abort()
        except GatewayRefused as refused:
            return refused
        except LarderError:
            return None
        return None

    async def close(self) -> None:
        """Close every connection; answers in progress break off."""
        await self._questions.stop()
        links = [*self._links.values(), *self._retired]
        self._links, self._retired = {}, []
        for link in links:
            await link.close()


async def _sent(
    link: _Link,
    method: str,
    target: str,
    headers: list[Header],
    body: bytes | AsyncIterator[bytes] | None,
    length: int | None,
) -> StreamedResponse:
    """Send a signed request; returns at the head of the answer."""
    try:
        if body is not None and not isinstance(body, bytes):
            assert length is not None
            upload = Upload(body, length, patience=link.patience, head_within=link.head_within)
            return await link.connections.upload(link, method, link.address, target, headers, upload)
        link.reach.asked()
        try:
            return await link.connections.ask(
                link, method, link.address, target, headers, body or b"", within=link.head_within
            )
        finally:
            link.reach.waiting -= 1
    except OriginUnavailable as failure:
        if not isinstance(failure, OutOfResources):  # by the origin's fault: does it answer at all?
            link.reach.doubt()
            ORIGIN_REQUESTS.labels(method, "failed").inc()
        raise


def _invalid(link: _Link, method: str, response: StreamedResponse) -> OriginUnavailable:
    """The failure for an answer with an invalid status, or an answer that was not asked for."""
    response.abort()
    ORIGIN_FAILURES.labels("invalid").inc()
    link.reach.doubt()
    ORIGIN_REQUESTS.labels(method, "failed").inc()
    return OriginUnavailable(f"{link.origin.endpoint}: it answered with status {response.status}")


@cache  # one entry per series
def _series(origin: str, method: str, hundreds: int) -> LoopHistogram:
    """The metrics of answers by origin, method and status class, looked up once per combination."""
    counter = ORIGIN_REQUESTS.labels(method, f"{hundreds}xx")
    return LoopHistogram(ORIGIN_LATENCY.labels(method), ORIGIN_ANSWERS.labels(origin), counter=counter)


def _target(raw_path: str, query: str) -> str:
    """The request target (RFC 9112, 3.2.1).

    Raises:
        S3Error: ``InvalidURI``.
    """
    target = f"{raw_path}?{query}" if query else raw_path
    plain = target.isascii() and target.isprintable() and " " not in target and "#" not in target
    if not raw_path.startswith("/") or "?" in raw_path or not plain:
        raise S3Error("InvalidURI")
    return target
