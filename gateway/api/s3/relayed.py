"""Plain reads of objects whose home is another node: asked there, and handed on as they come.

Every object has one home in the fleet, so that it is read from the origin once and kept once. The home decides all there is to
decide about it (``api/peer/objects.py``); here the client is verified before, and counted and logged after.

What the home cannot do is done without it, and no client hears of that. A node that cannot be reached, or dies before its answer
begins, is suspected (``Membership.suspect``). One whose origin is lost says so at once, and stays home of what it has cached. In
either case its successor in the ring is asked once, and if that fails too, or is this node, the object is read here as if there
were no fleet. Stale bytes of a home that has lost its origin are given only when nobody else reaches the origin. What breaks off
later is completed from the origin, with the ETag of the answer that has begun in If-Match and the first byte not sent in Range.
The client has status and length already: if the object is another one by then, its connection is broken.

A node that has lost its own origin is a successor to nobody, and has others read what is at home here and not cached.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence

from gateway.api.s3.answer import Answer, RawHeaders
from gateway.api.s3.errors import AboutCached
from gateway.api.s3.exchange import Exchange
from gateway.api.s3.objects import ObjectReads, is_forced
from gateway.engine.engine import Engine
from gateway.engine.fetching import ByteStream, Reopen
from gateway.engine.objects.ranged import ObjectChanged, ReaderRefused, Version, read_range
from gateway.engine.objects.reads import Forward, Relay
from gateway.fleet.membership import Membership
from gateway.fleet.peers import Peers, PeerUnavailable
from gateway.metrics import RELAYED
from gateway.model import peer_objects as wire
from gateway.model.errors import S3_CODES, LarderError, OriginUnavailable
from gateway.model.fleet import Node
from gateway.model.keys import ObjectKey, Principal
from gateway.model.objects import Header
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer_principal import principal_header
from gateway.model.ranges import parse_range
from gateway.net.exchange import StreamedResponse
from gateway.origin.headers import content_range, relayable
from gateway.policies.ring import Ring, path_key

_ASKED = 2
"""Nodes that are asked for one object: its home, and who comes next."""
_RESUMES = 3
"""How often the rest of a body is asked of the origin when a node broke off."""
log = logging.getLogger("larder.s3")


class RelayedReads:
    """Reads of objects at their homes.

    Args:
        local: how objects are read here.
        engine: the way to the origin, and the rules.
        membership: who is home of what.
        peers: how other nodes are asked.
    """

    def __init__(self, local: ObjectReads, engine: Engine, membership: Membership, peers: Peers) -> None:
        self._local = local
        self._engine = engine
        self._services = engine.services
        self._membership = membership
        self._peers = peers

    def home(self, exchange: Exchange) -> tuple[Node | None, Ring]:
        """Which other node is to be asked for an object, ``None`` when it is read here; and by which ring."""
        membership, key = self._membership, exchange.key
        ring = membership.ring
        if key is None or membership.alone:
            return None, ring
        return membership.home(path_key(key.bucket, key.key)), ring

    def here(self, exchange: Exchange) -> Awaitable[Answer | Relay | Forward]:
        """Answer a plain GET or HEAD of an object whose home is this node.

        Raises:
            S3Error: the request's conditions or range cannot be met.
            OriginUnavailable: the origin cannot be reached, from here or from another node.
        """
        return self._local.read(exchange) if self._membership.alone else self._here(exchange)

    async def _here(self, exchange: Exchange) -> Answer | Relay | Forward:
        try:
            return await self._local.read(exchange, hasty=True)
        except OriginUnavailable:
            successor = self._next(exchange, [self._membership.me])
            if successor is None:
                return await self._local.read(exchange)
            return await self.read(exchange, successor)

    async def read(self, exchange: Exchange, home: Node) -> Answer | Relay | Forward:
        """Answer a plain GET or HEAD of an object whose home is another node.

        Raises:
            S3Error: the request's conditions or range cannot be met.
            OriginUnavailable: neither its home nor the origin can be reached.
        """
        key = exchange.key
        assert key is not None
        asked = _asked(exchange, forced=is_forced(exchange) or self._engine.owes(key))
        if not self._services.rules.for_path(key.path).cache or asked is None:
            return await self._local.read(exchange)
        stale: list[Answer] = []
        lost: list[str] = []
        node: Node | None = home
        try:
            for _ in range(_ASKED):
                if node is None:
                    break
                answer = await self._ask(exchange, node, asked)
                if answer is not None and answer.reason is not Reason.ORIGIN_DOWN:
                    return answer
                if isinstance(answer, Answer):
                    stale.append(answer)
                    if not await self._services.origin.reach(exchange.auth.principal.identity).reached():
                        return stale.pop()
                lost += [] if answer is None else [node.id]
                before, node = node, self._next(exchange, lost)
                node = None if node == before else node
            return await self._local.read(exchange, hasty=bool(stale))
        except OriginUnavailable:
            if not stale:
                raise
            return stale.pop()
        finally:
            for each in stale:
                if each.cleanup is not None:
                    await each.cleanup()

    def _next(self, exchange: Exchange, tried: Sequence[str]) -> Node | None:
        """Which node is to be asked after those, ``None`` when it is this one, unless that has lost its origin."""
        key, membership = exchange.key, self._membership
        assert key is not None
        lost = self._services.origin.reach(exchange.auth.principal.identity).lost
        return membership.home(path_key(key.bucket, key.key), [*tried, membership.me] if lost else tried)

    def warm(self, exchange: Exchange) -> None:
        """Have an object read into the cache of its home, in the background."""
        key, identity = exchange.key, exchange.auth.principal.identity
        assert key is not None
        home, _ = self.home(exchange)
        if home is None:
            self._engine.warm(key, identity)
        else:
            self._engine.blocks.tasks.start(self._warm_at(home, key, exchange.auth.principal))

    async def _warm_at(self, home: Node, key: ObjectKey, principal: Principal) -> None:
        told = [principal_header(principal.tenant, principal.identity)]
        try:
            response = await self._peers.request(home, "POST", wire.object_path(key), told)
        except PeerUnavailable as failure:
            # A favour: the next reader meets the origin.
            log.info("%s cannot be asked to read an object: %s", home.id, failure)
            return
        response.release()

    async def _ask(self, exchange: Exchange, home: Node, asked: list[Header]) -> Answer | Forward | None:
        """What a node answers; ``None`` when it cannot."""
        key, principal = exchange.key, exchange.auth.principal
        assert key is not None
        headers = [*asked, principal_header(principal.tenant, principal.identity)]
        try:
            response = await self._peers.request(home, exchange.request.method, wire.object_path(key), headers)
        except PeerUnavailable as failure:
            RELAYED.labels("unavailable").inc()
            log.info("%s cannot be asked for an object: %s", home.id, failure)
            return None
        try:
            answer = await self._answer(exchange, response)
        except (PeerUnavailable, ValueError) as failure:
            response.abort()
            RELAYED.labels("unavailable").inc()
            log.warning("%s answers %d, which says nothing of the object: %s", home.id, response.status, failure)
            return None
        except BaseException:
            response.abort()
            raise
        RELAYED.labels("forwarded" if isinstance(answer, Forward) else "answered").inc()
        if isinstance(answer, AboutCached):
            raise answer
        return answer

    async def _answer(self, exchange: Exchange, response: StreamedResponse) -> Answer | Forward | AboutCached:
        """What another node's answer says.

        Raises:
            PeerUnavailable, ValueError: nothing of an object.
        """
        said = response.header(wire.FORWARD)
        if response.status == wire.MISDIRECTED and said is not None:
            told = wire.CacheStatus.read(said)
            if told.reason is None:
                raise ValueError("a reason is missing")
            response.release()
            return Forward(told.reason, miss=told.outcome is Outcome.MISS)
        if (said := response.header(wire.CACHE)) is None:
            raise ValueError((await response.read(wire.LONGEST_ERROR)).decode("utf-8", "replace"))
        told = wire.CacheStatus.read(said)
        if (code := response.header(wire.ERROR)) is not None:
            return await _error(response, code, told)
        length = response.header("content-length") or ""
        size = int(length) if length.isdigit() else None
        answer = Answer(response.status, _raw(response), b"", told.outcome, told.reason)
        if exchange.request.method == "HEAD" or response.status in (204, 304):
            response.release()
            return answer
        key = exchange.key
        assert key is not None
        found = _version(response)
        rest = None
        if found is not None:
            (_, whole), (start, stop) = found
            answer.span = (start, stop, whole)
            rest = self._rest(key, exchange.auth.principal, *found)
        stream = ByteStream(response, size, rest)
        stream.resumes = _RESUMES
        answer.content, answer.length = _relayed(stream), size or 0

        async def let_go() -> None:
            stream.abort()

        answer.cleanup = let_go
        return answer

    def _rest(self, key: ObjectKey, principal: Principal, version: Version, span: tuple[int, int]) -> Reopen:
        """How the origin gives what is missing of an answer of that version."""
        origin, (start, stop) = self._services.origin, span

        async def rest(sent: int) -> StreamedResponse:
            try:
                return await read_range(origin, principal.identity, key, version, (start + sent, stop))
            except ReaderRefused:
                raise
            except ObjectChanged:
                # The home that broke off has it still, or broke off because of that.
                await self._engine.changed([key])
                raise

        return rest


async def _relayed(stream: ByteStream) -> AsyncGenerator[bytes]:
    """The body of another node's answer, counted if it broke off.

    Raises:
        LarderError: the rest cannot be had; the connection must be broken.
    """
    try:
        while chunk := await stream.next_chunk():
            yield chunk
        stream.release()
    except LarderError:
        if not stream.resumed:
            RELAYED.labels("broken").inc()
        raise
    finally:
        if stream.resumed:
            RELAYED.labels("resumed").inc()
        stream.abort()


def _asked(exchange: Exchange, *, forced: bool) -> list[Header] | None:
    """What the client asked for, as it is asked on; ``None`` when it is for the origin, or cannot be said in a header.

    ``forced``: the home is to check with the origin.
    """
    request = exchange.request
    span = request.fields.get(b"range")
    if span is not None and parse_range(span.decode("latin-1")) is None:
        return None
    found = [(name, value) for name in wire.ASKED if (value := request.fields.get(name)) is not None]
    if not all(value.isascii() for _, value in found):
        return None
    headers = [(name.decode(), value.decode()) for name, value in found]
    if forced:
        headers.append(wire.FORCED)
    if exchange.wants_checksums:
        headers.append(wire.CHECKED)
    return headers


def _version(response: StreamedResponse) -> tuple[Version, tuple[int, int]] | None:
    """Which version of an object an answer has which bytes of; ``None`` if it does not say so exactly."""
    etag, length = response.header("etag") or "", response.header("content-length") or ""
    if not etag.startswith('"') or not length.isdigit():
        return None
    if response.status == 200:
        return (etag, int(length)), (0, int(length))
    span = content_range(response.header("content-range") or "") if response.status == 206 else None
    return None if span is None else ((etag, span[2]), (span[0], span[1] + 1))


def _raw(response: StreamedResponse) -> RawHeaders:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in relayable(response.headers)
        if not name.lower().startswith("x-larder-")
    ]


async def _error(response: StreamedResponse, code: str, told: wire.CacheStatus) -> AboutCached:
    if code not in S3_CODES:
        raise ValueError(f"{code!r} is no error of S3")
    extra = wire.read_error(await response.read(wire.LONGEST_ERROR))
    span = response.header("content-range")
    return AboutCached(
        code, (told.outcome, told.reason), extra=extra, headers={"Content-Range": span} if span is not None else {}
    )
