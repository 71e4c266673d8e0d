"""Reads items from the cached blocks of their objects, so that loaders do not read again what S3 readers have loaded.

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
from gateway.engine.base.handover import Moves
from gateway.engine.base.memory import MemoryBudget, MemoryLease
from gateway.engine.base.object_runs import OfVersion, ReadVersion
from gateway.engine.items.wanted import Wanted
from gateway.model.errors import BlobGone, DiskUnavailable, LarderError
from gateway.model.frames import ItemFlag
from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, Header, ObjectRecord
from gateway.model.s3.ranges import ByteRange
from gateway.policies.items.runs import ByteSpan
from gateway.policies.reads.granularity import is_stored
from gateway.store.store import Store

MOST = 8 * 1024**2
"""Maximum bytes that are read from blocks at once."""
MEMORY = 64 * 1024**2
"""Bytes of blocks that a worker holds for items that are being stored."""


class Opened(NamedTuple):
    """The bytes of items, and their source.

    Attributes:
        stream: the bytes.
        length: their number.
        start: the first byte in the object.
        headers: of the origin's answer; empty if the origin was not asked.
        flags: for the items.
        memory: the lease of the bytes' memory, held while this object lives.
        of: the object's version, if readers of the object may have the items; else ``None``.
    """

    stream: ItemBytes
    length: int
    start: int = 0
    headers: Sequence[Header] = ()
    flags: ItemFlag = ItemFlag.NONE
    memory: MemoryLease | None = None
    of: OfVersion | None = None


class ObjectBlocks:
    """Reads items from blocks, for one worker.

    Args:
        store: has the blocks of this node.
        block_size: of objects; a smaller object is one blob with its own digest.
        moves: asks the homes of objects; ``None`` outside a fleet.
    """

    def __init__(self, store: Store, block_size: int, moves: Moves | None = None) -> None:
        self._store = store
        self._block_size = block_size
        self._moves = moves
        self._memory = MemoryBudget()

    async def open(self, wanted: Wanted, spans: Mapping[int, ByteSpan], whole: ByteSpan) -> Opened | None:
        """Some items of an object, with the bytes between them; ``None`` unless all are here and right.

        Args:
            wanted: the item that is asked for, one of them.
            spans: all of them, in the order of their places.
            whole: the range to read; it may extend beyond the items.
        """
        if wanted.refused or not 0 < whole.size <= MOST or self._memory.used + whole.size > MEMORY:
            return None
        if wanted.location.offset is None and whole.size <= self._block_size:
            return None
        memory = MemoryLease(self._memory, whole.size)
        location = wanted.location
        key = ObjectKey(wanted.identity.origin, location.bucket, location.key)
        generation, data, of = self._store.generations.of(key), None, None
        record = await self._store.lookup(key)
        if record is not None and record.meta.size >= max(span.stop for span in spans.values()):
            data = await self._read(record, whole._replace(stop=min(whole.stop, record.meta.size)))
            of = OfVersion(ReadVersion(key, record.meta, generation, record.confirmed_at))
        if data is None and (len(spans) > 1 or is_stored(whole.size, self._block_size)):
            # Asking for a single item would cost as much as reading it.
            data, of = await self._from_home(key, wanted, whole), None
        if data is None or not await asyncio.to_thread(_are_right, wanted, spans, memoryview(data), whole.start):
            return None
        metrics.ITEMS_FROM_BLOCKS.inc(len(spans))
        return Opened(ByteStream.of(data), len(data), whole.start, flags=ItemFlag.HIT, memory=memory, of=of)

    async def _from_home(self, key: ObjectKey, wanted: Wanted, span: ByteSpan) -> bytes | None:
        """The bytes from the object's home, if it has their blocks and the reader may have them without asking the origin."""
        node = None if self._moves is None else self._moves.home(key)
        if self._moves is None or node is None:
            return None
        identity = wanted.registration.read_by(wanted.identity)
        moved = await self._moves.part(node, key, identity, ByteRange(span.start, span.stop - 1))
        if moved is None:
            return None
        try:
            return await moved.body.read(span.size) if moved.body.header("Content-Length") == str(span.size) else None
        except LarderError:
            return None
        finally:
            moved.body.release()

    async def _read(self, record: ObjectRecord, span: ByteSpan) -> bytes | None:
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
