"""How an index of a million objects behaves: time to open, memory, look-up latency against a small index, recovery.

Usage: python benchmarks/index_million.py [--objects 1000000] [--directory DIR] [--keep]

Builds both caches with bulk inserts and sparse blob files, then measures each in a process of its own. The files have
the right sizes and no contents, which is all that opening, look-ups and recovery look at.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateway.config import CacheSettings
from gateway.model.keys import ObjectKey
from gateway.store.generations import slot_of
from gateway.store.store import Store

SMALL = 1000
SIZE = 110 * 1024
LOOKUPS = 4000
HEADERS = json.dumps([["Content-Type", "image/jpeg"], ["Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT"]])


def settings(root: str) -> CacheSettings:
    return CacheSettings(dir=root, capacity="10TB", reserve=0)


def key_of(number: int) -> ObjectKey:
    return ObjectKey("default", "imagenet", f"train/n{number % 1000:08d}/n{number % 1000:08d}_{number}.JPEG")


async def create(root: str) -> None:
    store = await Store.open(settings(root), now=time.time)
    await store.close()


def build(root: str, objects: int) -> None:
    asyncio.run(create(root))
    connection = sqlite3.connect(f"{root}/index.db", isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for number in range(objects):
        key, digest = key_of(number), hashlib.sha256(b"%d" % number).digest()
        connection.execute("INSERT INTO blobs VALUES (?, ?, 0, ?, 0, 0)", (digest, SIZE, float(number)))
        connection.execute(
            "INSERT INTO objects (origin, bucket, key, slot, etag, size, last_modified, headers, checksums, block_size,"
            " confirmed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, '[]', 4194304, 0)",
            (key.origin, key.bucket, key.key, slot_of(key), f'"{digest[:16].hex()}"', SIZE, "", HEADERS),
        )
        connection.execute("INSERT INTO object_blocks VALUES (last_insert_rowid(), 0, ?)", (digest,))
        name = digest.hex()
        path = f"{root}/blobs/{name[:2]}/{name[2:]}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, SIZE)
        os.close(descriptor)
    connection.execute("COMMIT")
    connection.close()


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(root: str, objects: int) -> dict[str, float]:
    before = resident_megabytes()
    began = time.perf_counter()
    store = await Store.open(settings(root), now=time.time)
    opened = time.perf_counter() - began
    chosen = random.Random(1)
    latencies = []
    for _ in range(LOOKUPS):
        key = key_of(chosen.randrange(objects))
        began = time.perf_counter()
        record = await store.lookup(key)
        latencies.append(time.perf_counter() - began)
        assert record is not None
    looked_up = resident_megabytes()
    store.try_lock()
    began = time.perf_counter()
    report = await store.recover()
    recovered = time.perf_counter() - began
    assert (report.blobs, report.orphans, report.broken) == (objects, 0, 0)
    began = time.perf_counter()
    await store.sweep()
    swept = time.perf_counter() - began
    after = resident_megabytes()
    await store.close()
    return {
        "open [s]": opened,
        "lookup median [us]": statistics.median(latencies) * 1e6,
        "lookup p99 [us]": statistics.quantiles(latencies, n=100)[-1] * 1e6,
        "RSS growth after lookups [MB]": looked_up - before,
        "recover [s]": recovered,
        "sweep [ms]": swept * 1e3,
        "RSS growth after recovery [MB]": after - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--directory", default="")
    parser.add_argument("--keep", action="store_true", help="leave the caches for another run")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(asyncio.run(measure(chosen.measure, chosen.objects))))
        return
    top = Path(chosen.directory or tempfile.mkdtemp(prefix="larder-index-"))
    results = []
    try:
        for objects in (SMALL, chosen.objects):
            root = top / f"{objects}"
            if not root.exists():
                began = time.perf_counter()
                build(str(root), objects)
                print(f"built {objects} objects in {time.perf_counter() - began:.0f} s", flush=True)
            command = [sys.executable, __file__, "--measure", str(root), "--objects", str(objects)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    finally:
        if not chosen.keep:
            shutil.rmtree(top)
    print(f"{'':32}{SMALL:>12}{chosen.objects:>12}")
    for name, small in results[0].items():
        print(f"{name:32}{small:>12.2f}{results[1][name]:>12.2f}")


if __name__ == "__main__":
    main()
