"""Cost of eviction and of recording a hit, beside another checkout in the same run.

Usage: python -m lab.benchmarks.eviction --against PATH_OF_ANOTHER_CHECKOUT [--rounds 5]

Each round measures this tree and the other one in turn, in separate processes: evicting 10,000 blobs of 64 bytes (rows, then
files) from a cache of 20,000, and the cost of each of 200,000 hits on 1,000 blobs until they are in the index. Medians are
compared.
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.benchmarks.report import machine, write

BLOBS, EVICTED, SIZE = 20_000, 10_000, 64
HITS, READ = 200_000, 1_000
HERE = Path(__file__).resolve().parents[2]


async def fill(root: str) -> Any:
    """A store of the measured tree, with blobs of different ages."""
    from gateway.base.config import CacheSettings
    from gateway.store.store import Store

    store = await Store.open(CacheSettings(dir=root, capacity=BLOBS * SIZE, reserve=0), now=time.time)
    digests = [hashlib.sha256(b"%d" % number).digest() for number in range(BLOBS)]
    for digest in digests:
        path = store.directory.blob_path(digest)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, SIZE)
        os.close(descriptor)

    def rows(connection: Any) -> None:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(blobs)")}
        age = "rank" if "rank" in columns else "last_used"
        connection.executemany(
            f"INSERT INTO blobs (digest, size, crc32, {age}, mtime_ns, boot, item) VALUES (?, ?, 0, ?, 0, 0, 1)",
            [(digest, SIZE, float(number)) for number, digest in enumerate(digests)],
        )

    await store._disk.write(rows)
    return store, digests


async def measure() -> dict[str, float]:
    """Seconds for the evictions, microseconds of CPU for each hit."""
    with tempfile.TemporaryDirectory() as root:
        store, digests = await fill(root)
        hit_of = hitting(store)
        began = time.process_time()
        for number in range(HITS):
            hit_of(digests[number % READ], 1e9 + number)
        await store.sweep()
        await store._disk.write(lambda connection: None)
        hit = (time.process_time() - began) / HITS
        assert await store.try_lock()
        before, cpu = time.perf_counter(), time.process_time()
        await store._evictor.free(EVICTED * SIZE - int(0.1 * BLOBS * SIZE))
        took = {"evicting [s]": time.perf_counter() - before, "evicting, CPU [s]": time.process_time() - cpu}
        assert store.status().evicted_blobs == EVICTED, store.status().evicted_blobs
        await store.close()
    return {**took, "hit, CPU [us]": hit * 1e6}


def hitting(store: Any) -> Callable[[bytes, float], None]:
    """The work of a hit without sending: record that a blob was read."""
    if hasattr(store, "touch"):
        return store.touch  # type: ignore[no-any-return]
    record = store.accesses.record
    return lambda digest, now: record(_ACCESS(_KEY, 0, digest, True, now, _CLIENT))


if "--measure" in sys.argv:
    try:
        from gateway.model.access import Access as _ACCESS
        from gateway.model.keys import ObjectKey, OriginIdentity

        _KEY, _CLIENT = ObjectKey("default", "bucket", "key"), OriginIdentity("default", "AK")
    except ImportError:
        pass


def one(tree: Path) -> dict[str, float]:
    """A round of one tree."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure"]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{HERE}"}
    ran = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def run() -> None:
    """Compare, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    where = machine()
    rounds = [(one(HERE), one(asked.against.resolve())) for _ in range(asked.rounds)]
    medians = {
        name: [statistics.median(turn[side][name] for turn in rounds) for side in (0, 1)] for name in rounds[0][0]
    }
    write("eviction", {"rounds": asked.rounds, "medians": medians}, where)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(asyncio.run(measure())))
    else:
        run()
