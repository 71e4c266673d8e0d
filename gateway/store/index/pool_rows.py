"""Operations on pools: their blobs, the order of eviction, and counts.

Each takes a connection inside a transaction. Ranks come from the pools' eviction orders (gateway/policies/pools.py); triggers
keep the sums (schema.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from sqlite3 import Connection
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from gateway.model.access import Access
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.eviction.order import BlobFacts, EvictionOrder, Ledger
from gateway.policies.pools import (
    DEFAULT,
    OF_KEYS,
    STREAM,
    Pool,
    dataset_pool,
    ghost_window,
    order_named,
    pools_of_key,
)
from gateway.store.index.objects import MOST_TIES
from gateway.store.index.schema import DEFAULT_POOL, NODE, listed
from gateway.store.shared.accesses import Folded

T = TypeVar("T")
_PAGE = 500
_TRIMMED = 64
"""The most ghosts that are deleted at a time."""
_NOBODY = OriginIdentity("", "")
_NONE: Mapping[bytes, float] = MappingProxyType({})
_COLUMNS = (
    "id, name, eviction, target, minimum, bytes, fresh, ghosts, fresh_ghosts, adapted, retired, "
    "blobs, hits, misses, ghost_hits, evicted_blobs, evicted_bytes, elements"
)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool in the index. ``retired``: no longer defined; ``settle`` moves its blobs."""

    id: int
    pool: Pool
    ledger: Ledger
    retired: bool
    blobs: int
    hits: int
    misses: int
    ghost_hits: int
    evicted_blobs: int
    evicted_bytes: int
    elements: int

    @property
    def order(self) -> EvictionOrder:
        """The pool's eviction order."""
        return order_named(self.pool.order)

    @property
    def remembers(self) -> bool:
        """Whether evicted blobs are remembered: for the order, or to measure how a skewed stream would gain from more space."""
        measured = self.pool.name.startswith(STREAM) and self.pool.order == LeastRecentlyUsed.name
        return self.order.remembers or measured


class Entering(NamedTuple):
    """Why a blob enters the cache: the access, and the intended pool. An object's stream pool takes precedence over ``default``.

    ``reads`` is 0 for a blob loaded ahead. ``score``: see ``BlobFacts``.
    """

    access: Access
    pool: str = DEFAULT
    reads: int = 1
    score: float | None = None


class NewBlob(NamedTuple):
    """A blob about to enter. ``item``: it is stored as an item. ``mtime_ns`` and ``boot``: see ``blob_rows.BlobRow``.

    ``elements``: the parts that something is tied to; 1 if it is wanted as a whole.
    """

    digest: bytes
    size: int
    crc32: int
    mtime_ns: int
    boot: int
    entry: Entering
    item: bool = False
    elements: int = 1


def _row(
    row: tuple[int, str, str, int, int, int, int, int, int, float, int, int, int, int, int, int, int, int],
) -> PoolRow:
    number, name, order, target, minimum, size, fresh, ghosts, fresh_ghosts, adapted, retired, *counters = row
    pool = Pool(name, target, order, minimum)
    return PoolRow(number, pool, Ledger(target, size, fresh, ghosts, fresh_ghosts, adapted), bool(retired), *counters)


def pools(connection: Connection) -> dict[int, PoolRow]:
    """All pools, by number."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM pools WHERE id <> {NODE}")  # noqa: S608
    return {row[0]: _row(row) for row in rows}


def _pool(connection: Connection, *names: str) -> PoolRow:
    """The active pool among ``names`` with the longest name; ``default`` if there is none."""
    marks, padded = listed(names)
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM pools WHERE name IN ({marks}, '{DEFAULT}') AND NOT retired "  # noqa: S608
        f"ORDER BY name = '{DEFAULT}', length(name) DESC LIMIT 1",
        padded,
    ).fetchone()
    return _row(row)


def pools_of(connection: Connection, entering: Sequence[Entering]) -> list[PoolRow]:
    """The active pool of each blob that enters."""
    wanted = [_wanted(entry) for entry in entering]
    selected = connection.execute(
        f"SELECT {_COLUMNS} FROM pools WHERE name IN (SELECT value FROM json_each(?)) AND NOT retired",  # noqa: S608
        (json.dumps([DEFAULT, *chain.from_iterable(wanted)]),),
    )
    rows = {row[1]: _row(row) for row in selected}
    return [next((rows[name] for name in names if name in rows), rows[DEFAULT]) for names in wanted]


def _wanted(entry: Entering) -> tuple[str, ...]:
    key = entry.access.key
    return (entry.pool,) if entry.pool != DEFAULT or isinstance(key, str) else pools_of_key(key)


def holder(connection: Connection, digest: bytes) -> PoolRow | None:
    """The pool that a blob is charged to; ``None`` if the blob has no row."""
    row = connection.execute("SELECT pool FROM blobs WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else pools(connection).get(row[0])


def define(connection: Connection, wanted: Iterable[Pool]) -> None:
    """Define exactly these pools, one of them ``default``; all other pools are retired.

    A pool whose order changes is retired too, because ranks of one order mean nothing in another. ``settle`` moves its blobs to
    the new pool of that name.
    """
    connection.execute("UPDATE pools SET retired = 1 WHERE id <> ?", (NODE,))
    for pool in wanted:
        connection.execute(
            "UPDATE pools SET name = name || '#' || id WHERE name = ? AND eviction <> ?", (pool.name, pool.order)
        )
        connection.execute(
            "INSERT INTO pools (name, eviction, target, minimum) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "target = excluded.target, minimum = excluded.minimum, retired = 0",
            (pool.name, pool.order, pool.target, pool.minimum),
        )
    _forget_empty(connection)


def settle(connection: Connection, now: float, limit: int) -> int:
    """Move at most ``limit`` blobs of retired pools; returns their number.

    They go to the pool that has the name now, or else to ``default``. If they all went through ``default``, they would exceed
    its target and be evicted first.
    """
    blobs = connection.execute(
        "SELECT digest, pool FROM blobs WHERE pool IN (SELECT id FROM pools WHERE retired AND blobs > 0) LIMIT ?",
        (limit,),
    ).fetchall()
    rows = pools(connection)
    moving: dict[int, list[bytes]] = {}
    for digest, number in blobs:
        moving.setdefault(number, []).append(digest)
    for number, digests in moving.items():
        charge(connection, digests, rows[number].pool.name.removesuffix(f"#{number}"), now)
    _forget_empty(connection)
    return len(blobs)


def _forget_empty(connection: Connection) -> None:
    """Delete empty retired pools and their ghosts."""
    empty = f"SELECT id FROM pools WHERE retired AND blobs = 0 AND id <> {NODE}"  # noqa: S608
    connection.execute(f"DELETE FROM ghosts WHERE pool IN ({empty})")  # noqa: S608
    connection.execute(f"DELETE FROM pools WHERE id IN ({empty})")  # noqa: S608


def charge(
    connection: Connection, digests: Sequence[bytes], name: str, now: float, scores: Mapping[bytes, float] = _NONE
) -> int:
    """Move blobs to a pool; returns how many were in another pool."""
    row = _pool(connection, name)
    entering = []
    for page in _pages(digests):
        marks, padded = listed(page)
        blobs = connection.execute(
            f"SELECT digest, size FROM blobs WHERE digest IN ({marks}) AND pool <> ?",  # noqa: S608
            (*padded, row.id),
        ).fetchall()
        for digest, size in blobs:
            access = Access(row.pool.name, 0, digest, False, now, _NOBODY)
            facts = BlobFacts(row.ledger, size, reads=0, score=scores.get(digest))
            entering.append((row.id, row.order.rank(access, facts, now), digest))
    connection.executemany("UPDATE blobs SET pool = ?, rank = ? WHERE digest = ?", entering)
    return len(entering)


def demote(connection: Connection, digests: Sequence[bytes]) -> None:
    """Have blobs of the pool ``default`` evicted first until they are used again, because other blobs have their bytes too.

    Items of datasets keep their rank.
    """
    for page in _pages(digests):
        marks, padded = listed(page)
        connection.execute(
            f"UPDATE blobs SET rank = 0 WHERE digest IN ({marks}) AND pool = ? AND item = 0 AND rank > 0",  # noqa: S608
            (*padded, DEFAULT_POOL),
        )


class Walked(NamedTuple):
    """How far objects have been looked at: the key, and the last of its ties if there are more; -1 if all were."""

    key: str = ""
    number: int = -1


def charge_below(connection: Connection, place: ObjectKey, after: Walked, now: float, limit: int) -> Walked | None:
    """Move the blobs of objects below a prefix to the pools of their streams; blobs of datasets stay.

    Args:
        connection: inside a transaction.
        place: origin and bucket, with the prefix as its key.
        after: where to begin.
        now: seconds since the epoch.
        limit: maximum number of objects; of ties, see ``MOST_TIES``.

    Returns:
        Where to go on; ``None`` at the end.
    """
    following = ">" if after.number < 0 else ">="
    objects = connection.execute(
        "SELECT id, key FROM objects WHERE origin = ? AND bucket = ? AND key >= ? "  # noqa: S608
        f"AND key {following} ? ORDER BY key LIMIT ?",
        (place.origin, place.bucket, place.key, after.key, limit),
    ).fetchall()
    keys = {number: key for number, key in objects if key.startswith(place.key)}
    rows = pools(connection)
    numbers = _numbers(rows)
    movable = _movable(rows)
    moved: dict[str, dict[bytes, None]] = {}
    left, reached = MOST_TIES, Walked(objects[-1][1]) if len(keys) == limit else None
    for row_id, key in keys.items():
        ties = connection.execute(
            "SELECT no, digest, pool FROM object_blocks CROSS JOIN blobs USING (digest) "
            "WHERE object_id = ? AND no > ? ORDER BY no LIMIT ?",
            (row_id, after.number if key == after.key else -1, left),
        ).fetchall()
        names = pools_of_key(place._replace(key=key))
        name = next((name for name in names if name in numbers), DEFAULT)
        for _, digest, pool in ties:
            if pool in movable and numbers[name] != pool:
                moved.setdefault(name, {})[digest] = None
        left -= len(ties)
        if not left:
            reached = Walked(key, ties[-1][0])
            break
    for name, digests in moved.items():
        charge(connection, list(digests), name, now)
    return reached


def charge_object(connection: Connection, key: ObjectKey, span: tuple[int, int] | None, name: str, now: float) -> None:
    """Move the blobs of an object that was loaded ahead, or of the blocks in a span of it, to a pool; as unread ones.

    Blobs of datasets stay, and all do if there is no such pool. For the most ties of an object, see ``MOST_TIES``.
    """
    rows = pools(connection)
    if name not in _numbers(rows):
        return
    movable, (start, stop) = _movable(rows), span or (0, 2**62)
    ties = connection.execute(
        "SELECT digest, pool FROM objects CROSS JOIN object_blocks ON object_id = objects.id CROSS JOIN blobs USING (digest) "
        "WHERE origin = ? AND bucket = ? AND key = ? AND no * block_size >= ? AND no * block_size < ? LIMIT ?",
        (*key, start, stop, MOST_TIES),
    )
    charge(connection, [digest for digest, pool in ties if pool in movable], name, now)


def _movable(rows: Mapping[int, PoolRow]) -> set[int]:
    """The pools that blobs of objects may leave, by number: those of datasets keep theirs."""
    return {number for number, row in rows.items() if row.pool.name == DEFAULT or row.pool.name.startswith(OF_KEYS)}


def lowest(connection: Connection, name: str, limit: int) -> list[tuple[bytes, int]]:
    """The first blobs in a pool's eviction order, at most ``limit``: digests and sizes."""
    return connection.execute(
        "SELECT digest, size FROM blobs WHERE pool = (SELECT id FROM pools WHERE name = ?) ORDER BY rank LIMIT ?",
        (name, limit),
    ).fetchall()


def _numbers(rows: Mapping[int, PoolRow]) -> dict[str, int]:
    """The ids of the active pools, by name."""
    return {row.pool.name: number for number, row in rows.items() if not row.retired}


def enter(connection: Connection, new: NewBlob, now: float) -> None:
    """Insert or refresh a blob's row. A blob charged to another dataset stays charged to that dataset."""
    row = _pool(connection, *_wanted(new.entry))
    known = connection.execute("SELECT pool, rank FROM blobs WHERE digest = ?", (new.digest,)).fetchone()
    if known is not None and known[0] != row.id:
        charged = pools(connection)[known[0]]
        if not charged.retired and charged.pool.name != DEFAULT:
            row = charged
    stays = known is not None and known[0] == row.id
    ghost = None
    if not stays and row.remembers:
        ghost = _recall(connection, row.id, new.digest)
    facts = BlobFacts(row.ledger, new.size, known[1] if stays else None, new.entry.reads, ghost, new.entry.score)
    rank = row.order.rank(new.entry.access, facts, now)
    connection.execute(
        "INSERT INTO blobs (digest, size, crc32, rank, mtime_ns, boot, item, pool, elements) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (digest) DO UPDATE SET rank = excluded.rank, pool = excluded.pool, mtime_ns = excluded.mtime_ns, "
        "boot = excluded.boot, item = max(item, excluded.item), elements = max(elements, excluded.elements)",
        (new.digest, new.size, new.crc32, rank, new.mtime_ns, new.boot, new.item, row.id, new.elements),
    )
    if row.remembers:
        if ghost is not None:
            connection.execute(
                "UPDATE pools SET ghost_hits = ghost_hits + 1, adapted = ? WHERE id = ?",
                (row.order.adapted(facts), row.id),
            )
        trim(connection, row)


def note_uses(connection: Connection, folded: Folded, now: float) -> None:
    """Update the ranks of used blobs, and count hits and misses."""
    uses = folded.uses
    rows = pools(connection)
    ranked: list[tuple[float, bytes]] = []
    hits = dict.fromkeys(rows, 0)
    for page in _pages(list(uses)):
        marks, padded = listed(page)
        statement = f"SELECT digest, pool, rank, size FROM blobs WHERE digest IN ({marks})"  # noqa: S608
        blobs = connection.execute(statement, padded)
        for digest, number, rank, size in blobs:
            row, use = rows[number], uses[digest]
            hits[number] += use.reads
            after = row.order.rank(use.last, BlobFacts(row.ledger, size, rank, use.reads), now)
            if after != rank:
                ranked.append((after, digest))
    connection.executemany("UPDATE blobs SET rank = ? WHERE digest = ?", ranked)
    connection.executemany(
        "UPDATE pools SET hits = hits + ? WHERE id = ?", [(count, number) for number, count in hits.items() if count]
    )
    connection.executemany(
        "UPDATE pools SET misses = misses + ? WHERE id = ?",
        [(count, number) for number, count in _missed(rows, folded.misses).items()],
    )


def _missed(rows: Mapping[int, PoolRow], misses: Mapping[ObjectKey | str, int]) -> Counter[int]:
    """Misses, by the id of the pool to which the blob would have been charged."""
    numbers = _numbers(rows)
    counts: Counter[int] = Counter()
    for key, count in misses.items():
        names = (dataset_pool(key),) if isinstance(key, str) else pools_of_key(key)
        counts[next((numbers[name] for name in names if name in numbers), numbers[DEFAULT])] += count
    return counts


def _recall(connection: Connection, pool: int, digest: bytes) -> float | None:
    """Delete a ghost and return its rank; ``None`` if there is none."""
    row = connection.execute("SELECT rank FROM ghosts WHERE pool = ? AND digest = ?", (pool, digest)).fetchone()
    if row is None:
        return None
    connection.execute("DELETE FROM ghosts WHERE pool = ? AND digest = ?", (pool, digest))
    return float(row[0])


def trim(connection: Connection, row: PoolRow) -> None:
    """Delete the oldest ghosts. For a stream, keep the window that measures its benefit.

    If the order needs ghosts, the target bounds each side, and both together (ARC, figure 4, case IV).
    """
    pool = row.id
    if not row.order.remembers:
        connection.execute(
            "DELETE FROM ghosts WHERE pool = ? AND id <= "
            "(SELECT id FROM ghosts WHERE pool = ? AND fresh = 0 ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (pool, pool, ghost_window(row.blobs)),
        )
        return
    size, target, fresh, ghosts, fresh_ghosts = connection.execute(
        "SELECT bytes, target, fresh, ghosts, fresh_ghosts FROM pools WHERE id = ?", (pool,)
    ).fetchone()
    over = {1: fresh + fresh_ghosts - target, 0: size + ghosts - 2 * target}
    for side in (1, 0):
        for number, ghost in connection.execute(
            "SELECT id, size FROM ghosts WHERE pool = ? AND fresh = ? ORDER BY id LIMIT ?", (pool, side, _TRIMMED)
        ).fetchall():
            if over[side] <= 0:
                break
            connection.execute("DELETE FROM ghosts WHERE id = ?", (number,))
            over[side] -= ghost
            over[0] -= ghost if side else 0


class Miscount(NamedTuple):
    """The error of one pool's stored counts; ``size`` and ``fresh`` are in bytes."""

    pool: int
    size: int
    blobs: int
    fresh: int
    elements: int


def miscount(connection: Connection) -> list[Miscount]:
    """The pools with wrong counts. A single statement, so that all values are from one moment."""
    rows = connection.execute(
        "WITH held AS (SELECT pool, sum(size) AS size, count(*) AS blobs, sum(size * (rank < 0)) AS fresh, "
        "sum(elements) AS elements FROM blobs GROUP BY pool "
        "UNION ALL SELECT 0, sum(size), count(*), sum(size * (rank < 0)), sum(elements) FROM blobs), "
        "wrong AS (SELECT pools.id, coalesce(held.size, 0) - bytes AS size, coalesce(held.blobs, 0) - pools.blobs AS blobs, "
        "coalesce(held.fresh, 0) - pools.fresh AS fresh, coalesce(held.elements, 0) - pools.elements AS elements "
        "FROM pools LEFT JOIN held ON held.pool = pools.id) "
        "SELECT id, size, blobs, fresh, elements FROM wrong WHERE size <> 0 OR blobs <> 0 OR fresh <> 0 OR elements <> 0"
    )
    return [Miscount(*row) for row in rows]


def correct(connection: Connection, differences: Iterable[Miscount]) -> None:
    """Add the differences found by ``miscount``; counts by other workers since then are kept."""
    connection.executemany(
        "UPDATE pools SET bytes = bytes + ?, blobs = blobs + ?, fresh = fresh + ?, elements = elements + ? WHERE id = ?",
        [
            (difference.size, difference.blobs, difference.fresh, difference.elements, difference.pool)
            for difference in differences
        ],
    )


def _pages(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _PAGE):
        yield values[start : start + _PAGE]
