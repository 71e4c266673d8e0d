"""Indexes of other versions: an older one is migrated in place, a newer one is left alone."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import pytest

from gateway.store.index.migrations import migrate
from gateway.store.index.schema import SCHEMA_VERSION, open_engine
from gateway.store.store import Store
from rig.consistency import assert_index_equals_disk
from tests.stores import BLOCK, get, key_of, put, query

NOW = 1_790_000_000.0
YEARS = 10 * 365 * 86_400.0


def old_cache(root: Path, contents: dict[str, bytes], used: dict[str, float] | None = None) -> None:
    """A cache as a gateway of schema 2 left it: objects with one blob each, used at 1, 2, 3 ... unless said otherwise."""
    (root / "blobs").mkdir(parents=True)
    index = sqlite3.connect(root / "index.db")
    index.executescript((Path(__file__).parent / "index_2.sql").read_text())
    index.executemany("INSERT INTO meta VALUES (?, ?)", [("born", 1), ("schema", 2)])
    index.execute("INSERT INTO spaces VALUES ('node', 0, 0)")
    for number, (name, content) in enumerate(contents.items(), 1):
        digest = sha256(content).digest()
        path = root / "blobs" / digest.hex()[:2] / digest.hex()[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        last_used = (used or {}).get(name, float(number))
        index.execute(
            "INSERT INTO blobs (digest, size, crc32, last_used, mtime_ns, boot) VALUES (?, ?, ?, ?, ?, 0)",
            (digest, len(content), crc32(content), last_used, path.stat().st_mtime_ns),
        )
        index.execute(
            "INSERT INTO objects VALUES (?, 'default', 'bucket', ?, 0, '\"e1\"', ?, 'then', ?, NULL, ?, ?)",
            (number, name, len(content), json.dumps([["Content-Type", "a/b"]]), BLOCK, float(number)),
        )
        index.execute("INSERT INTO object_blocks VALUES (?, 0, ?)", (number, digest))
        index.execute("INSERT INTO grants VALUES (?, 'default/AK', 5.0)", (number,))
    index.commit()
    index.close()


async def test_a_cache_of_schema_2_is_kept(open_store, root: Path) -> None:
    """Rule: objects, bytes and grants of an older cache are served after the migration, and counted in the pool ``default``."""
    contents = {f"k{number}": b"%d" % number * 100 for number in range(20)}
    old_cache(root, contents)
    store: Store = await open_store()
    assert {name: await get(store, name) for name in contents} == contents
    record = await store.lookup(key_of("k3"))
    assert record is not None
    assert await store.grants(record.row_id) == {"default/AK": 5.0}
    size = sum(map(len, contents.values()))
    assert [(row.pool.name, row.ledger.size, row.blobs) for row in await store.pools.usage()] == [("default", size, 20)]
    assert await store.try_lock()
    report = await store.recover()
    assert (report.orphans, report.broken, report.miscounted) == (0, 0, 0)
    assert_index_equals_disk(root)


async def test_eviction_goes_on_in_the_order_of_before(open_store, root: Path) -> None:
    """Rule: the time of last use becomes the rank, so eviction continues in the earlier version's order."""
    old_cache(root, {f"{number}": b"%04d" % number * 250 for number in range(10)})
    store = await open_store(capacity=10_000)
    assert await store.try_lock()
    await store.sweep()
    assert [await store.lookup(key_of(f"{number}")) is not None for number in range(10)] == [False] + [True] * 9


async def test_times_ahead_do_not_outlast_the_migration(open_store, root: Path) -> None:
    """Rule: version 2's times ten years ahead become the time of the migration, so later reads stay longer."""
    old_cache(root, {"ahead": b"a" * 1000, "plain": b"p" * 1000}, {"ahead": NOW + YEARS})
    await open_store()
    found = dict(
        query(root, "SELECT key, rank FROM blobs JOIN object_blocks USING (digest) JOIN objects ON id = object_id")
    )
    assert found["plain"] == 2.0
    assert 2.0 < found["ahead"] < NOW + YEARS


async def test_a_killed_migration_goes_on_at_the_next_start(open_store, root: Path) -> None:
    """Rule: a process that dies in the middle leaves the old index; the next start migrates it and has everything."""
    contents = {f"k{number}": b"%d" % number * 100 for number in range(20)}
    old_cache(root, contents)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.store.index import migrations, schema\n"
        "migrations.create_schema = lambda *_: os._exit(9)\n"
        "connection = schema.open_engine(Path(sys.argv[1]), patience=1).connect()\n"
        "schema.prepare_connection(connection)\n"
        "migrations.migrate(connection, 1)\n"
    )
    command = [sys.executable, "-c", program, str(root / "index.db")]
    died = await asyncio.to_thread(subprocess.run, command, check=False)
    assert died.returncode == 9
    assert query(root, "SELECT value FROM meta WHERE name = 'schema'") == [(2,)]
    store = await open_store()
    assert {name: await get(store, name) for name in contents} == contents
    assert query(root, "SELECT value FROM meta WHERE name = 'schema'") == [(SCHEMA_VERSION,)]


async def test_a_newer_index_is_left_alone(open_store, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: the index of a newer version is refused with a message and left unchanged."""
    first = await open_store()
    await put(first, "a", b"abc")
    await first.close()
    change_schema(root, SCHEMA_VERSION + 1)
    refused = await open_store()
    assert (refused.status().state, refused.status().cause) == ("down", "newer")
    assert "newer version of Larder" in caplog.text
    assert await refused.lookup(key_of("a")) is None
    await refused.close()
    change_schema(root, SCHEMA_VERSION)
    assert await get(await open_store(), "a") == b"abc"


async def test_an_unknown_schema_is_damage(open_store, root: Path) -> None:
    """Rule: a version that never was is a damaged index: its sound rows are kept, and checked with the origin."""
    first = await open_store()
    await put(first, "a", b"abc")
    await first.close()
    change_schema(root, 1)
    store = await open_store()
    record = await store.lookup(key_of("a"))
    assert record is not None
    assert record.confirmed_at == 0
    assert store.status().state == "normal"


def test_a_migrated_index_is_like_a_new_one(tmp_path: Path) -> None:
    """Rule: after a migration the index has the tables, columns, indexes and triggers of a new one."""

    def shape(path: Path) -> object:
        with open_engine(path, patience=1).connect() as connection:
            migrate(connection, 1)
        index = sqlite3.connect(path)
        tables = index.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {
            name: index.execute(f"SELECT name, type FROM pragma_table_info('{name}')").fetchall() for (name,) in tables
        }
        others = index.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type <> 'table' AND sql IS NOT NULL AND type = 'trigger' "
            "UNION ALL SELECT type, name, '' FROM sqlite_master WHERE type = 'index' ORDER BY 2"
        ).fetchall()
        index.close()
        return {name: sorted(found) for name, found in columns.items()}, others

    old_cache(tmp_path / "old", {"a": b"a"})
    assert shape(tmp_path / "old" / "index.db") == shape(tmp_path / "new.db")


def change_schema(root: Path, version: int) -> None:
    """Mark the index as written by another version."""
    index = sqlite3.connect(root / "index.db")
    index.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (version,))
    index.commit()
    index.close()
