"""Many small objects through one gateway: ``larder.get_many`` beside boto3 with 16 threads, obstore and s5cmd.

All read the same objects of 10 KiB from the same gateway, in turn, each in a process of its own: all of them cached, and then
objects that were never read. The gateway's CPU is that of its process tree, divided by the objects.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from lab.benchmarks.objects import make_many
from lab.benchmarks.readers import Process, Setting, started
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway, origin

OBJECTS = 4096
COLD = 512
LENGTH = 10 * 1024
BATCHES = (64, 1024)
REPEATS = 3
SECONDS = 1.0
_ONE_STEP = 0.001
S5CMD = Path(sys.executable).parent / "s5cmd"
BUDGET = 4.0
CPU_BUDGET = 0.5
BOTO3, OURS = "boto3, 16 threads", "get_many, 1024"
Samples = dict[str, list[dict[str, float]]]
Measure = Callable[[], dict[str, float]]


def _readers() -> list[tuple[str, str, int]]:
    """Name, reader and batch of each process."""
    readers = [(f"get_many, {batch}", "get_many", batch) for batch in BATCHES]
    readers.append((BOTO3, "boto3_threads", 256))
    if find_spec("obstore") is not None:
        readers.append(("obstore, 64 at once", "obstore", 1024))
    return readers


def _counted(server: Running, read: Measure) -> dict[str, float]:
    """A measurement, with the gateway's CPU for each object."""
    before = server.cpu_seconds()
    sample = read()
    used = server.cpu_seconds() - before
    return {**sample, "gateway_us": used / sample["items"] * 1e6}


def _s5cmd(server: Running, keys: list[str], folder: Path) -> dict[str, float]:
    """One run of s5cmd that downloads all objects into a folder; its start is included."""
    commands = folder / "commands"
    commands.write_text("".join(f"cp s3://{BUCKET}/{key} {folder}/out-{key}\n" for key in keys))
    environ = {
        **os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1",
    }  # fmt: skip
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [S5CMD, "--endpoint-url", f"http://127.0.0.1:{server.port}", "--log", "error", "run", str(commands)],
        env=environ,
        check=True,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"items": len(keys), "items_per_second": len(keys) / seconds, "client_us": used / len(keys) * 1e6}


def run() -> None:
    """Measure and write the results."""
    where = machine()
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = {"warm": make_many(root, "warm", OBJECTS, LENGTH)}
        readers = _readers()
        for number in range(len(readers)):
            keys[f"cold{number}"] = make_many(root, f"cold{number}", COLD * (REPEATS + 2), LENGTH)
        source = stack.enter_context(origin(directory, root))
        server = stack.enter_context(gateway(directory, source.port))
        setting = Setting(f"http://127.0.0.1:{server.port}", str(root / BUCKET), keys)
        measures: dict[str, Measure] = {}
        for number, (name, reader, batch) in enumerate(readers):
            process = stack.enter_context(started(reader, setting))
            for _ in range(OBJECTS // batch + 1):
                process.measure("warm", batch, 0.01)
            measures[name] = _bound(process, "warm", batch, SECONDS)
            # Steps of at most COLD objects, each read once. The first two steps warm the process.
            process.measure(f"cold{number}", min(batch, COLD), _ONE_STEP)
            measures[f"{name}: cold"] = _bound(process, f"cold{number}", min(batch, COLD), _ONE_STEP)
        measures["s5cmd"] = lambda: _s5cmd(server, keys["warm"], directory)
        for _ in range(REPEATS):
            for name, measure in measures.items():
                samples.setdefault(name, []).append(_counted(server, measure))
    _write(samples, where)


def _bound(process: Process, name: str, batch: int, seconds: float) -> Measure:
    return lambda: process.measure(name, batch, seconds)


def _write(samples: Samples, where: dict[str, str]) -> None:
    medians = {name: {field: median(sample[field] for sample in of) for field in of[0]} for name, of in samples.items()}
    ours, theirs = samples[OURS], samples[BOTO3]
    speed = Ratio.compared(
        "objects of 10 KiB per second: get_many / boto3 with 16 threads",
        [sample["items_per_second"] for sample in ours],
        [sample["items_per_second"] for sample in theirs],
        BUDGET,
        at_least=True,
    )
    cpu = Ratio.compared(
        "the gateway's CPU for an object of 10 KiB: get_many / boto3",
        [sample["gateway_us"] for sample in ours],
        [sample["gateway_us"] for sample in theirs],
        CPU_BUDGET,
    )
    write("many", {"objects": OBJECTS, "repeats": REPEATS, "medians": medians}, where, [speed, cpu])
