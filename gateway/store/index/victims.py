"""Chooses the blobs to evict: from each pool that exceeds its target, in the pool's eviction order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sqlite3 import Connection
from types import MappingProxyType
from typing import NamedTuple

from gateway.policies.eviction.order import EVERYTHING, Ledger
from gateway.policies.eviction.uniform import Uniform
from gateway.policies.pools import Balance, Overdrafts
from gateway.store.index.pool_rows import PoolRow, pools, trim
from gateway.store.index.schema import listed


class EvictionGoal(NamedTuple):
    """The demand for eviction: ``wanted`` bytes and ``files`` blobs at least, ``limit`` blobs at most.

    ``first``: for each pool with the order ``uniform``, blobs that leave before its other blobs, in this order.
    """

    wanted: int
    files: int
    limit: int
    first: Mapping[str, Sequence[bytes]] = MappingProxyType({})


def victims(connection: Connection, goal: EvictionGoal) -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
    """The next blobs to evict, and separately those of ended pools. They become ghosts where their pools' orders remember
    blobs."""
    rows = pools(connection)
    book = Overdrafts(
        Balance(number, row.ledger.size, row.pool.target, row.pool.minimum, row.pool.whole and not row.retired)
        for number, row in rows.items()
    )
    queues = {number: _Queue(connection, row, goal) for number, row in rows.items()}
    chosen: list[tuple[bytes, int]] = []
    ended: list[tuple[bytes, int]] = []
    freed = count = 0
    while (freed < goal.wanted or count < goal.files) and count < goal.limit:
        number = book.furthest()
        if number is None:
            break
        victim = queues[number].head()
        if victim is None or not book.debit(victim[1]):
            book.exhausted()
            continue
        queues[number].leave()
        (ended if rows[number].pool.ended else chosen).append(victim[:2])
        freed, count = freed + victim[1], count + 1
    for queue in queues.values():
        queue.write()
    return chosen, ended


class _Queue:
    """The blobs of one pool in eviction order, while victims are chosen."""

    def __init__(self, connection: Connection, row: PoolRow, goal: EvictionGoal) -> None:
        self._connection = connection
        self._row = row
        self._limit = goal.limit
        self._first = goal.first.get(row.pool.name, ()) if row.order.name == Uniform.name else ()
        self._ledger = row.ledger
        self._ahead: dict[tuple[float, float], Iterator[tuple[bytes, int, float]]] = {}
        self._left: dict[bytes, tuple[int, float]] = {}
        self._head: tuple[bytes, int, float] | None = None

    def head(self) -> tuple[bytes, int, float] | None:
        """The next victim: digest, size, rank; ``None`` if the pool is empty."""
        if self._head is None:
            span = self._row.order.victims(self._ledger)
            self._head = self._next(span) or self._next(EVERYTHING)
        return self._head

    def leave(self) -> None:
        """Remove the next victim from the queue."""
        assert self._head is not None
        digest, size, rank = self._head
        self._left[digest] = (size, rank)
        if self._row.order.remembers:
            self._ledger = without(self._ledger, size, rank)
        self._head = None

    def write(self) -> None:
        """Count the victims, and store them as ghosts if the order remembers them."""
        if not self._left:
            return
        self._connection.execute(
            "UPDATE pools SET evicted_blobs = evicted_blobs + ?, evicted_bytes = evicted_bytes + ? WHERE id = ?",
            (len(self._left), sum(size for size, _ in self._left.values()), self._row.id),
        )
        if self._row.remembers:
            # Not REPLACE, which does not fire the delete trigger of the replaced row.
            self._connection.executemany(
                "DELETE FROM ghosts WHERE pool = ? AND digest = ?", [(self._row.id, digest) for digest in self._left]
            )
            self._connection.executemany(
                "INSERT INTO ghosts (pool, digest, size, rank, fresh) VALUES (?, ?, ?, ?, ?)",
                [(self._row.id, digest, max(1, size), rank, rank < 0) for digest, (size, rank) in self._left.items()],
            )
            if not self._row.order.remembers:
                trim(self._connection, self._row)

    def _next(self, span: tuple[float, float]) -> tuple[bytes, int, float] | None:
        ahead = self._ahead.get(span)
        if ahead is None:
            rows = self._connection.execute(
                "SELECT digest, size, rank FROM blobs WHERE pool = ? AND rank >= ? AND rank < ? ORDER BY rank LIMIT ?",
                (self._row.id, *span, self._limit),
            )
            ahead = self._ahead[span] = iter([*self._preferred(), *rows.fetchall()])
        for row in ahead:
            if row[0] not in self._left:
                return row
        return None

    def _preferred(self) -> list[tuple[bytes, int, float]]:
        """Those preferred blobs that are in the pool."""
        if not self._first:
            return []
        marks, padded = listed(self._first)
        statement = f"SELECT digest, size, rank FROM blobs WHERE pool = {self._row.id:d} AND digest IN ({marks})"  # noqa: S608 - "?"
        rows = {row[0]: row for row in self._connection.execute(statement, padded)}
        return [rows[digest] for digest in self._first if digest in rows]


def without(pool: Ledger, size: int, rank: float) -> Ledger:
    """The ledger without a blob that has left the pool."""
    fresh = size if rank < 0 else 0
    return Ledger(
        pool.target, pool.size - size, pool.fresh - fresh, pool.ghosts + size, pool.fresh_ghosts + fresh, pool.adapted
    )
