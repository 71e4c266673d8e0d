"""Operations on results of pipelines (gateway/model/results.py). Each takes a connection.

A collection is an object: the tie of number i names the page with result i, and its place there. A PUT of a thousand results is
one transaction, which also decides which results to store: the first worker wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any, NamedTuple

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobPart, ObjectMeta
from gateway.model.results import PutResult, collection_key, earlier_key
from gateway.policies.items.results import judged
from gateway.policies.pools import RESULTS
from gateway.store.index import blob_rows, objects, pool_rows, recording, seals
from gateway.store.index.blob_rows import BlobRow, Counts, Kept
from gateway.store.index.pool_rows import Entering
from gateway.store.index.recording import Recording

_FIND = (
    "SELECT no, object_blocks.seal, start, length, object_blocks.crc32, "
    "blobs.digest, blobs.size, blobs.crc32, blobs.mtime_ns, blobs.boot "
    "FROM object_blocks JOIN blobs ON blobs.digest = object_blocks.digest "
    "WHERE object_id = ? AND no IN (SELECT value FROM json_each(?))"
)
_EARLIER = "SELECT 1 FROM objects WHERE origin = ? AND bucket = ? AND key > ? AND key < ? LIMIT 1"
"""Whether there is a result of a release before pages."""
_FIND_EARLIER = (
    "SELECT objects.key, objects.seal, slot, etag, objects.size, last_modified, headers, checksums, block_size, confirmed_at, "
    "objects.id, no, object_blocks.seal, blobs.digest, blobs.size, blobs.crc32, blobs.mtime_ns, blobs.boot FROM objects "
    "JOIN object_blocks ON object_blocks.object_id = objects.id JOIN blobs ON blobs.digest = object_blocks.digest "
    "WHERE origin = ? AND bucket = ? AND key IN (SELECT value FROM json_each(?))"
)
_LEAVES = (
    "SELECT 1 FROM blobs WHERE digest = ?1 AND pool = ?2 AND NOT item "
    "AND (SELECT count(*) FROM object_blocks WHERE digest = ?1) = ?3"
)
"""Whether a blob is charged to a pool and needed by so many results alone."""
_META = ObjectMeta('"results"', 0, "")
"""A collection has no bytes of its own, and one version: results of one name are equal."""
_NOBODY = OriginIdentity("", "")


class ResultLimits(NamedTuple):
    """The limits for storing results.

    Args:
        largest: bytes of the largest result.
        unplanned: bytes that a collection without a pool may still store.
        replace: whether results replace those that are stored.
    """

    largest: int
    unplanned: int
    replace: bool = False


class StoredResult(NamedTuple):
    """The page of a result, and its place there. ``earlier``: it is the file of a release before pages."""

    blob: BlobRow
    part: BlobPart
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class NewPage:
    """A committed page, and the places of its results by index. Results of equal bytes have one place."""

    kept: Kept
    parts: Mapping[int, BlobPart]


class PutRows(NamedTuple):
    """The outcome of each result by index, digests that may lack a row, and the node's totals."""

    results: dict[int, PutResult]
    loose: list[bytes]
    counts: Counts


def find(connection: Connection, collection: str, indices: Iterable[int]) -> dict[int, StoredResult]:
    """The places of those results that are stored.

    Raises:
        DiskFault: CORRUPT if a row is not as it was written.
    """
    wanted, stored = list(indices), dict[int, StoredResult]()
    key = collection_key(collection)
    row = objects.lookup(connection, key)
    if row is not None:
        blobs: dict[bytes, BlobRow] = {}
        for number, seal, *values in connection.execute(_FIND, (row.row_id, json.dumps(wanted))):
            part, digest = tuple(values[:3]), values[3]
            blob = blobs.get(digest)
            if blob is None:
                blob = blobs[digest] = blob_rows.as_row(values[3:])
            sound = seals.tie_is_sound(row.row_id, number, digest, blob.size, blob.crc32, seal, part)
            if part == seals.WHOLE or not sound:
                raise seals.damaged("the row of a result")
            stored[number] = StoredResult(blob, BlobPart(*part))
    if len(stored) < len(wanted):
        stored |= _earlier(connection, collection, [index for index in wanted if index not in stored])
    return stored


def _earlier(connection: Connection, collection: str, indices: Sequence[int]) -> dict[int, StoredResult]:
    """Results that a release before pages has stored."""
    place = collection_key(collection)
    if not connection.execute(_EARLIER, (*place[:2], f"{place.key}/", f"{place.key}0")).fetchone():
        return {}
    keys = {earlier_key(collection, index).key: index for index in indices}
    rows = connection.execute(_FIND_EARLIER, (*place[:2], json.dumps(list(keys))))
    blobs = {keys[key]: _sound(place._replace(key=key), *row) for key, *row in rows}
    return {index: StoredResult(blob, BlobPart(0, blob.size, blob.crc32), True) for index, blob in blobs.items()}


def _sound(key: ObjectKey, seal: Any, *row: Any) -> BlobRow:
    """The blob of an earlier release's result.

    Raises:
        DiskFault: CORRUPT if a row is not as it was written.
    """
    *values, confirmed_at, row_id, number, tie = row[:11]
    blob = blob_rows.as_row(row[11:])
    if not seals.object_is_sound(key, values, confirmed_at, seal) or not seals.tie_is_sound(
        row_id, number, blob.digest, blob.size, blob.crc32, tie
    ):
        raise seals.damaged("the row of a result")
    return blob


def outlook(
    connection: Connection, collection: str, sizes: Mapping[int, int], limits: ResultLimits
) -> dict[int, PutResult]:
    """Predict, by index, the outcomes of a ``put`` of results of these sizes."""
    return _judged(connection, collection, sizes, limits, find(connection, collection, sizes))


def _judged(
    connection: Connection,
    collection: str,
    sizes: Mapping[int, int],
    limits: ResultLimits,
    known: Mapping[int, StoredResult],
) -> dict[int, PutResult]:
    access = Access(collection_key(collection), 0, b"", False, 0.0, _NOBODY)
    (row,) = pool_rows.pools_of(connection, [Entering(access)])
    planned = row.pool.name.startswith(RESULTS)
    room = row.pool.target - row.ledger.size if planned else limits.unplanned
    if not limits.replace:
        return judged(sizes, known, room, limits.largest)
    # A page leaves the pool only if all of its results are replaced.
    freed = _freed(connection, {index: known[index] for index in sizes if index in known}, row.id)
    while True:
        outcomes = judged(
            sizes, (), room, limits.largest, {indices[0]: known[indices[0]].blob.size for indices in freed.values()}
        )
        kept = [
            digest
            for digest, indices in freed.items()
            if any(outcomes[index] is not PutResult.STORED for index in indices)
        ]
        if not kept:
            return outcomes
        for digest in kept:
            del freed[digest]


def _freed(connection: Connection, known: Mapping[int, StoredResult], pool: int) -> dict[bytes, list[int]]:
    """The pages that a pool loses if these results are replaced, with their results.

    A blob with other uses stays; a blob charged to another pool frees no bytes here.
    """
    pages: dict[bytes, list[int]] = {}
    for index, stored in known.items():
        pages.setdefault(stored.blob.digest, []).append(index)
    return {
        digest: indices
        for digest, indices in pages.items()
        if connection.execute(_LEAVES, (digest, pool, len(indices))).fetchone()
    }


def put(
    connection: Connection,
    collection: str,
    pages: Sequence[NewPage],
    limits: ResultLimits,
    still_valid: Callable[[], bool],
    capacity: int,
    now: Callable[[], float],
) -> PutRows:
    """Record pages whose files exist.

    Results that have become known since their page was written remain bytes in it that nobody reads. A page with a result for
    which there is no room is refused, because all of its bytes would count.

    Args:
        connection: inside a transaction.
        collection: name of their collection.
        pages: in the order of the request.
        limits: of the collection.
        still_valid: whether the results may be recorded; called in the transaction.
        capacity: of the node, in bytes.
        now: seconds since the epoch.
    """
    sizes = {index: part.length for page in pages for index, part in page.parts.items()}
    known = find(connection, collection, sizes)
    outcomes = _judged(connection, collection, sizes, limits, known)
    fitting = [page for page in pages if not any(outcomes[index] is PutResult.FULL for index in page.parts)]
    chosen = [_chosen(page, outcomes) for page in fitting]
    new = [_recording(collection, page, now(), still_valid) for page in chosen if page.parts]
    recorded = recording.record(connection, new, capacity, now)
    loose = [digest for done, _ in recorded for digest in done.loose]
    loose += {page.kept.ref.digest for page in pages} - {page.kept.ref.digest for page in chosen if page.parts}
    stored = [index for page, (done, _) in zip(new, recorded, strict=True) if done.record for index in page.blocks]
    earlier = [index for index in stored if index in known and known[index].earlier]
    loose += objects.forget(connection, [earlier_key(collection, index) for index in earlier])
    for index in outcomes.keys() - stored:
        if outcomes[index] is PutResult.STORED:
            outcomes[index] = PutResult.FULL
    return PutRows(outcomes, loose, blob_rows.counts(connection))


def _chosen(page: NewPage, outcomes: Mapping[int, PutResult]) -> NewPage:
    """A page with those of its results that are to be stored."""
    return NewPage(
        page.kept, {index: part for index, part in page.parts.items() if outcomes[index] is PutResult.STORED}
    )


def _recording(collection: str, page: NewPage, now: float, still_valid: Callable[[], bool]) -> Recording:
    blocks = dict.fromkeys(page.parts, page.kept)
    return Recording(collection_key(collection), _META, 1, blocks, now, {}, now, still_valid, page.parts)
