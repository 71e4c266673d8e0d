"""Reads that change the form of the answer: headers that the request names, or the object as its first part.

``response-content-type`` and its five siblings replace headers of the answer (AWS, GetObject). Unsigned requests with them are
left to the store, because S3 refuses them. ``partNumber=1`` of an object that was uploaded in one part gives all of it, with 206
or 200, as stores differ. In both cases the bytes are those of a plain read. So the first such read in a bucket goes to the store
unchanged, and the answer shows what this store does. Later ones are plain reads whose answers are changed here in the same way.
Forms that the store has not shown are never guessed.

Only an entity tag of 32 hexadecimal digits shows that an object has one part: tags of other objects end with the number of parts.
The tag must be known before bytes are requested, because otherwise a request for a first part would load a whole object of many
parts. So a HEAD comes first for an object that is not known here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import NamedTuple

from gateway.api.s3.about_bucket import BucketReads
from gateway.api.s3.answer import Answer, discard
from gateway.api.s3.call import S3Call, parameter
from gateway.api.s3.classify import not_cacheable
from gateway.api.s3.forward import Forwarder, relay_read
from gateway.api.s3.relayed import RelayedReads
from gateway.api.s3.shown import ShownOfBuckets
from gateway.engine.engine import Engine
from gateway.engine.objects.found import Forward, Relay
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.conditions import http_date
from gateway.model.s3.query import OVERRIDES
from gateway.model.s3.ranges import content_range
from gateway.model.s3.request_headers import EXPECTED_OWNER, PAYER
from gateway.model.s3.sigv4 import WireRequest

_PART = "partNumber"
_NAMES = frozenset(name.decode() for name in OVERRIDES)
_PREFIX = "response-"
_ONE_PART = re.compile(r'"?[0-9a-fA-F]{32}"?')
_VALUE = re.compile(rb"[!-~]([ -~]{0,1022}[!-~])?")
"""A value that every store puts into a header in the same way."""
_CHECKSUM = b"x-amz-checksum-"
_PARTS_COUNT = b"x-amz-mp-parts-count"
_OF_HEAD = frozenset({b"host", EXPECTED_OWNER, PAYER})
_WHOLE = (200, 206)


class _PartForm(NamedTuple):
    """How a store answers for the only part of an object: status, and whether it sends Content-Range, checksums and a number of
    parts."""

    status: int
    ranged: bool
    checksums: bool
    parts_count: bytes | None


class PresentedReads:
    """Answers reads with these parameters.

    Args:
        relayed: reads objects.
        of_buckets: answers reads that also concern their bucket.
        forwarder: sends requests on to the origin.
        engine: knows objects and rules.
    """

    def __init__(self, relayed: RelayedReads, of_buckets: BucketReads, forwarder: Forwarder, engine: Engine) -> None:
        self._relayed = relayed
        self._of_buckets = of_buckets
        self._forwarder = forwarder
        self._engine = engine
        self._overrides: ShownOfBuckets[bool] = ShownOfBuckets(engine.services)
        self._parts: ShownOfBuckets[_PartForm] = ShownOfBuckets(engine.services)

    @staticmethod
    def concerns(call: S3Call) -> bool:
        """Whether a read is plain except for ``response-*`` and ``partNumber``."""
        return call.names - {"x-id", _PART} <= _NAMES and not_cacheable(_plain(call)) is None

    async def read(self, call: S3Call, body: Callable[[], AsyncIterator[bytes]]) -> Answer:
        """Answer a GET or HEAD.

        Raises:
            S3Error: as ``RelayedReads.read``.
            OriginUnavailable: the origin is needed and cannot be reached.
        """
        names = call.names & _NAMES
        values = {name: parameter(call.query, name) for name in names}
        form: _PartForm | None = None
        looked: Answer | None = None
        why = Forward(Reason.SUBRESOURCE)
        known = not (names and call.auth.principal.anonymous) and all(
            _is_plain(*pair) and self._overrides.recall(call, _kind(call, pair[0])) for pair in values.items()
        )
        if known and _PART in call.names:
            form = self._parts.recall(call, _place(call))
            known, looked = (False, None) if form is None else await self._has_one_part(call, form)
        if known:
            answer = await self._object(_plain(call), body)
            if isinstance(answer, Forward):
                why = answer
            elif form is None or answer.status not in _WHOLE or _ONE_PART.fullmatch(_etag(answer)):
                if looked is not None and answer.outcome is Outcome.HIT:
                    # The store was asked anyway, for the entity tag.
                    answer.outcome, answer.reason = looked.outcome, looked.reason
                return _presented(answer, values, form)
            else:
                await discard(answer)
        return await self._forward(call, body, why, values)

    async def _object(self, call: S3Call, body: Callable[[], AsyncIterator[bytes]]) -> Answer | Forward:
        """The answer to a plain read."""
        if self._of_buckets.concerns(call):
            reply = await self._of_buckets.read(call, body)
        else:
            reply = await self._relayed.begin(call)[0]
        return relay_read(call, reply) if isinstance(reply, Relay) else reply

    async def _has_one_part(self, call: S3Call, form: _PartForm) -> tuple[bool, Answer | None]:
        """Whether a request for part 1 is for a whole object that is not empty, and ``form`` determines its answer.

        Also returns the answer to the preceding HEAD, if one was needed.
        """
        request, key = call.request, call.key
        assert key is not None
        if parameter(call.query, _PART) != b"1" or b"range" in request.fields:
            return False, None
        entry = await self._engine.known(key)
        if entry is not None and entry.record.meta.checksums is not None:
            meta = entry.record.meta
            return _is_told_by(form, meta.etag, meta.size, checked=call.wants_checksums and bool(meta.checksums)), None
        headers = [pair for pair in request.headers if pair[0] in _OF_HEAD]
        if call.wants_checksums:
            headers.append((b"x-amz-checksum-mode", b"ENABLED"))
        head = WireRequest("HEAD", request.raw_path, b"", headers, request.scheme)
        reply = await self._relayed.begin(replace(_plain(call), request=head))[0]
        if isinstance(reply, Forward):
            return False, None
        if isinstance(reply, Relay):
            reply.response.abort()
            return False, None
        await discard(reply)
        checked = any(name.startswith(_CHECKSUM) for name, _ in reply.headers)
        size = int(_value(reply, b"content-length") or 0)
        return reply.status == 200 and _is_told_by(form, _etag(reply), size, checked=checked), reply

    async def _forward(
        self, call: S3Call, body: Callable[[], AsyncIterator[bytes]], why: Forward, values: dict[str, bytes]
    ) -> Answer:
        """Have the store answer, and learn from its answer."""
        rights = self._parts.rights(call)
        answer = await self._forwarder.forward(call, body(), Outcome.MISS if why.miss else Outcome.BYPASS, why.reason)
        if answer.status not in _WHOLE:
            return answer
        for name, value in values.items():
            if _value(answer, name.removeprefix(_PREFIX).encode()) == value:
                self._overrides.note(call, _kind(call, name), True, rights)
        if parameter(call.query, _PART) == b"1" and (form := _form_of(answer)) is not None:
            self._parts.note(call, _place(call), form, rights)
        return answer


def _plain(call: S3Call) -> S3Call:
    return replace(call, query="", names=frozenset())


def _place(call: S3Call) -> tuple[str, bool]:
    return call.request.method, call.wants_checksums


def _kind(call: S3Call, name: str) -> tuple[str, str]:
    """The key of reads that a store treats alike: moto, for example, replaces headers of GET but not of HEAD."""
    return name, call.request.method


def _is_plain(name: str, value: bytes) -> bool:
    return _VALUE.fullmatch(value) is not None and (
        name != "response-expires" or http_date(value.decode("ascii")) is not None
    )


def _value(answer: Answer, name: bytes) -> bytes:
    """A header of an answer; empty if it has none."""
    return next((value for given, value in answer.headers if given.lower() == name), b"")


def _etag(answer: Answer) -> str:
    return _value(answer, b"etag").decode("latin-1")


def _is_told_by(form: _PartForm, etag: str, size: int, *, checked: bool) -> bool:
    """Whether a form determines the answer for an object; ``checked``: the object has checksums."""
    return _ONE_PART.fullmatch(etag) is not None and size > 0 and (form.checksums or not checked)


def _form_of(answer: Answer) -> _PartForm | None:
    """The form of a store's answer for part 1; ``None`` if the answer is not a whole object with one part."""
    length, span = _value(answer, b"content-length"), _value(answer, b"content-range")
    if not _ONE_PART.fullmatch(_etag(answer)) or not length.isdigit() or length == b"0":
        return None
    if (answer.status == 206 or span) and span.decode("latin-1") != content_range(0, int(length), int(length)):
        return None
    checksums = any(name.lower().startswith(_CHECKSUM) for name, _ in answer.headers)
    return _PartForm(answer.status, bool(span), checksums, _value(answer, _PARTS_COUNT) or None)


def _presented(answer: Answer, values: dict[str, bytes], form: _PartForm | None) -> Answer:
    """The answer to a plain read in the store's form; an answer without the object's bytes stays unchanged."""
    if answer.status not in _WHOLE:
        return answer
    replaced = {name.removeprefix(_PREFIX).encode(): value for name, value in values.items()}
    answer.headers = [pair for pair in answer.headers if pair[0].lower() not in replaced]
    answer.headers += replaced.items()
    if form is not None:
        length = _value(answer, b"content-length")
        answer.status = form.status
        if form.ranged:
            answer.headers.append((b"content-range", content_range(0, int(length), int(length)).encode()))
        if form.parts_count is not None:
            answer.headers.append((_PARTS_COUNT, form.parts_count))
    return answer
