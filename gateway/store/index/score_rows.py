"""Operations on pools whose blobs are ranked by jobs' scores instead of accesses. Each runs within a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from sqlite3 import Connection

from gateway.policies.items.importance import PoolLevel
from gateway.store.index import blob_rows


def rank(connection: Connection, name: str, scores: Mapping[bytes, float]) -> set[bytes]:
    """Rank at most 500 of a pool's blobs by new scores; returns the digests that have a row, in this pool or another."""
    connection.executemany(
        "UPDATE blobs SET rank = ? WHERE digest = ? AND pool = (SELECT id FROM pools WHERE name = ?)",
        [(score, digest, name) for digest, score in scores.items()],
    )
    return blob_rows.held(connection, tuple(scores))


def level(connection: Connection, name: str) -> PoolLevel | None:
    """Fill level of the active pool with this name; ``None`` if there is none."""
    row = connection.execute(
        "SELECT bytes, target, (SELECT rank FROM blobs WHERE pool = pools.id ORDER BY rank LIMIT 1) FROM pools "
        "WHERE name = ? AND NOT retired",
        (name,),
    ).fetchone()
    return None if row is None else PoolLevel(*row)
