"""One client process that reads batches on the gateway's machine: by TCP, over the unix socket, and from open files.

Beside it the same objects read as files of this machine, and what nginx proxy_cache uses for one request per object. Everything
is in memory. It needs root: the gateway passes open files to another user only, which the reader becomes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

from lab.benchmarks.datasets import CREDENTIALS, register_files
from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.readers import Process, Setting, started
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import BUCKET, Running, gateway, nginx_cache, origin
from larder import BatchReader

LENGTHS = {"10 KiB": 10 * 1024, "110 KiB": 110 * 1024, "1 MiB": 1024**2}
ITEMS = {"10 KiB": 2048, "110 KiB": 1024, "1 MiB": 256}
BATCH = 256
CASE = "110 KiB"
REPEATS = 3
SECONDS = 0.5
WAYS = ("tcp", "socket_bytes", "socket_files", "files")
FILES_BUDGET = 1.0
CPU_BUDGET = 0.25
Samples = dict[str, list[dict[str, float]]]


def _slug(size: str) -> str:
    return size.replace(" ", "")


def _warm(larder: Running, root: Path, keys: dict[str, list[str]]) -> None:
    for size, names in keys.items():
        info = register_files(larder, root, _slug(size), names)
        reader = BatchReader(f"http://127.0.0.1:{larder.port}", info, credentials=CREDENTIALS, split=False)
        for _ in range(2):
            for start in range(0, info.items, BATCH):
                if reader.fetch(np.arange(start, min(start + BATCH, info.items), dtype=np.uint32)).failed:
                    raise RuntimeError(f"objects of {size} could not be read")


def _reading(process: Process, larder: Running, size: str) -> dict[str, float]:
    before = larder.cpu_seconds()
    read = process.measure(_slug(size), BATCH, SECONDS)
    used = larder.cpu_seconds() - before
    return {**read, "server_us": used / (read["items_per_second"] * SECONDS) * 1e6}


def _nginx_cpu(nginx: Running, script: Path) -> dict[str, float]:
    before = nginx.cpu_seconds()
    outcome = run_wrk(script, nginx.port, 1, 1)
    if outcome.errors:
        raise RuntimeError(f"nginx: {outcome.errors} of {outcome.requests} requests failed")
    return {"server_us": (nginx.cpu_seconds() - before) / outcome.requests * 1e6}


def run() -> dict[str, float]:
    """Measure and write the results; the ratios that have a budget."""
    if os.geteuid():
        sys.exit("short_circuit needs root: its reader becomes another user")
    where = {**machine(), "isal": version("isal")}
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        directory.chmod(0o755)
        source = stack.enter_context(origin(directory, root))
        nginx = stack.enter_context(nginx_cache(directory, source.port))
        larder = stack.enter_context(gateway(directory, source.port, unix_socket=str(directory / "gateway.sock")))
        keys = {size: make_many(root, _slug(size), ITEMS[size], length) for size, length in LENGTHS.items()}
        _warm(larder, root, keys)
        setting = Setting(
            f"http://127.0.0.1:{larder.port}", str(root / BUCKET), {_slug(size): names for size, names in keys.items()}
        )
        processes = {way: stack.enter_context(started(way, setting)) for way in WAYS}
        scripts = {size: directory / f"nginx-{_slug(size)}.lua" for size in LENGTHS}
        for size, script in scripts.items():
            write_script(script, [raw_request(nginx.port, key) for key in keys[size]])
            run_wrk(script, nginx.port, 1, 1)
            for process in processes.values():
                process.measure(_slug(size), BATCH, 0.1)
        for _ in range(REPEATS):
            for size in LENGTHS:
                samples.setdefault(f"{size}, nginx", []).append(_nginx_cpu(nginx, scripts[size]))
                for way, process in processes.items():
                    samples.setdefault(f"{size}, {way}", []).append(_reading(process, larder, size))
    return _write(samples, where)


def _column(of: Sequence[dict[str, float]], field: str) -> list[float]:
    return [each[field] for each in of]


def _write(samples: Samples, where: dict[str, str]) -> dict[str, float]:
    medians = {case: {field: median(s[field] for s in of) for field in of[0]} for case, of in samples.items()}
    ratios = {
        f"{size}, {way}": medians[f"{size}, {way}"]["items_per_second"] / medians[f"{size}, files"]["items_per_second"]
        for size in LENGTHS
        for way in WAYS
    }
    cpu = {
        f"cpu, {size}, {way}": medians[f"{size}, {way}"]["server_us"] / medians[f"{size}, nginx"]["server_us"]
        for size in LENGTHS
        for way in WAYS
        if way != "files"
    }
    judged = [
        Ratio.compared(
            f"items of {CASE} per second: one Python process from open files / local files",
            _column(samples[f"{CASE}, socket_files"], "items_per_second"),
            _column(samples[f"{CASE}, files"], "items_per_second"),
            FILES_BUDGET,
            at_least=True,
        ),
        Ratio.compared(
            f"CPU of an item of {CASE} in batches of {BATCH}, passed as an open file: Larder / nginx",
            _column(samples[f"{CASE}, socket_files"], "server_us"),
            _column(samples[f"{CASE}, nginx"], "server_us"),
            CPU_BUDGET,
        ),
    ]
    data = {
        "batch": BATCH,
        "repeats": REPEATS,
        "seconds": SECONDS,
        "sizes": list(LENGTHS),
        "case": CASE,
        "medians": medians,
        "ratios": {**ratios, **cpu},
    }
    write("short_circuit", data, where, judged)
    return {**ratios, **cpu}


if __name__ == "__main__":
    run()
