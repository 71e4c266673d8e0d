"""GET and HEAD of objects, answered from the cache where possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from gateway.api.s3.answer import SERVER, Answer, cache_status
from gateway.api.s3.call import S3Call
from gateway.api.s3.errors import AboutCached
from gateway.engine.engine import Engine
from gateway.engine.objects.body import Body
from gateway.engine.objects.cold import Answer as OriginAnswer
from gateway.engine.objects.found import Ask, Forward, Found, Relay
from gateway.model.errors import OriginUnavailable, S3Error
from gateway.model.objects import Header, ObjectMeta
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.conditions import Conditions, cache_directives, range_applies
from gateway.model.s3.conditions import ConditionVerdict as Precondition
from gateway.model.s3.ranges import ByteRange, content_range, parse_range, unsatisfied_range
from gateway.origin.headers import entity_headers
from gateway.server.asgi_types import RawHeaders
from gateway.server.head import encode_lines


class ObjectReads:
    """Plain reads. ``read`` returns an answer, a response to relay, or a reason to forward the request unchanged."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._generations = engine.services.store.generations

    async def read(self, call: S3Call, *, hasty: bool = False) -> Answer | Relay | Forward:
        """Answer a plain GET or HEAD; a ``hasty`` reader does not wait for a lost origin.

        Raises:
            S3Error: the request's conditions or range cannot be met.
            OriginUnavailable: the origin is needed and cannot be reached.
        """
        assert call.key is not None
        wanted = None
        ask = Ask(call.key, call.auth.principal.identity, forced=self._engine.owes(call.key), hasty=hasty)
        if not call.plain:
            fields = call.request.fields
            range_value = fields.get(b"range")
            wanted = parse_range(range_value.decode("latin-1")) if range_value is not None else None
            if range_value is not None and wanted is None:
                return Forward(Reason.RANGE_FORM)
            conditions, head = Conditions.read(fields.get), call.request.method == "HEAD"
            # With an If-Range that no entity tag can meet, the whole object is read.
            part = None if head or (conditions is not None and not conditions.may_apply_range) else wanted
            forced, first = ask.forced or is_forced(call), head or part is not None
            ask = ask._replace(head=head, metadata_first=first, span=part, forced=forced, conditions=conditions)
        found = await self._engine.open(ask, call.begun)
        if isinstance(found, Found):
            return self._answer(call, ask, found, wanted)
        return _judged(found, ask, wanted)

    def begin(self, call: S3Call, then: Callable[[Answer | None], object]) -> bool:
        """Begin a plain read of a whole object that may be missing; see ``Engine.begin``.

        ``then`` is called with the answer; with ``None`` if ``read`` must decide, with ``call.begun``.
        """
        assert call.key is not None
        ask = Ask(call.key, call.auth.principal.identity)
        return self._engine.begin(ask, partial(self._begun, call, ask, then))

    def _begun(
        self,
        call: S3Call,
        ask: Ask,
        then: Callable[[Answer | None], object],
        begun: asyncio.Future[OriginAnswer] | None,
    ) -> None:
        """Answer with an object whose only block has just been stored, while its bytes are in memory."""
        found = None
        if begun is not None and not begun.cancelled() and begun.exception() is None:
            found = begun.result()
        if not isinstance(found, Found) or found.whole is None or (blob := found.blob) is None:
            call.begun = begun
            then(None)
            return
        self._engine.blocks.record(found.entry, 0, ask.identity)
        meta, reason = found.entry.record.meta, self._reason(ask, found)
        size, head = meta.size, _entity_headers(meta, pays=ask.identity.pays)
        head.append((b"content-length", b"%d" % size))
        if meta.checksums and call.wants_checksums:
            head += _raw(meta.checksums)
        then(Answer(200, head, found.whole, found.outcome, reason, length=size, span=(0, size, size), blob=blob))

    def _reason(self, ask: Ask, found: Found) -> Reason | None:
        """Why an object is a miss: if it was cold, it may have been evicted."""
        evicted = found.reason is Reason.COLD and ask.key in self._generations.evicted
        return Reason.EVICTED if evicted else found.reason

    async def resident(self, call: S3Call) -> tuple[Answer, float] | None:
        """The object, or a range of it, if the cache can give it to this reader at once, and the seconds since its last
        confirmation.

        Raises:
            LarderError: the object became unavailable in between.
        """
        assert call.key is not None
        wanted = parse_range(_text(call, b"range"))
        ask = Ask(call.key, call.auth.principal.identity, span=wanted)
        found = await self._engine.resident(ask)
        if found is None:
            return None
        answer = self._answer(call, ask, found[0], wanted)
        return (answer, found[1]) if isinstance(answer, Answer) else None

    def _answer(self, call: S3Call, ask: Ask, found: Found, wanted: ByteRange | None) -> Answer | Forward:
        found = found._replace(reason=self._reason(ask, found))
        meta, conditions, body = found.entry.record.meta, ask.conditions, found.body
        headers = _entity_headers(meta, pays=ask.identity.pays)
        if conditions is not None:
            verdict = conditions.evaluate(meta.etag, meta.last_modified)
            if verdict is Precondition.NOT_MODIFIED:
                return Answer(304, _not_modified_head(headers), b"", found.outcome, found.reason)
            if verdict is Precondition.PRECONDITION_FAILED:
                if found.outcome is Outcome.STALE and ask.doubts(meta):
                    raise OriginUnavailable("the condition names a version that only the origin can know")
                failed = {"Condition": conditions.deciding}
                raise AboutCached("PreconditionFailed", (found.outcome, found.reason), extra=failed)
        if conditions is not None and not range_applies(conditions.if_range, meta.etag):
            wanted = None
        if wanted is not None and meta.size == 0:
            return Forward(Reason.RANGE_FORM)  # stores differ on ranges of empty objects
        start, stop, status = 0, meta.size, 200
        if wanted is not None:
            span = wanted.resolve(meta.size)
            if span is None:
                raise _unsatisfiable(call, found)
            (start, stop), status = span, 206
        length = stop - start
        head = [*headers, (b"content-length", b"%d" % length)]
        if status == 206:
            head.append((b"content-range", content_range(start, stop, meta.size).encode()))
        elif meta.checksums and call.wants_checksums:
            head += _raw(meta.checksums)
        if body is None:
            return Answer(status, head, b"", found.outcome, found.reason)
        outcome, reason = found.outcome, found.reason
        if body.missed and outcome is Outcome.HIT and reason is not Reason.MOVED:
            outcome = Outcome.MISS
            if reason is not Reason.CHANGED:
                reason = _reason_of(body)
                if reason is Reason.COLD and ask.key in self._generations.evicted:
                    reason = Reason.EVICTED
        return Answer(status, head, body, outcome, reason, length=length, span=(start, stop, meta.size))


def _judged(found: Relay | Forward, ask: Ask, wanted: ByteRange | None) -> Answer | Relay | Forward:
    """Apply the reader's conditions to the answer of an uncached HEAD: the origin got neither the conditions nor the range.

    A range is forwarded: only the origin can answer it.

    Raises:
        S3Error: PreconditionFailed.
    """
    conditions = ask.conditions
    if not ask.head or not isinstance(found, Relay) or found.response.status != 200:
        return found
    if wanted is not None:
        found.response.abort()
        return Forward(found.reason, miss=True)
    if conditions is None:
        return found
    meta = entity_headers(found.response.headers)
    if not meta.etag:
        return Forward(found.reason)
    verdict = conditions.evaluate(meta.etag, meta.last_modified)
    if verdict is Precondition.NOT_MODIFIED:
        return Answer(304, _not_modified_head(_entity_headers(meta)), b"", Outcome.MISS, found.reason)
    if verdict is Precondition.PRECONDITION_FAILED:
        failed = {"Condition": conditions.deciding}
        raise AboutCached("PreconditionFailed", (Outcome.MISS, found.reason), extra=failed)
    return found


def _reason_of(body: Body) -> Reason:
    if body.alone:
        return Reason.RANGE
    return Reason.PARTIAL if body.partial else Reason.JOINED if body.joined else Reason.COLD


def is_forced(call: S3Call) -> bool:
    """Whether the client demands revalidation with the origin (Cache-Control: no-cache or max-age=0)."""
    value = call.request.fields.get(b"cache-control")
    if value is None:
        return False
    directives = cache_directives(value.decode("latin-1"))
    return "no-cache" in directives or directives.get("max-age") == "0"


def _text(call: S3Call, name: bytes) -> str | None:
    value = call.request.fields.get(name)
    return None if value is None else value.decode("latin-1")


def _entity_headers(meta: ObjectMeta, *, pays: bool = False) -> RawHeaders:
    """The headers of every answer about one version of an object; the header about charges is only for payers."""
    headers = _raw(meta.headers)
    if not pays and (b"x-amz-request-charged", b"requester") in headers:
        headers.remove((b"x-amz-request-charged", b"requester"))
    headers.append((b"etag", meta.etag.encode("latin-1")))
    if b"accept-ranges" not in dict(headers):
        headers.append((b"accept-ranges", b"bytes"))
    return headers


def whole_head(meta: ObjectMeta, *, checked: bool) -> bytes:
    """The header lines of a hit on the whole object, with or without its checksums."""
    headers = [*_entity_headers(meta), (b"content-length", b"%d" % meta.size), cache_status(Outcome.HIT, None), SERVER]
    return encode_lines(headers + _raw(meta.checksums or ()) if checked else headers)


def part_head(meta: ObjectMeta) -> bytes:
    """The header lines of a hit on a part of an object, without Content-Length and Content-Range."""
    lines = encode_lines([*_entity_headers(meta), cache_status(Outcome.HIT, None), SERVER, (b"content-length", b"0")])
    return lines.removesuffix(b"content-length: 0\r\n")


def _raw(headers: Sequence[Header]) -> RawHeaders:
    raw = []
    for name, value in headers:
        raw.append(
            (name.lower().encode("latin-1"), value.encode("latin-1"))
        )  # in Python 3.11 a comprehension is a call
    return raw


_OF_304 = (b"etag", b"last-modified", b"cache-control", b"expires", b"content-location", b"vary", b"x-amz-version-id")


def _not_modified_head(headers: RawHeaders) -> RawHeaders:
    return [pair for pair in headers if pair[0] in _OF_304]


def _unsatisfiable(call: S3Call, found: Found) -> S3Error:
    size = found.entry.record.meta.size
    return AboutCached(
        "InvalidRange",
        (found.outcome, found.reason),
        extra={"RangeRequested": _text(call, b"range") or "", "ActualObjectSize": str(size)},
        headers={"Content-Range": unsatisfied_range(size)},
    )
