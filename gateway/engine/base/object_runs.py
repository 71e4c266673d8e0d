"""Serves objects to S3 readers from the items that loaders fetched (docs/decisions/0063).

A run of items is tied to the row of its object by a list (gateway/model/run_list.py), under the version that the origin's answer
named. So it is forgotten with the object, and served only to those who may read this version. The items remain blobs by digest.
Each is hashed when it is read here; if it does not match the list, the origin is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from os import close, pread
from typing import NamedTuple

from cachetools import LRUCache

from gateway.base.metrics import READ_FROM_ITEMS
from gateway.engine.base.memory import MemoryBudget, MemoryLease
from gateway.model.errors import BlobGone, LarderError
from gateway.model.keys import ObjectKey
from gateway.model.objects import BlobRef, ObjectMeta, ObjectRecord
from gateway.model.run_list import RunPiece, decode_run, encode_run, joined
from gateway.policies.items.runs import EDGE, STRETCH
from gateway.policies.reads.granularity import RUNS, run_number
from gateway.store.files.directory import CacheDirectory
from gateway.store.store import Store

CHUNK = 1024**2
"""Bytes after which a read ends, at the end of an item."""
MEMORY = 64 * 1024**2
"""Bytes that a worker holds for its readers; above that, blocks are filled."""
FORESEEN = 64 * 1024**2
"""Bytes at the start of a read whose lists are checked before it begins."""
_LISTED = 16 * 1024
"""Pieces of lists in memory."""
_REACH = 2 * STRETCH + EDGE
"""Maximum bytes of a run."""


class ReadVersion(NamedTuple):
    """The object of a read, as the origin described it.

    Attributes:
        key: of the object.
        meta: its metadata.
        generation: the key's generation before the origin was asked.
        asked_at: when the origin was asked, in seconds since the epoch.
        identity: the reader's name; ``None`` if the origin was not asked.
    """

    key: ObjectKey
    meta: ObjectMeta
    generation: int
    asked_at: float
    identity: str | None = None


class OfVersion:
    """The version that bytes are of; ``None`` once they turn out to be of several."""

    __slots__ = ("version",)

    def __init__(self, version: ReadVersion | None) -> None:
        self.version = version


class Gathered(NamedTuple):
    """Bytes of an object from its items. ``digest`` names the list with the first byte; ``memory`` is their lease."""

    data: bytes
    digest: bytes
    memory: MemoryLease


async def _nobody(_version: ReadVersion, _row: ObjectRecord) -> None:
    """No reader has the object in memory."""


class ObjectRuns:
    """The runs of items on one worker's node.

    Args:
        store: of the node.
        block_size: of new objects, in bytes.
        now: seconds since the epoch.

    Attributes:
        adopt: called with each object to which a run was tied.
    """

    def __init__(self, store: Store, block_size: int, now: Callable[[], float]) -> None:
        self.adopt: Callable[[ReadVersion, ObjectRecord], Awaitable[None]] = _nobody
        self._store = store
        self._block_size = block_size
        self._now = now
        self._memory = MemoryBudget()
        self._lists: LRUCache[bytes, list[RunPiece]] = LRUCache(_LISTED, getsizeof=len)

    # --- what loaders fetched

    async def keep(self, version: ReadVersion, pieces: Sequence[RunPiece]) -> None:
        """Tie stored items, and the bytes between them, to their object. Without room, a run is not tied."""
        for run in joined(pieces):
            data = encode_run(run)
            with suppress(LarderError):
                blob = await self._store.create(len(data))
                try:
                    ref = await blob.commit(data)
                finally:
                    blob.end()
                row = await self.tie(version, run_number(run[0].start), ref)
                if row is not None and version.identity is None:
                    await self._demote_blocks(row, run[0].start, run[-1].stop)

    async def tie(self, version: ReadVersion, number: int, ref: BlobRef) -> ObjectRecord | None:
        """Tie a blob to its object, under a number as policies/reads/granularity.py defines them, unless the object was written
        since the read."""
        row = await self._store.record(
            version.key,
            version.meta,
            self._block_size,
            {number: ref},
            generation=version.generation,
            confirmed_at=version.asked_at,
            grants={} if version.identity is None else {version.identity: version.asked_at},
            used_at=self._now(),
        )
        if row is not None:
            await self.adopt(version, row)
        return row

    async def _demote_blocks(self, row: ObjectRecord, start: int, stop: int) -> None:
        """Have the blocks from which a run was copied evicted first, if items have all of their bytes."""
        size, whole = row.block_size, row.meta.size
        blocks = await self._store.blocks(row.row_id, start // size, (stop - 1) // size)
        copied = [
            ref.digest
            for number, ref in blocks.items()
            if await self.covers(row.row_id, number * size, min((number + 1) * size, whole))
        ]
        await self._store.pools.demote(copied)

    # --- what S3 readers get

    async def covers(self, row_id: int, start: int, stop: int) -> bool:
        """Whether lists name all of the bytes [start, stop) of an object, at most the next ``FORESEEN``."""
        stop, at = min(stop, start + FORESEEN), start
        for _, pieces in await self._of(row_id, start, stop):
            for piece in _following(pieces, at):
                at = piece.stop
        return at >= stop > start

    async def read(self, row_id: int, start: int, stop: int) -> Gathered | None:
        """Bytes of an object from ``start`` on, before ``stop``; ``None`` if no item has the first byte, or memory is short."""
        pieces, digest, end = list[RunPiece](), b"", min(stop, start + CHUNK)
        for ref, listed in await self._of(row_id, start, end):
            more = list(_following(listed, pieces[-1].stop if pieces else start, end))
            digest = digest or (ref.digest if more else b"")
            pieces += more
        size = min(pieces[-1].stop, stop) - start if pieces else 0
        if not size or self._memory.used + size > MEMORY:
            return None
        memory = MemoryLease(self._memory, size)
        try:
            data, wrong = await self._store.bounded(partial(_gather, self._store.directory, pieces, start, stop))
        except (LarderError, OSError):
            return None
        if wrong:
            self._store.items.distrust(wrong)
        if not data:
            return None
        READ_FROM_ITEMS.inc(len(data))
        return Gathered(data, digest, memory)

    async def _of(self, row_id: int, start: int, stop: int) -> list[tuple[BlobRef, list[RunPiece]]]:
        """The lists of runs that may have some of the bytes [start, stop), in the order of their places."""
        first, last = run_number(max(0, start - _REACH)), run_number(max(start, stop - 1))
        refs = await self._store.blocks(row_id, first, last)
        lists = []
        for number in sorted(refs):
            pieces = await self._list(refs[number])
            if pieces and pieces[0].start == number - RUNS:
                lists.append((refs[number], pieces))
        return lists

    async def _list(self, ref: BlobRef) -> list[RunPiece]:
        pieces = self._lists.get(ref.digest)
        if pieces is None:
            try:
                blob = await self._store.open_blob(ref)
                pieces = decode_run(await self._store.read_cold(blob.fd, blob.size, 0))
            except (BlobGone, LarderError, OSError, ValueError):
                return []
            if len(pieces) <= _LISTED:
                self._lists[ref.digest] = pieces
        return pieces


def _following(pieces: Sequence[RunPiece], at: int, end: float = float("inf")) -> Iterator[RunPiece]:
    """The pieces of a list from the piece with byte ``at`` on, until a piece reaches ``end``."""
    for piece in pieces:
        if piece.start <= at < piece.stop and at < end:
            yield piece
            at = piece.stop


def _gather(directory: CacheDirectory, pieces: Sequence[RunPiece], start: int, stop: int) -> tuple[bytes, bytes]:
    """The bytes [start, stop) of pieces up to the first missing or wrong item; also its digest if it is wrong."""
    parts: list[memoryview | bytes] = []
    wrong = b""
    for piece in pieces:
        data = _item(directory, piece) if piece.digest else piece.data
        if piece.digest and sha256(data).digest() != piece.digest:
            wrong = piece.digest if data else b""
            break
        parts.append(memoryview(data)[max(0, start - piece.start) : stop - piece.start])
    return b"".join(parts), wrong


def _item(directory: CacheDirectory, piece: RunPiece) -> bytes:
    """The bytes of an item's file; empty if there is no file."""
    try:
        descriptor = directory.open_blob(piece.digest)
    except FileNotFoundError:
        return b""
    try:
        return pread(descriptor, piece.stop - piece.start, 0)
    finally:
        close(descriptor)
