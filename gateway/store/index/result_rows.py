"""Operations on results of pipelines, which are objects of one block (gateway/model/results.py). Each takes a connection.

A PUT of a thousand results is one transaction, which also decides which results to store: the first worker wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any, NamedTuple

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import ObjectMeta
from gateway.model.results import PutResult, result_key
from gateway.policies.items.results import judged
from gateway.policies.pools import RESULTS
from gateway.store.index import blob_rows, pool_rows, recording, seals
from gateway.store.index.blob_rows import BlobRow, Counts, Kept
from gateway.store.index.pool_rows import Entering
from gateway.store.index.recording import Recording

_FIND = (
    "SELECT objects.key, objects.seal, slot, etag, objects.size, last_modified, headers, checksums, block_size, confirmed_at, "
    "objects.id, no, object_blocks.seal, blobs.digest, blobs.size, blobs.crc32, blobs.mtime_ns, blobs.boot FROM objects "
    "JOIN object_blocks ON object_blocks.object_id = objects.id JOIN blobs ON blobs.digest = object_blocks.digest "
    "WHERE origin = ? AND bucket = ? AND key IN (SELECT value FROM json_each(?))"
)
_LEAVES = (
    "SELECT 1 FROM blobs WHERE digest = ?1 AND pool = ?2 AND NOT item "
    "AND (SELECT count(*) FROM object_blocks WHERE digest = ?1) = 1"
)
"""Whether a blob is charged to a pool and needed by one result alone."""
_VERSION = '"result"'
"""The ETag of all results, because those of one name are equal."""
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


@dataclass(frozen=True, slots=True)
class NewResult:
    """A committed blob that is to become the result of an item; ``still_valid`` is called in the transaction."""

    index: int
    kept: Kept
    still_valid: Callable[[], bool]


class PutRows(NamedTuple):
    """The outcome of each result by index, digests that may lack a row, and the node's totals."""

    results: dict[int, PutResult]
    loose: list[bytes]
    counts: Counts


def find(connection: Connection, collection: str, indices: Iterable[int]) -> dict[int, BlobRow]:
    """The blobs of those results that are stored."""
    keys = {result_key(collection, index).key: index for index in indices}
    place = result_key(collection, 0)
    rows = connection.execute(_FIND, (place.origin, place.bucket, json.dumps(list(keys))))
    return {keys[key]: _sound(ObjectKey(place.origin, place.bucket, key), *row) for key, *row in rows}


def _sound(key: ObjectKey, seal: Any, *row: Any) -> BlobRow:
    """The blob of a result.

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
    access = Access(result_key(collection, 0), 0, b"", False, 0.0, _NOBODY)
    (row,) = pool_rows.pools_of(connection, [Entering(access)])
    planned = row.pool.name.startswith(RESULTS)
    room = row.pool.target - row.ledger.size if planned else limits.unplanned
    known = find(connection, collection, sizes)
    if limits.replace:
        return judged(sizes, (), room, limits.largest, _freed(connection, known, row.id))
    return judged(sizes, known, room, limits.largest)


def _freed(connection: Connection, known: Mapping[int, BlobRow], pool: int) -> dict[int, int]:
    """Bytes that a pool loses when results are replaced, by index.

    A blob with other uses stays; a blob charged to another pool frees no bytes here.
    """
    freed = {}
    for index, blob in known.items():
        if connection.execute(_LEAVES, (blob.digest, pool)).fetchone():
            freed[index] = blob.size
    return freed


def put(
    connection: Connection,
    collection: str,
    results: list[NewResult],
    limits: ResultLimits,
    capacity: int,
    now: Callable[[], float],
) -> PutRows:
    """Record results whose files exist.

    Args:
        connection: inside a transaction.
        collection: name of their collection.
        results: in the order of the request.
        limits: of the collection.
        capacity: of the node, in bytes.
        now: seconds since the epoch.
    """
    sizes = {new.index: new.kept.ref.size for new in results}
    outcomes = outlook(connection, collection, sizes, limits)
    chosen = [new for new in results if outcomes[new.index] is PutResult.STORED]
    loose = [new.kept.ref.digest for new in results if outcomes[new.index] is not PutResult.STORED]
    recorded = recording.record(connection, [_recording(collection, new, now()) for new in chosen], capacity, now)
    for new, (done, _) in zip(chosen, recorded, strict=True):
        loose += done.loose
        if done.record is None:
            outcomes[new.index] = PutResult.FULL
    return PutRows(outcomes, loose, blob_rows.counts(connection))


def _recording(collection: str, new: NewResult, now: float) -> Recording:
    size = new.kept.ref.size
    meta = ObjectMeta(_VERSION, size, "")
    return Recording(
        result_key(collection, new.index), meta, max(1, size), {0: new.kept}, now, {}, now, new.still_valid
    )
