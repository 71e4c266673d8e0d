"""Reads items from the origin, or from cached blocks of their object: one item, or a stretch of several.

Readers learn the origin's status, but not its address or other internals; the log has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from gateway.base.metrics import ITEM_RUNS
from gateway.engine.base.fetching import ByteStream, pause
from gateway.engine.base.object_runs import OfVersion, ReadVersion
from gateway.engine.base.services import Services
from gateway.engine.items.object_blocks import ObjectBlocks, Opened
from gateway.engine.items.wanted import Wanted
from gateway.model.errors import LarderError, OriginUnavailable
from gateway.model.frames import ItemStatus
from gateway.model.keys import ObjectKey
from gateway.model.objects import ObjectMeta
from gateway.net.exchange import StreamedResponse
from gateway.origin.headers import content_range, entity_headers
from gateway.policies.items.runs import ByteSpan, with_edges
from gateway.policies.reads.admission import refusal
from gateway.policies.reads.granularity import is_stored
from gateway.store.datasets.content import UNKNOWN_LENGTH
from gateway.store.datasets.locations import Location

ATTEMPTS = 3


class ItemRefused(LarderError):
    """The origin's answer is final: the item is missing, changed, or not for this reader."""

    def __init__(self, status: ItemStatus, detail: str) -> None:
        self.status = status
        super().__init__(detail)


def changed() -> ItemRefused:
    """The origin's bytes differ from those that the digest file describes."""
    return ItemRefused(ItemStatus.CHANGED, "its bytes are not those of the digest file")


class UnusableAnswer(OriginUnavailable):
    """The origin's answer is unusable."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


class ItemOrigin:
    """Reads items of one worker.

    Args:
        services: of the worker.
        blocks: has the blocks that S3 readers loaded.
    """

    def __init__(self, services: Services, blocks: ObjectBlocks) -> None:
        self._services = services
        self._client = services.origin
        self._blocks = blocks

    async def open(self, wanted: Wanted, spans: Mapping[int, ByteSpan] | None = None) -> Opened:
        """An item, or a run of items of its object; ``spans`` are in order.

        Raises:
            OriginUnavailable: the origin failed ``ATTEMPTS`` times.
            ItemRefused: the origin refused.
        """
        location, expected = wanted.location, _length(wanted)
        least = expected
        if spans is None:
            spans = _span_of(wanted, location, expected)
            whole = spans[wanted.index]
        else:
            whole = self._with_edges(wanted, spans)
            least = max(span.stop for span in spans.values()) - whole.start
            location, expected = location._replace(offset=whole.start, length=whole.size), whole.size
        cached = await self._blocks.open(wanted, spans, whole)
        if cached is not None:
            ITEM_RUNS.labels("blocks").inc(len(spans) > 1)
            return cached if self._serves_readers() else cached._replace(of=None)
        key = ObjectKey(wanted.identity.origin, location.bucket, location.key)
        generation, asked_at = self._services.store.generations.of(key), self._services.now()
        of = OfVersion(None)

        async def rest(offset: int) -> StreamedResponse:
            response, _ = await self._ask(wanted, location, expected, offset, least)
            if of.version is not None and response.header("ETag") != of.version.meta.etag:
                of.version = None
            return response

        for attempt in count(1):
            try:
                response, length = await self._ask(wanted, location, expected, 0, least)
            except OriginUnavailable:
                if attempt == ATTEMPTS:
                    raise
                await pause(attempt)
            else:
                break
        if self._serves_readers() and (len(spans) > 1 or is_stored(length, self._services.block_size)):
            meta, reader = self._meta_of(response, location, length), wanted.registration.read_by(wanted.identity)
            of.version = None if meta is None else ReadVersion(key, meta, generation, asked_at, reader.name)
        ITEM_RUNS.labels("origin").inc(len(spans) > 1)
        stream = ByteStream(response, length, rest)
        stream.resumes = ATTEMPTS - attempt
        return Opened(stream, length, whole.start, response.headers, of=of)

    def _serves_readers(self) -> bool:
        """Whether S3 readers of an object ask the node that has its items. In a fleet, items and objects have different homes."""
        return self._services.fleet is None or self._services.fleet.members.alone

    def _with_edges(self, wanted: Wanted, spans: Mapping[int, ByteSpan]) -> ByteSpan:
        """The span of a run; in an epoch, extended to the edges of its object."""
        first, last = next(iter(spans)), max(spans, key=lambda index: spans[index].stop)
        span = ByteSpan(spans[first].start, spans[last].stop)
        if not (wanted.sweeps and self._serves_readers()):
            return span
        here, locations = wanted.location[:2], wanted.registration.locations
        before = _end_of(locations.of(first - 1), here) if first else 0
        # Only where the digest file lists the object in order, a next item of another one proves that this item is the last.
        ordered = last > 0 and _end_of(locations.of(last - 1), here) in range(1, spans[last].start + 1)
        ends = last + 1 == locations.items or locations.of(last + 1)[:2] != here
        return with_edges(span, before, last=ordered and ends)

    def _meta_of(self, response: StreamedResponse, location: Location, length: int) -> ObjectMeta | None:
        """The metadata of the object in an answer; ``None`` if readers of the object may not have its bytes."""
        meta, start = entity_headers(response.headers, checksums_asked=False), location.offset or 0
        if refusal(meta, self._services.rules.for_path(location.path), self._services.capacity) is not None:
            return None
        span = content_range(response.header("Content-Range") or "")
        exact = span == (start, start + length - 1, meta.size) if response.status == 206 else length == meta.size
        return meta if exact else None

    async def rest(self, wanted: Wanted, skip: int) -> StreamedResponse:
        """An item without its first ``skip`` bytes. Raises what ``open`` raises, but after one attempt."""
        length = _length(wanted)
        return (await self._ask(wanted, wanted.location, length, skip, length))[0]

    async def _ask(
        self, wanted: Wanted, location: Location, expected: int, skip: int, least: int
    ) -> tuple[StreamedResponse, int]:
        """The origin's answer to a read of ``expected`` bytes without the first ``skip``, and its length; ``least`` bytes suffice
        if the object ends there.

        Raises:
            OriginUnavailable: the origin failed.
            ItemRefused: the origin refused.
        """
        key = ObjectKey(wanted.identity.origin, location.bucket, location.key)
        headers = []
        offset, length = (0, None) if location.offset is None else (location.offset, location.length)
        if offset or skip or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers.append(("Range", f"bytes={offset + skip}-{last}"))
        identity = wanted.registration.read_by(wanted.identity)
        response = await self._client.send(identity, "GET", key.raw_path, "", headers)
        lengths = (0, UNKNOWN_LENGTH) if expected == UNKNOWN_LENGTH else (least - skip, expected - skip)
        try:
            return response, _checked(response, lengths, ranged=bool(headers))
        except BaseException:
            response.abort()
            raise


def _span_of(wanted: Wanted, location: Location, length: int) -> dict[int, ByteSpan]:
    start = location.offset or 0
    return {wanted.index: ByteSpan(start, start + length)}


def _length(wanted: Wanted) -> int:
    return int(wanted.registration.content.lengths[wanted.index])


def _end_of(location: Location, here: tuple[str, str]) -> int:
    """Where an item ends in the object ``here``; 0 if it is in another object."""
    return (location.offset or 0) + (location.length or 0) if location[:2] == here else 0


def _checked(response: StreamedResponse, lengths: tuple[int, int], *, ranged: bool) -> int:
    status = response.status
    if status in (404, 410):
        raise ItemRefused(ItemStatus.MISSING, f"the origin answered {status}")
    if status in (401, 403):
        raise ItemRefused(ItemStatus.REFUSED, f"the origin answered {status} to this caller's keys")
    if status == 416:
        raise ItemRefused(ItemStatus.CHANGED, "the object is shorter than the digest file says")
    if status != (206 if ranged else 200):
        raise UnusableAnswer(f"the origin answered {status}")
    text = response.header("Content-Length")
    if text is None or not text.isdecimal():
        raise UnusableAnswer("the origin did not say how long its answer is")
    if not lengths[0] <= int(text) <= lengths[1]:
        raise ItemRefused(ItemStatus.CHANGED, f"it has {text} bytes, not {lengths[0]} as the digest file says")
    return int(text)
