"""Reading items from the origin, or from blocks of their object that are cached: one item, or a stretch with more of them.

Readers learn the origin's status, but not its address or other internals; the log has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from gateway.engine.base.fetching import ByteStream, pause
from gateway.engine.items.object_blocks import ObjectBlocks, Opened
from gateway.engine.items.wanted import Wanted
from gateway.model.errors import LarderError, OriginUnavailable
from gateway.model.frames import ItemStatus
from gateway.model.keys import ObjectKey
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import OriginClient
from gateway.policies.items.runs import ByteSpan
from gateway.store.datasets.content import UNKNOWN_LENGTH
from gateway.store.datasets.locations import Location

ATTEMPTS = 3


class ItemRefused(LarderError):
    """The origin's answer is final: the item is missing, changed, or not for this reader."""

    def __init__(self, status: ItemStatus, detail: str) -> None:
        self.status = status
        super().__init__(detail)


class UnusableAnswer(OriginUnavailable):
    """The origin's answer is unusable."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


class ItemOrigin:
    """Reads items of one worker.

    Args:
        client: sends the requests.
        blocks: has what S3 readers have loaded.
    """

    def __init__(self, client: OriginClient, blocks: ObjectBlocks) -> None:
        self._client = client
        self._blocks = blocks

    async def open(self, wanted: Wanted, spans: Mapping[int, ByteSpan] | None = None) -> Opened:
        """An item, or the bytes from the first of some items of its object to the last; ``spans`` are in order.

        Raises:
            OriginUnavailable: the origin failed ``ATTEMPTS`` times.
            ItemRefused: it refused.
        """
        location, expected = wanted.location, _length(wanted)
        if spans is not None:
            start, stop = next(iter(spans.values())).start, max(span.stop for span in spans.values())
            location, expected = location._replace(offset=start, length=stop - start), stop - start
        cached = await self._blocks.open(wanted, spans or _span_of(wanted, location, expected))
        if cached is not None:
            return cached

        async def rest(offset: int) -> StreamedResponse:
            return (await self._ask(wanted, location, expected, offset))[0]

        for attempt in count(1):
            try:
                response, length = await self._ask(wanted, location, expected)
            except OriginUnavailable:
                if attempt == ATTEMPTS:
                    raise
                await pause(attempt)
            else:
                break
        stream = ByteStream(response, length, rest)
        stream.resumes = ATTEMPTS - attempt
        return Opened(stream, length, response.headers)

    async def rest(self, wanted: Wanted, skip: int) -> StreamedResponse:
        """An item without its first ``skip`` bytes. Raises as ``open``, after one attempt."""
        return (await self._ask(wanted, wanted.location, _length(wanted), skip))[0]

    async def _ask(
        self, wanted: Wanted, location: Location, expected: int, skip: int = 0
    ) -> tuple[StreamedResponse, int]:
        """The origin's answer to a read of ``expected`` bytes without the first ``skip``, and the number of its bytes.

        Raises:
            OriginUnavailable: it failed.
            ItemRefused: it refused.
        """
        key = ObjectKey(wanted.identity.origin, location.bucket, location.key)
        headers = []
        offset, length = (0, None) if location.offset is None else (location.offset, location.length)
        if offset or skip or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers.append(("Range", f"bytes={offset + skip}-{last}"))
        identity = wanted.registration.read_by(wanted.identity)
        response = await self._client.send(identity, "GET", key.raw_path, "", headers)
        expected -= skip if expected != UNKNOWN_LENGTH else 0
        try:
            return response, _checked(response, ranged=bool(headers), expected=expected)
        except BaseException:
            response.abort()
            raise


def _span_of(wanted: Wanted, location: Location, length: int) -> dict[int, ByteSpan]:
    start = location.offset or 0
    return {wanted.index: ByteSpan(start, start + length)}


def _length(wanted: Wanted) -> int:
    return int(wanted.registration.content.lengths[wanted.index])


def _checked(response: StreamedResponse, *, ranged: bool, expected: int) -> int:
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
    if expected not in (int(text), UNKNOWN_LENGTH):
        raise ItemRefused(ItemStatus.CHANGED, f"it has {text} bytes, not {expected} as the digest file says")
    return int(text)
