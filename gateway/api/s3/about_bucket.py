"""Reads with a header whose answer depends on the bucket, not on the object: ``Origin``, ``x-amz-expected-bucket-owner``.

A page's request names its ``Origin``, and the store adds CORS headers by the rules of the bucket (Fetch standard, 3.2). The cache
answers with the headers that the store sent before to the same page in the same bucket. It learns them from a conditional request
for the cached object: its answer, 304, has these headers and no bytes. If the 304 lacks them, it learns them from the answer to
the client's own request. A request that names the bucket's owner is forwarded until the store has answered one: then the bucket
belongs to that account for all callers.

While the origin is lost, nothing is forgotten (``shown.py``): the store's last headers are better than an answer that no page may
read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from gateway.api.s3.answer import Answer, discard
from gateway.api.s3.call import S3Call
from gateway.api.s3.errors import AboutCached
from gateway.api.s3.forward import Forwarder, relay_read
from gateway.api.s3.relayed import RelayedReads
from gateway.api.s3.shown import ShownOfBuckets
from gateway.engine.engine import Engine
from gateway.engine.objects.found import NO_CACHE, Forward, Relay
from gateway.model.errors import OriginUnavailable
from gateway.model.objects import Header
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.request_headers import EXPECTED_OWNER
from gateway.server.asgi_types import RawHeaders

ORIGIN = b"origin"
_CORS = "access-control-"
_OF_OBJECTS = (200, 206, 304)
"""Statuses that the store gives only to requests that it accepts."""
_WHOLE = (200, 206)
_LONGEST = 256
"""The most bytes of a header's value that is remembered; requests with longer ones are forwarded."""

_Place = tuple[str, bytes]
"""The request's method and page; or an empty method and the owner."""


class BucketReads:
    """Answers plain reads with ``Origin`` or ``x-amz-expected-bucket-owner``.

    Args:
        relayed: reads objects.
        forwarder: sends requests on to the origin.
        engine: asks the origin.
    """

    def __init__(self, relayed: RelayedReads, forwarder: Forwarder, engine: Engine) -> None:
        self._relayed = relayed
        self._forwarder = forwarder
        self._services = engine.services
        self._known: ShownOfBuckets[tuple[Header, ...]] = ShownOfBuckets(engine.services)

    @staticmethod
    def concerns(call: S3Call) -> bool:
        """Whether a read has such a header."""
        fields = call.request.fields
        return ORIGIN in fields or EXPECTED_OWNER in fields

    async def read(self, call: S3Call, body: Callable[[], AsyncIterator[bytes]]) -> Answer | Relay | Forward:
        """Answer a plain GET or HEAD.

        Raises: see ``RelayedReads.read``.
        """
        fields = call.request.fields
        page, owner = fields.get(ORIGIN), fields.get(EXPECTED_OWNER)
        long = any(value is not None and len(value) > _LONGEST for value in (page, owner))
        if long or (owner is not None and self._known.recall(call, _place(call, owner, "")) is None):
            return await self._forward(call, body, Forward(Reason.HEADER))
        answering, _, _ = self._relayed.begin(call)
        if page is None:
            return await answering
        said = self._known.recall(call, _place(call, page))
        try:
            reply = await answering
        except AboutCached as refusal:
            if said is None:
                return await self._forward(call, body, Forward(Reason.HEADER))
            refusal.headers = {**refusal.headers, **dict(said)}
            raise
        if isinstance(reply, Forward):
            return await self._forward(call, body, reply)
        if isinstance(reply, Relay) and said is None:
            reply.response.abort()
            return await self._forward(call, body, Forward(reply.reason, miss=True))
        answer = relay_read(call, reply) if isinstance(reply, Relay) else reply
        if said is None:
            try:
                said = await self._ask(call, page, answer)
            except OriginUnavailable:
                said = self._known.recall(call, _place(call, page), whenever=True) or ()
            except BaseException:
                await discard(answer)
                raise
        if said is None:
            await discard(answer)
            return await self._forward(call, body, Forward(Reason.HEADER))
        named = {name.lower().encode() for name, _ in said}
        answer.headers = [pair for pair in answer.headers if pair[0].lower() not in named]
        answer.headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in said]
        return answer

    async def _ask(self, call: S3Call, page: bytes, answer: Answer) -> tuple[Header, ...] | None:
        """The CORS headers of the store for this page; ``None`` if a 304 does not show them.

        Raises:
            OriginUnavailable: the origin cannot be reached.
        """
        etag = dict(answer.headers).get(b"etag")
        if answer.status not in _OF_OBJECTS or etag is None:
            return None
        headers = [("Origin", page.decode("latin-1")), ("If-None-Match", etag.decode("latin-1")), NO_CACHE]
        identity, began = call.auth.principal.identity, self._known.rights(call)
        response = await self._services.origin.send(identity, call.request.method, call.origin_path, "", headers)
        response.abort()
        if response.status >= 500:
            raise OriginUnavailable(f"the origin answered {response.status}")
        cors = _cors(response.headers)
        if response.status not in _OF_OBJECTS or (response.status == 304 and not cors):
            return None
        self._known.note(call, _place(call, page), cors, began)
        return cors

    async def _forward(self, call: S3Call, body: Callable[[], AsyncIterator[bytes]], why: Forward) -> Answer:
        """Have the store answer, and learn from its answer."""
        began = self._known.rights(call)
        outcome = Outcome.MISS if why.miss else Outcome.BYPASS
        answer = await self._forwarder.forward(call, body(), outcome, why.reason)
        fields = call.request.fields
        page, owner = fields.get(ORIGIN), fields.get(EXPECTED_OWNER)
        accepted = answer.status in _OF_OBJECTS
        if accepted and owner is not None and len(owner) <= _LONGEST:
            self._known.note(call, _place(call, owner, ""), (), began)
        cors = _cors(_text(answer.headers))
        # An error without CORS headers may be one for which the store ignores its rules.
        known = answer.status in _WHOLE or (accepted and cors) or _allows(cors)
        if page is not None and len(page) <= _LONGEST and known and answer.status < 500:
            self._known.note(call, _place(call, page), cors, began)
        return answer


def _place(call: S3Call, value: bytes, method: str | None = None) -> _Place:
    return call.request.method if method is None else method, value.strip()


def _cors(headers: Iterable[Header]) -> tuple[Header, ...]:
    return tuple(pair for pair in headers if pair[0].lower().startswith(_CORS) or pair[0].lower() == "vary")


def _allows(headers: Iterable[Header]) -> bool:
    return any(name.lower().startswith(_CORS) for name, _ in headers)


def _text(headers: RawHeaders) -> list[Header]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
