"""Records the results of fills: objects, their blobs, and grants.

When many clients read new data, many fills end together. A statement costs more than the row it writes, because the threads of
the process compete for the interpreter after each. So waiting recordings are written a page at a time, and objects without a row
(the majority) by one statement per table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from sqlite3 import Connection
from types import MappingProxyType
from typing import NamedTuple

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobPart, ObjectMeta, ObjectRecord
from gateway.policies.eviction.order import BlobFacts
from gateway.store.index import blob_rows, objects, pool_rows
from gateway.store.index.blob_rows import Counts, Kept
from gateway.store.index.objects import Recorded
from gateway.store.index.pool_rows import Entering, NewBlob
from gateway.store.index.schema import ROWS, insert
from gateway.store.index.seals import WHOLE, grant_seal, tie_seal

_ANYBODY = OriginIdentity("", "")
"""The reader of a fill is recorded with the access that missed, and not with the blob."""
_OBJECTS = (
    "objects (origin, bucket, key, slot, etag, size, last_modified, headers, checksums, block_size, seal, confirmed_at)"
)
_BLOBS = "blobs (digest, size, crc32, rank, mtime_ns, boot, item, pool, elements)"
_TIES = "object_blocks (object_id, no, digest, seal, start, length, crc32)"
_TIE = f"INSERT OR REPLACE INTO {_TIES} VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_WHOLES: Mapping[int, BlobPart] = MappingProxyType({})
_GRANTS = "grants (object_id, identity, granted_at, seal)"


class Recording(NamedTuple):
    """The input of ``record`` for one object.

    ``used_at`` is the blocks' last use, which may be long after ``confirmed_at``. ``still_valid`` is called in the transaction.
    ``parts``: by number, if the blocks are parts of their blobs.
    """

    key: ObjectKey
    meta: ObjectMeta
    block_size: int
    blocks: Mapping[int, Kept]
    confirmed_at: float
    grants: Mapping[str, float]
    used_at: float
    still_valid: Callable[[], bool]
    parts: Mapping[int, BlobPart] = _WHOLES

    def refused(self, *loose: bytes) -> Recorded:
        """The result if nothing was written; the recording's blobs and ``loose`` may lack rows."""
        return Recorded(None, (*(block.ref.digest for block in self.blocks.values()), *loose))

    def is_of(self, row: ObjectRecord) -> bool:
        """Whether a row is for the same version of the object, with the same block size."""
        meta = self.meta
        return (row.meta.etag, row.meta.size, row.block_size) == (meta.etag, meta.size, self.block_size)

    def row(self, row_id: int) -> ObjectRecord:
        """The row to insert if the object has none."""
        return ObjectRecord(row_id, self.meta, self.block_size, self.confirmed_at)

    def columns(self) -> tuple[object, ...]:
        """The values of ``_OBJECTS``, in order."""
        return (*self.key, *objects.sealed(self.key, self.meta, self.block_size), self.confirmed_at)


class _Arrived(NamedTuple):
    """A recording, and its blocks whose files exist, with their modification times."""

    recording: Recording
    present: Mapping[int, tuple[Kept, int]]

    def sizes(self) -> dict[bytes, int]:
        """Bytes of the blobs, by digest."""
        return {block.ref.digest: block.ref.size for block, _ in self.present.values()}

    def ties(self, row_id: int) -> list[tuple[object, ...]]:
        """The rows that tie its blocks to the object."""
        refs = [(number, block.ref) for number, (block, _) in self.present.items()]
        part_of = self.recording.parts.get
        return [
            (row_id, number, digest, tie_seal(row_id, number, digest, size, crc, part := part_of(number, WHOLE)), *part)
            for number, (digest, size, crc) in refs
        ]

    def blobs(self) -> list[NewBlob]:
        """Its blobs about to enter a pool."""
        key, used_at, parts = self.recording.key, self.recording.used_at, self.recording.parts
        numbers: dict[bytes, list[int]] = {}
        for number, (block, _) in self.present.items():
            numbers.setdefault(block.ref.digest, []).append(number)
        blobs = []
        for digest, named in numbers.items():
            block, mtime_ns = self.present[named[0]]
            entering = Entering(Access(key, named[0], digest, False, used_at, _ANYBODY))
            elements = len({parts[number][:2] for number in named}) if parts else 1
            blobs.append(blob_rows.entered(block, mtime_ns, entering, elements=elements))
        return blobs


def record(
    connection: Connection, recordings: Sequence[Recording], capacity: int, now: Callable[[], float]
) -> list[tuple[Recorded, Counts]]:
    """Record objects, as described at ``Store.record``; returns each result with the node's totals.

    Args:
        connection: inside a transaction.
        recordings: the objects, in the order in which their fills ended.
        capacity: of the node, in bytes.
        now: the clock, in seconds since the epoch.
    """
    results: list[Recorded] = []
    counts = blob_rows.counts(connection)
    for start in range(0, len(recordings), ROWS):
        page = recordings[start : start + ROWS]
        recorded, counts = _record_page(connection, page, capacity, now(), counts)
        results += recorded
    return [(recorded, counts) for recorded in results]


class ItemEntry(NamedTuple):
    """A committed blob to store as an item, if the node stays within ``capacity`` bytes; see ``keep_items``."""

    blob: Kept
    entry: Entering
    capacity: int


def keep_items(
    connection: Connection, items: Sequence[ItemEntry], now: Callable[[], float]
) -> list[tuple[bool, Counts]]:
    """Insert the rows of items; returns whether each has one (its file may be gone, or room lacking), and the node's totals.

    Files are evicted under the write lock that this transaction holds, so they cannot vanish before the commit.
    """
    held: set[bytes] = set()
    for start in range(0, len(items), ROWS):
        held |= blob_rows.held(connection, [item.blob.ref.digest for item in items[start : start + ROWS]])
    counts, taken, entering, kept = blob_rows.counts(connection), set(held), list[NewBlob](), list[bool]()
    for item in items:
        ref = item.blob.ref
        mtime_ns = _mtime_of(item.blob)
        new = ref.digest not in taken
        kept.append(mtime_ns is not None and (not new or counts.size + ref.size <= item.capacity))
        if mtime_ns is not None and kept[-1]:
            entering.append(blob_rows.entered(item.blob, mtime_ns, item.entry, item=True))
            taken.add(ref.digest)
            counts = Counts(counts.size + new * ref.size, counts.blobs + new)
    _enter(connection, entering, held, now())
    return [(done, counts) for done in kept]


def _record_page(
    connection: Connection, page: Sequence[Recording], capacity: int, now: float, counts: Counts
) -> tuple[list[Recorded], Counts]:
    known = objects.present(connection, [recording.key for recording in page])
    results: dict[int, Recorded] = {}
    new: dict[int, _Arrived] = {}
    for place, recording in enumerate(page):
        if recording.key in known:
            continue
        present = _present(recording)
        if present:
            new[place] = _Arrived(recording, present)
            known.add(recording.key)
        else:
            results[place] = recording.refused()
    held = blob_rows.held(connection, [digest for arrived in new.values() for digest in arrived.sizes()])
    taken = set(held)
    for place, arrived in tuple(new.items()):
        entering = {digest: size for digest, size in arrived.sizes().items() if digest not in taken}
        after = Counts(counts.size + sum(entering.values()), counts.blobs + len(entering))
        if entering and after.size > capacity:
            results[place] = new.pop(place).recording.refused()
        else:
            counts = after
            taken |= entering.keys()
    results.update(zip(new, _insert(connection, tuple(new.values()), held, now), strict=True))
    rest = [place for place in range(len(page)) if place not in results]
    for place in rest:
        results[place] = _merge(connection, page[place], capacity, now)
    return [results[place] for place in range(len(page))], blob_rows.counts(connection) if rest else counts


def _present(recording: Recording) -> dict[int, tuple[Kept, int]]:
    """The blocks whose files exist, with their modification times; none if the recording is no longer valid.

    Files are evicted under the write lock that this transaction holds, so they cannot vanish before the commit.
    """
    blocks, times = {}, dict[bytes, int | None]()
    for number, block in recording.blocks.items() if recording.still_valid() else ():
        digest = block.ref.digest
        if digest not in times:
            times[digest] = _mtime_of(block)
        if (mtime_ns := times[digest]) is not None:
            blocks[number] = (block, mtime_ns)
    return blocks


def _mtime_of(block: Kept) -> int | None:
    """The modification time of a blob's file; ``None`` if the file is gone or has another size."""
    try:
        status = os.stat(block.path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns if status.st_size == block.ref.size else None


def _insert(connection: Connection, arrived: Sequence[_Arrived], held: Collection[bytes], now: float) -> list[Recorded]:
    """Insert objects without a row; ``held`` has those of their blobs' digests that have a row."""
    if not arrived:
        return []
    rows = [arrival.recording.columns() for arrival in arrived]
    last = insert(connection, _OBJECTS, rows)
    # SQLite numbers the rows of one statement consecutively, and the write lock excludes other writers.
    first = last - len(rows) + 1
    _enter(connection, [blob for arrival in arrived for blob in arrival.blobs()], held, now)
    insert(connection, _TIES, [tie for row_id, arrival in enumerate(arrived, first) for tie in arrival.ties(row_id)])
    grants = [
        (row_id, *grant, grant_seal(row_id, *grant))
        for row_id, arrival in enumerate(arrived, first)
        for grant in arrival.recording.grants.items()
    ]
    insert(connection, _GRANTS, grants)
    return [Recorded(arrival.recording.row(row_id)) for row_id, arrival in enumerate(arrived, first)]


def _enter(connection: Connection, blobs: Sequence[NewBlob], held: Collection[bytes], now: float) -> None:
    """Enter blobs into their pools: in one statement if they have no row and their order does not depend on other blobs."""
    together: dict[bytes, tuple[object, ...]] = {}
    rest = []
    for new, row in zip(blobs, pool_rows.pools_of(connection, [new.entry for new in blobs]), strict=True):
        if new.digest in held or new.digest in together or row.remembers:
            rest.append(new)
            continue
        rank = row.order.rank(
            new.entry.access, BlobFacts(row.ledger, new.size, reads=new.entry.reads, score=new.entry.score), now
        )
        together[new.digest] = (
            *(new.digest, new.size, new.crc32, rank, new.mtime_ns, new.boot),
            *(new.item, row.id, new.elements),
        )
    insert(connection, _BLOBS, tuple(together.values()))
    for new in rest:
        pool_rows.enter(connection, new, now)


def _merge(connection: Connection, recording: Recording, capacity: int, now: float) -> Recorded:
    """Record an object that may have a row, for the same version or another one."""
    if not recording.still_valid():
        return recording.refused()
    arrived = _Arrived(recording, _present(recording))
    if not blob_rows.fit(connection, arrived.sizes(), capacity):
        return recording.refused()
    old = objects.lookup(connection, recording.key)
    if old is not None and recording.is_of(old):
        return _extend(connection, old, arrived, now)
    replaced = [] if old is None else objects.delete(connection, [old.row_id])
    if not arrived.present:
        return recording.refused(*objects.drop_untied(connection, replaced))
    (recorded,) = _insert(connection, [arrived], blob_rows.held(connection, list(arrived.sizes())), now)
    return Recorded(recorded.record, tuple(objects.drop_untied(connection, replaced)))


def _extend(connection: Connection, old: ObjectRecord, arrived: _Arrived, now: float) -> Recorded:
    """Add blocks and newer metadata to an object's row."""
    recording = arrived.recording
    row = objects.refresh(connection, recording.key, old, recording.meta, recording.confirmed_at, now)
    replaced = objects.tied(connection, row.row_id, arrived.present)
    for blob in arrived.blobs():
        pool_rows.enter(connection, blob, now)
    connection.executemany(_TIE, arrived.ties(row.row_id))
    if recording.parts:
        blob_rows.count_elements(connection, replaced)
    for identity, granted_at in recording.grants.items():
        objects.grant(connection, row.row_id, identity, granted_at)
    return Recorded(row, tuple(objects.drop_untied(connection, replaced)))
