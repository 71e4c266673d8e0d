"""Ranges that are read without the blocks around them (gateway/policies/reads/granularity.py decides which).

Such a range is read into memory before its reader gets the first byte, and concurrent readers of the same range share it. A
large part is then stored as a blob beside the blocks of its object; it serves all reads within it, and is evicted and forgotten
like the blocks. A smaller one is kept in memory for a while, and nothing of it reaches the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from cachetools import LRUCache

from gateway.base.metrics import SMALL_RANGES
from gateway.base.tasks import SingleFlight
from gateway.engine.base.fetching import ByteStream
from gateway.engine.objects.entries import ObjectEntry
from gateway.engine.objects.fill import tie
from gateway.model.errors import BlobGone, LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.net.exchange import StreamedResponse
from gateway.policies.reads import granularity
from gateway.policies.reads.granularity import SmallRange
from gateway.store.files.blobs import OpenBlob
from gateway.store.store import Store

_KEPT = 16 * 1024**2
"""Bytes of ranges that a worker keeps, including the overhead of each."""
_AROUND = 1024
"""Bytes charged for a range in addition to its data: its names, numbers and dictionary entries take 500 to 900."""
_UNDER_WAY = 64 * 1024**2
"""Bytes of ranges that a worker reads at once; above that, blocks are filled."""

Open = Callable[[ObjectEntry, OriginIdentity, int, int], Awaitable[StreamedResponse]]
"""Asks the origin for bytes of exactly this version of an object; raises ``LarderError``."""
_Place = tuple[ObjectKey, int, str, int]
"""Key, generation and ETag of an object, and the first byte of a range."""


class Part(NamedTuple):
    """Bytes of an object, from ``start`` on."""

    start: int
    data: bytes

    def piece(self, start: int, stop: int) -> bytes | None:
        """The bytes [start, stop), if this part contains all of them."""
        if start < self.start or stop > self.start + len(self.data):
            return None
        return self.data[start - self.start : stop - self.start]


class StoredPart(NamedTuple):
    """A large part stored as a separate blob: ``digest`` names it, ``blob`` is held for the caller."""

    start: int
    digest: bytes
    blob: OpenBlob


class SmallRanges:
    """The ranges that one worker reads without their blocks.

    Args:
        store: of the node; the workers share its table of ranges.
        open_range: reads a range from the origin.
        now: seconds since the epoch.
    """

    def __init__(self, store: Store, open_range: Open, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._open = open_range
        self._kept: LRUCache[_Place, Part] = LRUCache(_KEPT, getsizeof=lambda part: _AROUND + len(part.data))
        self._flight: SingleFlight[tuple[_Place, int, str], Part] = SingleFlight()
        self._under_way = 0

    def may_read(self, length: float, block: int) -> bool:
        """Whether a range of ``length`` bytes may be read without its blocks of ``block`` bytes, and memory allows it."""
        return length <= granularity.longest(block) and self._under_way + length <= _UNDER_WAY

    def kept(self, entry: ObjectEntry, start: int, stop: int) -> bytes | None:
        """A range that is in memory."""
        part = self._kept.get(_place(entry, start))
        piece = None if part is None else part.piece(start, stop)
        if piece is not None:
            SMALL_RANGES.labels("memory").inc()
        return piece

    def is_under_way(self, entry: ObjectEntry, identity: OriginIdentity, start: int, stop: int) -> bool:
        """Whether this range is being read with these keys, so that ``read`` joins that read."""
        return (_place(entry, start), stop, identity.name) in self._flight

    def fills(self, entry: ObjectEntry, start: int, stop: int, *, continues: bool) -> bool:
        """Whether to fill the blocks of a range, none of which is cached; otherwise ``read`` the range without them."""
        record = entry.record
        asked = SmallRange(_version(entry), start, stop, record.block_size, record.meta.size, continues)
        fills = granularity.fills(self._store.generations.ranges, asked)
        if fills:
            SMALL_RANGES.labels("filled").inc()
        return fills

    async def read(self, entry: ObjectEntry, identity: OriginIdentity, start: int, stop: int) -> Part:
        """Read a range from the origin.

        Raises: see ``ranged.read_range``.
        """
        slot = (_place(entry, start), stop, identity.name)
        return await self._flight.result(slot, lambda: self.fetch(entry, identity, (start, stop), None))

    async def fetch(
        self, entry: ObjectEntry, identity: OriginIdentity, span: tuple[int, int], response: StreamedResponse | None
    ) -> Part:
        """The bytes of a range, from an open answer or a new one; a broken answer is resumed up to twice.

        Raises: see ``ranged.read_range``.
        """
        start, stop = span
        self._under_way += stop - start
        try:
            response = response or await self._open(entry, identity, start, stop)
            stream = ByteStream(response, stop - start, lambda at: self._open(entry, identity, start + at, stop))
            try:
                part = Part(start, await stream.read())
                stream.release()
            finally:
                stream.abort()
            large = granularity.is_stored(stop - start, entry.record.block_size)
            if not large or not await self._stores(entry, part):
                self._kept[_place(entry, start)] = part
        finally:
            self._under_way -= stop - start
        SMALL_RANGES.labels("alone").inc()
        return part

    async def recall(self, entry: ObjectEntry, start: int, stop: int) -> StoredPart | None:
        """A stored part that has the bytes [start, stop); its blob is held for the caller.

        It may begin before ``start``, unless it is longer than ranges read alone, as large items of datasets are.
        """
        record, store = entry.record, self._store
        if not record.row_id:
            return None
        first = max(0, min(start, stop - granularity.longest(record.block_size)))
        numbers = granularity.part_number(first), granularity.part_number(start)
        for number, ref in sorted((await store.blocks(record.row_id, *numbers)).items(), reverse=True):
            if (begin := granularity.part_start(number)) + ref.size < stop:
                continue
            with suppress(BlobGone):
                blob = await store.open_blob(ref)
                blob.hold()
                return StoredPart(begin, ref.digest, blob)
        return None

    async def _stores(self, entry: ObjectEntry, part: Part) -> bool:
        """Store a large part, unless the disk or the index does not accept it."""
        with suppress(LarderError):
            blob = await self._store.create(len(part.data))
            try:
                ref = await blob.commit(part.data)
            finally:
                blob.end()
            return await tie(self._store, entry, granularity.part_number(part.start), ref, self._now())
        return False

    async def close(self) -> None:
        """Stop reads under way."""
        await self._flight.stop()


def _place(entry: ObjectEntry, start: int) -> _Place:
    return entry.key, entry.generation, entry.record.meta.etag, start


def _version(entry: ObjectEntry) -> int:
    key = entry.key
    text = f"{key.origin}\0{key.bucket}\0{key.key}\0{entry.record.meta.etag}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=7).digest(), "little")
