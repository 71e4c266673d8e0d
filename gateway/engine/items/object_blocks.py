"""Items in the cached blocks of their objects: what S3 readers have loaded is not read again for loaders.

The digest is the reader's right to an item (docs/decisions/0007), so no grant of the object is needed. Blocks may be older or
newer than the digest file: each item is compared with its digest before anything is used.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.base import metrics
from gateway.engine.base.fetching import ByteStream, ItemBytes
from gateway.engine.items.wanted import MemoryBudget, MemoryLease, Wanted
from gateway.model.errors import BlobGone, DiskUnavailable
from gateway.model.frames import ItemFlag
from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, Header
from gateway.policies.items.runs import ByteSpan
from gateway.store.store import Store

MOST = 8 * 1024**2
"""Bytes that are read from blocks at once."""
MEMORY = 64 * 1024**2
"""Bytes of blocks that a worker holds for items that are being stored."""


class Opened(NamedTuple):
    """The bytes of items, and how they came.

    Attributes:
        stream: the bytes.
        length: their number.
        headers: of the origin's answer; empty if the origin was not asked.
        flags: for the items.
        memory: what the bytes take of it, as long as this lives.
    """

    stream: ItemBytes
    length: int
    headers: Sequence[Header] = ()
    flags: ItemFlag = ItemFlag.NONE
    memory: MemoryLease | None = None


class ObjectBlocks:
    """Reads items from blocks, for one worker.

    Args:
        store: has the blocks.
        block_size: of objects; a smaller one is a blob with its own digest.
    """

    def __init__(self, store: Store, block_size: int) -> None:
        self._store = store
        self._block_size = block_size
        self._memory = MemoryBudget()

    async def open(self, wanted: Wanted, spans: Mapping[int, ByteSpan]) -> Opened | None:
        """The bytes from the first of some items of an object to the last; ``None`` if they are not all here and right.

        Args:
            wanted: one of them.
            spans: all of them, in the order of their places.
        """
        whole = ByteSpan(next(iter(spans.values())).start, max(span.stop for span in spans.values()))
        if wanted.refused or not 0 < whole.size <= MOST or self._memory.used + whole.size > MEMORY:
            return None
        if wanted.location.offset is None and whole.size <= self._block_size:
            return None
        memory = MemoryLease(self._memory, whole.size)
        data = await self._read(wanted, whole)
        if data is None or not await asyncio.to_thread(_are_right, wanted, spans, memoryview(data), whole.start):
            return None
        metrics.ITEMS_FROM_BLOCKS.inc(len(spans))
        return Opened(ByteStream.of(data), len(data), flags=ItemFlag.HIT, memory=memory)

    async def _read(self, wanted: Wanted, span: ByteSpan) -> bytes | None:
        location = wanted.location
        record = await self._store.lookup(ObjectKey(wanted.identity.origin, location.bucket, location.key))
        if record is None or record.meta.size < span.stop:
            return None
        size = record.block_size
        first, last = span.start // size, (span.stop - 1) // size
        refs = await self._store.blocks(record.row_id, first, last)
        if len(refs) <= last - first:
            return None
        try:
            pieces = [await self._piece(refs[number], number * size, span) for number in range(first, last + 1)]
        except (BlobGone, DiskUnavailable, OSError):
            return None
        data = b"".join(pieces)
        return data if len(data) == span.size else None

    async def _piece(self, ref: BlobRef, start: int, span: ByteSpan) -> bytes:
        """The part of a span that lies in the block which begins at ``start``."""
        blob = await self._store.open_blob(ref)
        begin = max(span.start - start, 0)
        return await self._store.read_cold(blob.fd, min(span.stop - start, ref.size) - begin, begin)


def _are_right(wanted: Wanted, spans: Mapping[int, ByteSpan], data: memoryview, start: int) -> bool:
    digest = wanted.registration.content.digest
    return all(
        hashlib.sha256(data[span.start - start : span.stop - start]).digest() == digest(index)
        for index, span in spans.items()
    )
