"""Whether the index of a cache and its disk agree, seen from outside."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path


def files_of(root: Path) -> dict[str, int]:
    """Digests (hex) and sizes of the blob files."""
    sizes = {}
    for path in (root / "blobs").glob("*/*"):
        # Another worker's keeper may remove a file at this moment.
        with suppress(FileNotFoundError):
            sizes[path.parent.name + path.name] = path.stat().st_size
    return sizes


def assert_index_equals_disk(root: Path) -> None:
    """Check that every blob has a file and every file a blob, and that ties, objects, grants and the pools' counts match."""
    connection = sqlite3.connect(root / "index.db", timeout=10)
    try:
        rows = dict(connection.execute("SELECT lower(hex(digest)), size FROM blobs").fetchall())
        pools = connection.execute(
            "SELECT id, bytes, blobs, fresh, elements FROM pools WHERE blobs OR id = 0 ORDER BY id"
        ).fetchall()
        counted = "count(*), coalesce(sum(size * (rank < 0)), 0), coalesce(sum(elements), 0)"
        charged = connection.execute(
            f"SELECT 0, coalesce(sum(size), 0), {counted} FROM blobs "
            f"UNION ALL SELECT pool, sum(size), {counted} FROM blobs GROUP BY pool ORDER BY 1"
        ).fetchall()
        miscounted = connection.execute(
            "SELECT digest, elements FROM blobs WHERE elements <> max(1, (SELECT count(DISTINCT start << 32 | length) "
            "FROM object_blocks WHERE object_blocks.digest = blobs.digest))"
        ).fetchall()
        loose = connection.execute(
            "SELECT (SELECT count(*) FROM blobs WHERE NOT item AND digest NOT IN (SELECT digest FROM object_blocks)), "
            "(SELECT count(*) FROM object_blocks WHERE digest NOT IN (SELECT digest FROM blobs)), "
            "(SELECT count(*) FROM objects WHERE id NOT IN (SELECT object_id FROM object_blocks)), "
            "(SELECT count(*) FROM object_blocks WHERE object_id NOT IN (SELECT id FROM objects)), "
            "(SELECT count(*) FROM grants WHERE object_id NOT IN (SELECT id FROM objects))"
        ).fetchone()
    finally:
        connection.close()
    assert rows == files_of(root)
    assert pools == charged, "pools as counted, pools as charged"
    assert miscounted == [], "pages with another number of elements"
    assert loose == (0, 0, 0, 0, 0), "blobs, ties without blob, objects, ties without object, grants"
