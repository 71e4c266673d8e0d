"""An index of 25 million objects: bytes on disk, time to open, look-ups, evictions and memory.

Usage: python -m lab.benchmarks.index_large [--objects 25000000]

It is not part of ``make bench``, as the index takes about 500 bytes an object. It has rows and no files, so ``index_million``
measures recovery, which compares both. Ranks are random, as in a cache that is used: evictions touch the index all over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gateway.base.config import CacheSettings
from gateway.model.keys import ObjectKey
from gateway.store.shared.generations import slots_of
from gateway.store.store import Store
from lab.benchmarks.index_million import HEADERS, LOOKUPS, SIZE, create, resident_megabytes
from lab.benchmarks.report import machine, write

OBJECTS = 25_000_000
SMALL = 100_000
CHUNK = 100_000
PAGES = 4_000_000
"""Kilobytes of pages that the builder keeps in memory."""


def _key(number: int) -> ObjectKey:
    return ObjectKey("default", "imagenet", f"train/n{number // 1000:08d}/n{number // 1000:08d}_{number}.JPEG")


def _rows(objects: int) -> Iterator[tuple[int, bytes, float]]:
    """Number, digest and rank of every blob; digests are ascending, as inserting them in random order would take hours."""
    draw, step = random.Random(1), 2**64 // objects
    for number in range(objects):
        yield number, (number * step).to_bytes(8, "big") + draw.randbytes(24), draw.random() * 1e9


def build(root: str, objects: int) -> None:
    """Build an index of objects with one blob each."""
    asyncio.run(create(root))
    connection = sqlite3.connect(f"{root}/index.db", isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA cache_size = -{PAGES}")
    rows = _rows(objects)
    first = connection.execute(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'objects'), 0)"
    ).fetchone()[0]
    while chunk := list(islice(rows, CHUNK)):
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO blobs (digest, size, crc32, rank, mtime_ns, boot) VALUES (?, ?, 0, ?, 0, 0)",
            ((digest, SIZE, rank) for _, digest, rank in chunk),
        )
        connection.executemany(
            "INSERT INTO objects (id, origin, bucket, key, slot, etag, size, last_modified, headers, checksums, block_size,"
            " confirmed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '[]', 4194304, 0)",
            (
                (first + 1 + number, *key, slots_of(key)[0], f'"{digest[:16].hex()}"', SIZE, "", HEADERS)
                for number, digest, _ in chunk
                for key in (_key(number),)
            ),
        )
        connection.executemany(
            "INSERT INTO object_blocks (object_id, no, digest) VALUES (?, 0, ?)",
            ((first + 1 + number, digest) for number, digest, _ in chunk),
        )
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def measure(root: str, objects: int) -> dict[str, float]:
    """Open the index, look objects up, and evict some, in a separate process."""
    settings = CacheSettings(dir=root, capacity=objects * SIZE, reserve=0)
    before, began = resident_megabytes(), time.perf_counter()
    store = await Store.open(settings, now=time.time)
    opened = time.perf_counter() - began
    draw, latencies = random.Random(2), []
    for _ in range(LOOKUPS):
        key = _key(draw.randrange(objects))
        began = time.perf_counter()
        record = await store.lookup(key)
        latencies.append(time.perf_counter() - began)
        if record is None:
            raise RuntimeError(f"{key} is not in the index")
    after = resident_megabytes()
    await store.try_lock()
    began = time.perf_counter()
    await store.make_room(2 * SIZE)
    seconds, evicted = time.perf_counter() - began, store.status().evicted_blobs
    await store.close()
    return {
        "index on disk [bytes per object]": sum(each.stat().st_size for each in Path(root).glob("index.db*")) / objects,
        "open [ms]": opened * 1e3,
        "look-up, median [us]": statistics.median(latencies) * 1e6,
        "look-up, p99 [us]": statistics.quantiles(latencies, n=100)[-1] * 1e6,
        "memory after look-ups [MB more]": after - before,
        "blobs evicted in one stride": evicted,
        "evictions per second": evicted / seconds,
    }


def run(objects: int = OBJECTS) -> None:
    """Build a small and a large index, measure each, and write the results."""
    where, found, built = machine(), [], 0.0
    with tempfile.TemporaryDirectory(prefix="larder-index-") as temporary:
        for count in (SMALL, objects):
            root = f"{temporary}/{count}"
            began = time.perf_counter()
            build(root, count)
            built = time.perf_counter() - began
            command = [sys.executable, "-m", "lab.benchmarks.index_large", "--measure", root, "--objects", str(count)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    data = {"objects": [SMALL, objects], "built": built, "small": found[0], "large": found[1]}
    write("index_large", data, where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(asyncio.run(measure(chosen.measure, chosen.objects))))
    else:
        run(chosen.objects)
