"""Index of a million objects: time to open, memory, look-up latency against a small index, recovery.

Usage: python -m lab.benchmarks.index_million [--objects 1000000]

Builds both caches with bulk inserts and sparse blob files, then measures each in a process of its own. The files have
the right sizes and no contents, which is all that opening, look-ups and recovery look at.
"""

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import random
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateway.base.config import CacheSettings
from gateway.model.keys import ObjectKey
from gateway.store.shared.generations import slots_of
from gateway.store.store import Store
from lab.benchmarks.load import raw_request
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, origin

SMALL = 1000
SIZE = 110 * 1024
LOOKUPS = 4000
READY_BUDGET = 5.0
"""Seconds."""
MEMORY_BUDGET = 300.0
"""The most additional MB, compared with the small index."""
HIT_BUDGET = 1.2
"""The largest latency, as a multiple of that with the small index; the median of one connection varies by a tenth."""
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
    for shard in range(256):
        Path(root, "blobs", f"{shard:02x}").mkdir(exist_ok=True)
    connection.execute("BEGIN")
    first: dict[str, str] = {}
    for number in range(objects):
        key, digest = key_of(number), hashlib.sha256(b"%d" % number).digest()
        connection.execute(
            "INSERT INTO blobs (digest, size, crc32, rank, mtime_ns, boot) VALUES (?, ?, 0, ?, 0, 0)",
            (digest, SIZE, float(number)),
        )
        connection.execute(
            "INSERT INTO objects (origin, bucket, key, slot, etag, size, last_modified, headers, checksums, block_size,"
            " confirmed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, '[]', 4194304, 0)",
            (key.origin, key.bucket, key.key, slots_of(key)[0], f'"{digest[:16].hex()}"', SIZE, "", HEADERS),
        )
        connection.execute(
            "INSERT INTO object_blocks (object_id, no, digest) VALUES (last_insert_rowid(), 0, ?)", (digest,)
        )
        name = digest.hex()
        _make_file(f"{root}/blobs/{name[:2]}", name[2:], first)
    connection.execute("COMMIT")
    connection.close()


def _make_file(folder: str, name: str, first: dict[str, str]) -> None:
    """Make a sparse file: all files of a folder are hard links to its first, which takes a fifth of the time."""
    path = f"{folder}/{name}"
    if folder in first:
        os.link(first[folder], path)
        return
    first[folder] = path
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, SIZE)
    os.close(descriptor)


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
    await store.try_lock()
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


def measure_gateway(top: Path, cache: Path) -> dict[str, float]:
    """A real gateway on that cache: seconds until it is ready, its memory, and the latency of a hit."""
    directory = top / f"gateway-{cache.name}"
    root = directory / "objects"
    directory.mkdir()
    key = make_many(root, "one", 1, SIZE)[0]
    with origin(directory, root) as source:
        began = time.perf_counter()
        with gateway(directory, source.port, cache) as server:
            while not _is_ready(server.port):
                time.sleep(0.01)
            ready = time.perf_counter() - began
            during = [_get(server.port, key) for _ in range(LOOKUPS // 4)]
            _wait_until_idle(server)
            latencies = [_get(server.port, key) for _ in range(LOOKUPS)]
            return {
                "gateway ready [s]": ready,
                "gateway RSS [MB]": server.rss() / 1e6,
                "hit of 110 KiB right after the start, median [us]": statistics.median(during[100:]) * 1e6,
                "hit of 110 KiB after recovery, median [us]": statistics.median(latencies[100:]) * 1e6,
            }


def _wait_until_idle(server: Running) -> None:
    """Wait for the end of recovery, which compares index and disk in the background after a start."""
    busy = 1.0
    while busy > 0.05:
        before = server.cpu_seconds()
        time.sleep(1)
        busy = server.cpu_seconds() - before


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/-/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _get(port: int, key: str) -> float:
    """Seconds for one GET on a new connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        request = raw_request(port, key)
        began = time.perf_counter()
        connection.sendall(request)
        received = connection.recv(1 << 20)
        if not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(received.decode(errors="replace"))
        left = SIZE - len(received.partition(b"\r\n\r\n")[2])
        while left > 0:
            left -= len(connection.recv(1 << 20))
        return time.perf_counter() - began


def run(objects: int = 1_000_000) -> None:
    """Build both caches, measure each, and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-index-") as temporary:
        top = Path(temporary)
        results = []
        for count in (SMALL, objects):
            root = top / f"{count}"
            build(str(root), count)
            command = [
                sys.executable,
                "-m",
                "lab.benchmarks.index_million",
                "--measure",
                str(root),
                "--objects",
                str(count),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append({**json.loads(done.stdout), **measure_gateway(top, root)})
        small, large = results
        data = {"objects": [SMALL, objects], "small": small, "large": large}
        write("index_million", data, where, _judged(small, large))


def _judged(small: dict[str, float], large: dict[str, float]) -> list[Ratio]:
    memory, hit = "gateway RSS [MB]", "hit of 110 KiB after recovery, median [us]"
    return [
        Ratio("seconds until a gateway with a million objects is ready", large["gateway ready [s]"], READY_BUDGET),
        Ratio("MB of memory that a million objects take", large[memory] - small[memory], MEMORY_BUDGET),
        Ratio("latency of a hit: a million objects / a thousand", large[hit] / small[hit], HIT_BUDGET),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(asyncio.run(measure(chosen.measure, chosen.objects))))
    else:
        run(chosen.objects)
