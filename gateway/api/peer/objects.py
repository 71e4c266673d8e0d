"""Objects for other nodes: the home's side of a relayed read.

The caller has verified its client, checked the gateway's own rules, and names the origin keys that the client reads with.
Everything else (freshness, that identity's grant, conditions, ranges, fills) is decided here by the code of the S3 edge, so a
client gets the same answer from every node. The object comes from here or from the origin, never from a third node: two nodes
that disagree about the ring would pass the request back and forth. A read that fails because the origin is lost fails at once:
the caller can ask other nodes, and has its own way to the origin.
"""

from __future__ import annotations

import re
from math import ceil
from urllib.parse import quote

from gateway.api.peer.app import Address, PeerRequest
from gateway.api.s3.answer import Answer, complete
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.errors import AboutCached
from gateway.api.s3.forward import relay_read
from gateway.api.s3.hot import Hit, HotReads
from gateway.api.s3.objects import ObjectReads
from gateway.api.s3.payload import SMALL
from gateway.engine.engine import Engine
from gateway.engine.objects.found import Forward, Relay
from gateway.model.datasets import ApiError
from gateway.model.errors import BrokenBody, LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.objects import (
    AGE,
    CACHE,
    ERROR,
    FORWARD,
    MISDIRECTED,
    RESIDENT,
    UPLOADED,
    Accepted,
    CacheStatus,
    error_document,
    object_of,
)
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.asgi_types import RawHeaders, Send
from gateway.server.cycle import FILES

_NOT_THE_ORIGINS = (502, 504)
"""Statuses by which an intermediary reports that it did not reach the origin (RFC 9110, 15.6.3 and 15.6.5)."""


class PeerObjects:
    """Answers ``/-/peer/v1/objects/...``; ``model.peer.objects`` defines the headers.

    Args:
        reads: how objects are read here.
        hot: the short path for repeated hits.
        engine: reads objects into the cache in the background, and stores objects uploaded elsewhere.
    """

    def __init__(self, reads: ObjectReads, hot: HotReads, engine: Engine) -> None:
        self._reads = reads
        self._hot = hot
        self._engine = engine

    @property
    def address(self) -> Address:
        """The endpoint of this class."""
        hot = self._hot
        return Address(
            re.compile("objects/.+"),
            ("GET", "HEAD", "POST"),
            self.send,
            SMALL,
            at_once=hot.find_for_node,
            plain=hot.find_whole_for_node,
        )

    async def send(self, request: PeerRequest) -> None:
        """Answer one request.

        Raises:
            ApiError: InvalidRequest: not the address of an object, or an origin other than the principal's.
            LarderError: this node could not decide anything; the caller reads the object in another way.
            BrokenBody: the body broke off; the connection must be broken.
        """
        scope, send = request.scope, request.send
        wire = WireRequest(scope["method"], scope["raw_path"], b"", scope["headers"], scope["scheme"])
        if FILES in scope["extensions"]:
            hit = self._hot.find_for_node(wire, request.principal)
            if hit is not None:
                await _send_hit(send, hit)
                return
        call = _call(wire, request.principal)
        if call.request.method == "POST":
            self._keep(call, request)
            await complete(scope, send, Answer(202, [(b"content-length", b"0")], b""))
            return
        if call.request.fields.get(RESIDENT[0].encode()) == RESIDENT[1].encode():
            await self._give(request, call)
            return
        try:
            reply = await self._reads.read(call, hasty=True)
        except AboutCached as error:
            await complete(scope, send, _about(error))
            return
        except OriginUnavailable:
            reply = Forward(Reason.ORIGIN_DOWN, miss=True)
        if isinstance(reply, Relay) and reply.response.status in _NOT_THE_ORIGINS:
            reply.response.abort()
            reply = Forward(Reason.ORIGIN_DOWN, miss=True)
        if isinstance(reply, Forward):
            await complete(
                scope, send, _elsewhere(CacheStatus(Outcome.MISS if reply.miss else Outcome.BYPASS, reply.reason))
            )
            return
        if isinstance(reply, Answer) and call.key is not None:
            self._hot.learn_for_node(wire, call.key)
        answer = reply if isinstance(reply, Answer) else relay_read(call, reply)
        own = (CACHE.encode(), str(CacheStatus(answer.outcome, answer.reason)).encode())
        # The origin may be another Larder, with x-larder headers of its own.
        answer.headers = [pair for pair in answer.headers if not pair[0].lower().startswith(b"x-larder-")] + [own]
        await complete(scope, send, answer)

    def _keep(self, call: S3Call, request: PeerRequest) -> None:
        """Keep an object that was written: the bytes in the request, if it has them, or else those of the store."""
        key, identity = call.key, request.principal.identity
        uploaded = call.request.fields.get(UPLOADED.encode())
        assert key is not None
        if uploaded is not None:
            try:
                accepted = Accepted.read(uploaded.decode("ascii"))
            except ValueError as mistake:
                raise ApiError("InvalidRequest", str(mistake)) from None
            upload = self._engine.uploads.passing(len(request.body), accepted.checksums)
            if upload is not None:
                upload.take(request.body)
                self._engine.uploads.keep(key, identity, upload, accepted)
                return
        self._engine.warm(key, identity)

    async def _give(self, request: PeerRequest, call: S3Call) -> None:
        """Send an object to its new home, if it is cached here and this reader may read it without asking the origin."""
        resident = await self._reads.resident(call)
        if resident is None:
            await complete(request.scope, request.send, _elsewhere(CacheStatus(Outcome.MISS, Reason.COLD)))
            return
        answer, age = resident
        answer.headers = [*answer.headers, (AGE.encode(), b"%d" % ceil(age))]
        await complete(request.scope, request.send, answer)


def _elsewhere(status: CacheStatus) -> Answer:
    """Tells the caller that this node cannot serve the object."""
    return Answer(MISDIRECTED, [(FORWARD.encode(), str(status).encode()), (b"content-length", b"0")], b"")


async def _send_hit(send: Send, hit: Hit) -> None:
    try:
        parts = {"status": hit.status, "head": hit.head, "files": hit.files, "memory": hit.memory}
        await send({"type": FILES, **parts})
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure


def _call(request: WireRequest, principal: Principal) -> S3Call:
    try:
        key = object_of(request.raw_path)
    except ValueError as mistake:
        raise ApiError("InvalidRequest", f"{mistake}; ask as gateway/model/peer/objects.py does") from None
    if key.origin != principal.identity.origin:
        raise ApiError("InvalidRequest", "the address and the principal name different origins")
    auth = Authenticated(principal, PayloadForm.UNSIGNED, "")
    return S3Call(request, auth, key.bucket, _raw(key), key, "", frozenset()).paying()


def _raw(key: ObjectKey) -> bytes:
    return quote(key.key, safe="/-_.~").encode()


def _about(error: AboutCached) -> Answer:
    """Sends a refusal in parts: its document names the client's request, which only the caller knows."""
    content = error_document(error.extra)
    headers: RawHeaders = [
        (CACHE.encode(), str(CacheStatus(error.outcome, error.reason)).encode()),
        (ERROR.encode(), error.code.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
    ]
    headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in error.headers.items()]
    return Answer(error.status, headers, content)
