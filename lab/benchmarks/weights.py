"""Model weights from a warm gateway on the same machine: as open files of its cache, and by GET, beside local files.

The reader is another user than the gateway's, in a process of its own: only such a user gets open files. Each way reads all bytes
of all files into new buffers; everything is in the page cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.report import Ratio, machine, table, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, gateway, origin
from lab.benchmarks.turns import in_turn, medians_of
from larder import Credentials, open_objects
from larder.http.s3 import S3

FILES, LENGTH, REPEATS = 4, 512 * 1024**2, 5
NOBODY = 65534
PIECE = 64 * 1024**2
WAYS = ("local files", "open_objects", "GET")
BUDGET = 0.9


def _local(folder: str, name: str) -> int:
    with open(f"{folder}/{name}", "rb") as file:
        return len(file.read())


def _read(way: str, endpoint: str, folder: str) -> int:
    """The number of bytes read."""
    names = [f"shard-{number}" for number in range(FILES)]
    if way == "local files":
        return sum(_local(folder, name) for name in names)
    keys = Credentials(ACCESS_KEY, os.environ["BENCH_SECRET"])
    if way == "GET":
        store = S3(endpoint, credentials=keys)
        with ThreadPoolExecutor(FILES) as pool:
            return sum(pool.map(lambda name: len(store.get(BUCKET, name)), names))
    objects = open_objects([(BUCKET, name) for name in names], endpoint=endpoint, credentials=keys)
    reasons = {entry.reason for entry in objects}
    if reasons != {""}:
        raise RuntimeError(f"no open files: {reasons}")
    return sum(len(entry.read()) for entry in objects)


def _measure(way: str, endpoint: str, folder: Path) -> float:
    """Seconds that a way takes, in a process of another user."""
    command = [sys.executable, "-m", "lab.benchmarks.weights", "--read", way, endpoint, str(folder)]
    environ = {**os.environ, "BENCH_SECRET": SECRET_KEY}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, user=NOBODY, group=NOBODY)
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    if told["bytes"] != FILES * LENGTH:
        raise RuntimeError(f"{way}: {told['bytes']} bytes")
    return float(told["seconds"])


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        directory.chmod(0o755)
        root = directory / "objects"
        (root / BUCKET).mkdir(parents=True)
        for number in range(FILES):
            with (root / BUCKET / f"shard-{number}").open("wb") as file:
                for _ in range(LENGTH // PIECE):
                    file.write(os.urandom(PIECE))
        source = stack.enter_context(origin(directory, root))
        socket = directory / "socket"
        socket.mkdir(mode=0o755)
        server = stack.enter_context(gateway(directory, source.port, unix_socket=str(socket / "s")))
        endpoint = f"http://127.0.0.1:{server.port}"
        sides: dict[str, Callable[[], float]] = {way: partial(_measure, way, endpoint, root / BUCKET) for way in WAYS}
        for _ in range(2):
            _measure("open_objects", endpoint, root / BUCKET)
        rounds = in_turn(sides, REPEATS)
    medians, size = medians_of(rounds), FILES * LENGTH / 1e9
    rates = {way: [size / seconds for seconds in taken] for way, taken in rounds.items()}
    ratio = Ratio.compared(
        "model weights as open files / local files, bytes per second", rates["open_objects"], rates["local files"], BUDGET,
        at_least=True,
    )  # fmt: skip
    text = (
        f"{FILES} files of {LENGTH // 1024**2} MiB, all in the page cache, read into new buffers by a process of another user; "
        f"medians of {REPEATS} reads, in turn.\n\n"
        + table(["way", "seconds", "GB/s"], [[way, f"{of:.2f}", f"{size / of:.2f}"] for way, of in medians.items()])
        + f"\n\nopen_objects / local files: {ratio}"
    )
    write("weights", "Model weights", text, {"medians": medians}, where, [ratio])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        begin = time.perf_counter()
        count = _read(*sys.argv[2:])
        print(json.dumps({"bytes": count, "seconds": time.perf_counter() - begin}))
    else:
        run()
