"""Plain reads of objects whose home is another node: sent to the home, and relayed as they arrive.

Every object has one home in the fleet, so that it is read from the origin once and kept once. The home makes every decision about
it (``api/peer/objects.py``); this node verifies the client first, and counts and logs afterwards.

A failing home is hidden from the client: ``policies/reads/sources.py`` decides which source is asked next, and this module asks
it. A node that cannot be reached, or dies before its answer begins, is suspected (``Membership.suspect``). A node that has lost
its origin does not become a successor. An answer that breaks off is completed from the origin, with its ETag in If-Match and the
missing bytes in Range. The client already has status and length: if the object has changed by then, its connection is broken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from functools import cache, lru_cache

from gateway.api.s3.answer import SERVER, Answer, RemoteHit, cache_status
from gateway.api.s3.call import S3Call
from gateway.api.s3.errors import AboutCached
from gateway.api.s3.objects import ObjectReads, is_forced
from gateway.base.metrics import RELAYED, LoopSum
from gateway.engine.base.fetching import ByteStream, Reopen
from gateway.engine.engine import Engine
from gateway.engine.objects.found import Forward, Relay
from gateway.engine.objects.ranged import ObjectChanged, ReaderRefused, Version, read_range
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.nodes.peers import Peers, PeerUnavailable
from gateway.model.errors import S3_CODES, LarderError, OriginUnavailable
from gateway.model.fleet import Node
from gateway.model.keys import ObjectKey, Principal
from gateway.model.objects import Header
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer import objects as wire
from gateway.model.peer.principal import principal_header
from gateway.model.s3.conditions import is_strong
from gateway.model.s3.ranges import parse_range
from gateway.net.connection import KnownHead
from gateway.net.exchange import StreamedResponse
from gateway.origin.headers import content_range, relayable
from gateway.policies.fleet.ring import Ring, path_key
from gateway.policies.reads.sources import ReadFacts, ReadKind, Source, next_source
from gateway.server.asgi_types import RawHeaders
from gateway.server.head import encode_lines
from gateway.store.shared.generations import slots_of

_NAMES_KEPT = 2048
"""Header names whose form for clients is cached; there are few."""
_PLAIN_HIT = wire.CacheStatus(Outcome.HIT)
_OF_ONE_ANSWER = frozenset({b"date", b"x-amz-request-id"})
_WITHIN = 1.0
"""Seconds that an uploader waits for the home of the object to take its bytes."""
_RESUMES = 3
"""How often the rest of a body is requested from the origin after a node broke off."""
log = logging.getLogger("larder.s3")


class RelayedReads:
    """Reads of objects at their homes.

    Args:
        local: reads objects on this node.
        engine: the rules, and the way to the origin.
        membership: the homes of keys.
        peers: sends requests to other nodes.
    """

    def __init__(self, local: ObjectReads, engine: Engine, membership: Membership, peers: Peers) -> None:
        self._local = local
        self._engine = engine
        self._services = engine.services
        self.membership = membership
        self._peers = peers

    def home(self, call: S3Call) -> tuple[Node | None, Ring]:
        """The other node to ask for an object, ``None`` to read it here; and the ring that decided."""
        membership, key = self.membership, call.key
        ring = membership.ring
        if key is None or membership.alone:
            return None, ring
        return membership.home(path_key(key.bucket, key.key)), ring

    def begin(self, call: S3Call) -> tuple[Awaitable[Answer | Relay | Forward], Node | None, Ring]:
        """Begin to answer a plain GET or HEAD at the object's home. Also returns the home, ``None`` for this node, and the ring
        that decided.

        Raises: see ``read``.
        """
        if self.membership.alone:  # hot: the decision of ``next_source`` for a node without others
            return self._local.read(call), None, self.membership.ring
        home, ring = self.home(call)
        return self.read(call, home), home, ring

    async def read(self, call: S3Call, home: Node | None) -> Answer | Relay | Forward:
        """Answer a plain GET or HEAD of an object, given its home; ``None``: this node.

        Raises:
            S3Error: the request's conditions or range cannot be met.
            OriginUnavailable: neither its home nor the origin can be reached.
        """
        asked: list[Header] | None = None
        before: Node | None = None
        tried: tuple[Source, ...] = ()
        stale: list[Answer] = []
        lost: list[str] = []
        reached = True
        try:
            while True:
                if home is not None and asked is None:
                    asked = self._asked(call)
                away = home is not None
                alone = away and asked is None
                facts = ReadFacts(
                    ReadKind.OBJECT, tried, away, home == before, alone, stale=bool(stale), reached=reached
                )
                step = next_source(facts)
                tried, before = (*tried, step.source), None
                if step.source is Source.STALE:
                    return stale.pop()
                if step.source is Source.HERE:
                    try:
                        return await self._local.read(call, hasty=not step.patient)
                    except OriginUnavailable:
                        if step.patient:
                            raise
                    home = self._next(call, [self.membership.me])
                    continue
                assert home is not None
                assert asked is not None
                answer = await self._ask(call, home, asked)
                if answer is not None and answer.reason is not Reason.ORIGIN_DOWN:
                    return answer
                if isinstance(answer, Answer):
                    stale.append(answer)
                    reached = await self._services.origin.reach(call.auth.principal.identity).reached()
                lost += [] if answer is None else [home.id]
                before, home = home, self._next(call, lost)
        finally:
            for each in stale:
                if each.cleanup is not None:
                    await each.cleanup()

    def _asked(self, call: S3Call) -> list[Header] | None:
        """The headers to send to a home; ``None`` if no other node may be asked."""
        key = call.key
        assert key is not None
        asked = _asked(call, forced=self._engine.owes(key))
        return asked if self._services.rules.for_path(key.path).cache else None

    def _next(self, call: S3Call, tried: Sequence[str]) -> Node | None:
        """The next home without ``tried``; ``None`` for this node, which is skipped if it has lost its origin."""
        key, membership = call.key, self.membership
        assert key is not None
        lost = self._services.origin.reach(call.auth.principal.identity).lost
        return membership.home(path_key(key.bucket, key.key), [*tried, membership.me] if lost else tried)

    def warm(self, call: S3Call) -> None:
        """Read an object into the cache of its home, in the background."""
        key, principal = call.key, call.reader
        assert key is not None
        home, _ = self.home(call)
        if home is None:
            self._engine.warm(key, principal.identity)
        else:
            self._engine.blocks.tasks.start(self._warm_at(home, key, principal))

    def keeps(self, call: S3Call) -> bool:
        """Whether this node is the home of an object."""
        return self.home(call)[0] is None

    async def hand_over(self, call: S3Call, whole: bytes, accepted: wire.Accepted) -> None:
        """Give the home of an uploaded object its bytes; if it does not take them in time, it reads them from the origin."""
        key, principal, (home, _) = call.key, call.reader, self.home(call)
        assert key is not None
        if home is not None:
            told = [principal_header(principal.tenant, principal.identity), (wire.UPLOADED, str(accepted))]
            with suppress(PeerUnavailable, TimeoutError):
                async with asyncio.timeout(_WITHIN):
                    response = await self._peers.request(home, "POST", wire.object_path(key), told, body=whole)
                response.release()
                if response.status == 202:
                    return
        self.warm(call)

    async def _warm_at(self, home: Node, key: ObjectKey, principal: Principal) -> None:
        told = [principal_header(principal.tenant, principal.identity)]
        try:
            response = await self._peers.request(home, "POST", wire.object_path(key), told)
        except PeerUnavailable as failure:
            # Best effort: the next read goes to the origin.
            log.info("warming an object at its home %(node)s failed: %(error)s", {"node": home.id, "error": failure})
            return
        response.release()

    async def _ask(self, call: S3Call, home: Node, asked: list[Header]) -> Answer | Forward | None:
        """A node's answer; ``None`` if it has none."""
        key, principal = call.key, call.auth.principal
        assert key is not None
        headers = [*asked, principal_header(principal.tenant, principal.identity)]
        sent, call.sent = call.sent, None
        try:
            response = None if sent is None else await self._peers.answer(sent)
            if response is None:
                response = await self._peers.request(home, call.request.method, wire.object_path(key), headers)
        except PeerUnavailable as failure:
            RELAYED.labels("unavailable").inc()
            log.info("node %(node)s cannot serve an object: %(error)s", {"node": home.id, "error": failure})
            return None
        try:
            answer = await self._answer(call, home, response)
        except (PeerUnavailable, ValueError) as failure:
            response.abort()
            RELAYED.labels("unavailable").inc()
            log.warning(
                "node %(node)s sent an invalid answer (status %(status)d): %(error)s",
                {"node": home.id, "status": response.status, "error": failure},
            )
            return None
        except BaseException:
            response.abort()
            raise
        _relays("forwarded" if isinstance(answer, Forward) else "answered").inc()
        if isinstance(answer, AboutCached):
            raise answer
        return answer

    async def _answer(self, call: S3Call, home: Node, response: StreamedResponse) -> Answer | Forward | AboutCached:
        """Interpret another node's answer.

        Raises:
            PeerUnavailable, ValueError: the answer is invalid.
        """
        fields = response.fields
        if response.status == wire.MISDIRECTED and (said := fields.get(wire.FORWARD)) is not None:
            told = wire.CacheStatus.read(said)
            if told.reason is None:
                raise ValueError("a reason is missing")
            response.release()
            return Forward(told.reason, miss=told.outcome is Outcome.MISS)
        if (said := fields.get(wire.CACHE)) is None:
            raise ValueError((await response.read(wire.LONGEST_ERROR)).decode("utf-8", "replace"))
        told = wire.CacheStatus.read(said)
        if (code := fields.get(wire.ERROR)) is not None:
            return await _error(response, code, told)
        length = fields.get("content-length", "")
        size = int(length) if length.isdigit() else None
        answer = Answer(response.status, _raw(response), b"", told.outcome, told.reason)
        if call.request.method == "HEAD" or response.status in (204, 304):
            response.release()
            return answer
        key = call.key
        assert key is not None
        found = _version(response)
        if found is not None:
            (_, whole), (start, stop) = found
            answer.span = (start, stop, whole)
            if call.plain and size and told == _PLAIN_HIT and not call.wants_checksums:
                answer.remote = self._remote(key, home, response, answer.headers, size)
        body = None if size is None else response.at_once(size)
        if body is not None:
            response.release()
            answer.content, answer.length = body, len(body)
            return answer
        rest = None if found is None else self._rest(key, call.auth.principal, *found)
        stream = ByteStream(response, size, rest)
        stream.resumes = _RESUMES
        answer.content, answer.length = _relayed(stream), size or 0

        async def let_go() -> None:
            stream.abort()

        answer.cleanup = let_go
        return answer

    def _remote(
        self, key: ObjectKey, home: Node, response: StreamedResponse, headers: RawHeaders, size: int
    ) -> RemoteHit | None:
        """The answer as a hit that can be repeated; ``None`` if its head has something specific to one answer or its
        connection."""
        names = {name for name, _ in headers}
        if response.status != 200 or not _OF_ONE_ANSWER.isdisjoint(names) or "connection" in response.fields:
            return None
        known = KnownHead(response.head, response.status, response.headers, response.fields, size)
        lines = encode_lines([*headers, cache_status(Outcome.HIT, None), *([] if b"server" in names else [SERVER])])
        peer, path = self._peers.remote(home), wire.object_path(key)
        return RemoteHit(key, slots_of(key), self._services.rules, peer, path, known, lines, size)

    def _rest(self, key: ObjectKey, principal: Principal, version: Version, span: tuple[int, int]) -> Reopen:
        """Returns a function that reads the rest of an answer of ``version`` from the origin."""
        origin, (start, stop) = self._services.origin, span

        async def rest(sent: int) -> StreamedResponse:
            try:
                return await read_range(origin, principal.identity, key, version, (start + sent, stop))
            except ReaderRefused:
                raise
            except ObjectChanged:
                # The home still has the old version, or broke off because of the change.
                await self._engine.changed([key])
                raise

        return rest


async def _relayed(stream: ByteStream) -> AsyncGenerator[bytes]:
    """The body of another node's answer; counts bodies that break off.

    Raises:
        LarderError: the rest cannot be read; the connection must be broken.
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


def _asked(call: S3Call, *, forced: bool) -> list[Header] | None:
    """The headers to send to the home; ``None`` if the origin must answer, or a header cannot be passed on.

    ``forced``: the home must revalidate with the origin, even if the client does not demand it.
    """
    fields = call.request.fields
    headers: list[Header] = []
    if not call.plain:
        span = fields.get(b"range")
        if span is not None and parse_range(span.decode("latin-1")) is None:
            return None
        for name in wire.ASKED:
            if (value := fields.get(name)) is not None:
                if not value.isascii():
                    return None
                headers.append((name.decode(), value.decode()))
        forced = forced or is_forced(call)
    if forced:
        headers.append(wire.FORCED)
    if call.wants_checksums:
        headers.append(wire.CHECKED)
    return headers


def _version(response: StreamedResponse) -> tuple[Version, tuple[int, int]] | None:
    """The version and the span of bytes in an answer; ``None`` if its headers do not state them exactly."""
    fields = response.fields
    etag, length = fields.get("etag", ""), fields.get("content-length", "")
    if not is_strong(etag) or not length.isdigit():
        return None
    if response.status == 200:
        return (etag, int(length)), (0, int(length))
    span = content_range(fields.get("content-range", "")) if response.status == 206 else None
    return None if span is None else ((etag, span[2]), (span[0], span[1] + 1))


def _raw(response: StreamedResponse) -> RawHeaders:
    raw = []
    for told, value in relayable(response.headers):
        if (name := _raw_name(told)) is not None:
            raw.append((name, value.encode("latin-1")))  # in Python 3.11 a comprehension is a call
    return raw


@lru_cache(maxsize=_NAMES_KEPT)
def _raw_name(name: str) -> bytes | None:
    """The name of a header for the client; ``None`` for headers between nodes."""
    lowered = name.lower()
    return None if lowered.startswith("x-larder-") else lowered.encode("latin-1")


@cache  # one call per event
def _relays(event: str) -> LoopSum:
    return LoopSum(RELAYED.labels(event))


async def _error(response: StreamedResponse, code: str, told: wire.CacheStatus) -> AboutCached:
    if code not in S3_CODES:
        raise ValueError(f"{code!r} is not an S3 error code")
    extra = wire.read_error(await response.read(wire.LONGEST_ERROR))
    span = response.fields.get("content-range")
    return AboutCached(
        code, (told.outcome, told.reason), extra=extra, headers={"Content-Range": span} if span is not None else {}
    )
