"""Batches of a dataset: their cost at the gateway, and the speed of one Python process that reads them.

Three comparisons in one run, in turn, so that other load on the machine affects all alike:

- The gateway's CPU per item of cached batches, beside that of nginx proxy_cache per request for the same objects;
  both are loaded by wrk over the same number of connections.
- Items per second of one Python process: ``BatchReader.fetch``, ``larder.Loader`` and ``larder.torch.CachedDataset`` beside
  boto3 and s3torchconnector, which read the same objects through nginx proxy_cache, and beside reading them as
  files of this machine. The bytes stay in memory and are not decoded.
- The time of a batch without a cached item, beside reading the same objects from the origin.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import boto3
import numpy as np
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config

from lab.benchmarks.datasets import CREDENTIALS, register_files
from lab.benchmarks.load import raw_batch, raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.readers import Process, Setting, started
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway, nginx_cache, origin
from larder import BatchReader

LENGTHS = {"10 KiB": 10 * 1024, "110 KiB": 110 * 1024, "1 MiB": 1024**2}
ITEMS = {"10 KiB": 2048, "110 KiB": 1024, "1 MiB": 256}
BATCHES = (16, 256)
CONNECTIONS = (1, 4)
REPEATS = 3
SECONDS = 0.5
REQUESTS = 16
CANDIDATES = 10
MISSES = {"batches": 5, "items": 64, "length": 110 * 1024}
AT_ONCE = 32
CASE = ("110 KiB", 256)
CPU_BUDGET = 0.8
BOTO3_BUDGET = 15.0
FILES_BUDGET = 0.5
PEERS = ("boto3", "boto3_threads", "s3torchconnector_map", "s3torchconnector_iterable", "files")
OURS = ("fetch", "loader", "cached_dataset")
Samples = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class Servers:
    """The measured gateway, with all objects in its cache; ``ids`` are the datasets' ids by name of the size."""

    nginx: Running
    larder: Running
    keys: dict[str, list[str]]
    ids: dict[str, str]


def _slug(size: str) -> str:
    return size.replace(" ", "")


def _start(stack: ExitStack, directory: Path, source: Running, root: Path) -> Servers:
    nginx = stack.enter_context(nginx_cache(directory, source.port))
    larder = stack.enter_context(gateway(directory, source.port))
    keys = {size: make_many(root, _slug(size), ITEMS[size], length) for size, length in LENGTHS.items()}
    ids = {}
    for size, names in keys.items():
        info = register_files(larder, root, _slug(size), names)
        reader = BatchReader(f"http://127.0.0.1:{larder.port}", info, credentials=CREDENTIALS)
        everything = np.arange(info.items, dtype=np.uint32)
        for start in range(0, info.items, 256):
            if reader.fetch(everything[start : start + 256]).failed:
                raise RuntimeError(f"objects of {size} could not be read")
        if not reader.lookup(everything).all():
            raise RuntimeError(f"objects of {size} are not all in the cache")
        ids[size] = info.id
    return Servers(nginx, larder, keys, ids)


# --- costs of the servers


@dataclass(frozen=True)
class Load:
    """One kind of load on one server: over some connections, for items of ``length`` bytes."""

    case: str
    server: Running
    script: Path
    connections: int
    length: int


def _loads(directory: Path, servers: Servers) -> Iterator[Load]:
    generator = np.random.default_rng(1)
    for size, keys in servers.keys.items():
        script = directory / f"nginx-{_slug(size)}.lua"
        write_script(script, [raw_request(servers.nginx.port, key) for key in keys])
        for connections in CONNECTIONS:
            yield Load(f"{size}, {connections}", servers.nginx, script, connections, LENGTHS[size])
        for batch in BATCHES:
            for mode in ("exact", "substitute") if batch == max(BATCHES) else ("exact",):
                many = min(len(keys), batch * CANDIDATES) if mode == "substitute" else batch
                query = f"mode={mode}&take={batch}" if mode == "substitute" else f"mode={mode}"
                script = directory / f"{mode}-{_slug(size)}-{batch}.lua"
                requests = [
                    raw_batch(servers.larder.port, servers.ids[size], _some(generator, len(keys), many), query)
                    for _ in range(REQUESTS)
                ]
                write_script(script, requests)
                for connections in CONNECTIONS if batch == max(BATCHES) and mode == "exact" else (1,):
                    yield Load(
                        f"{size}, {mode} {batch}, {connections}", servers.larder, script, connections, LENGTHS[size]
                    )


def _some(generator: np.random.Generator, items: int, count: int) -> bytes:
    return generator.permutation(items)[:count].astype("<u4").tobytes()


def _server_cpu(load: Load) -> dict[str, float]:
    before = load.server.cpu_seconds()
    outcome = run_wrk(load.script, load.server.port, load.connections, 1)
    used = load.server.cpu_seconds() - before
    if outcome.errors:
        raise RuntimeError(f"{load.case}: {outcome.errors} of {outcome.requests} requests failed")
    # By bytes, because the second may end in the middle of a large batch.
    items = outcome.bytes / load.length
    return {"cpu_us": used / items * 1e6, "items_per_second": items / outcome.seconds}


# --- speed of one Python process


def _readings(stack: ExitStack, servers: Servers, root: Path) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Every case with its measurement. Processes are started once, and a first reading warms each."""
    directory = str(root / BUCKET)
    keys = {_slug(size): names for size, names in servers.keys.items()}
    for reader in (*OURS, *PEERS):
        server = servers.larder if reader in OURS else servers.nginx
        process = stack.enter_context(started(reader, Setting(f"http://127.0.0.1:{server.port}", directory, keys)))
        for size in LENGTHS:
            for batch in BATCHES if reader in OURS else (16,):
                process.measure(_slug(size), batch, 0.05)
                case = f"{size}, {reader} {batch}" if reader in OURS else f"{size}, {reader}"
                yield case, _reading(process, _slug(size), batch)


def _reading(process: Process, name: str, batch: int) -> Callable[[], dict[str, float]]:
    return lambda: process.measure(name, batch, SECONDS)


# --- cost of an uncached batch


def _misses(server: Running, source: Running, root: Path) -> dict[str, float]:
    """Median milliseconds for a batch of objects that were never read, by reader."""
    count = MISSES["items"]
    keys = make_many(root, "cold", MISSES["batches"] * count, MISSES["length"])
    info = register_files(server, root, "cold", keys)
    reader = BatchReader(f"http://127.0.0.1:{server.port}", info, credentials=CREDENTIALS)
    reader.lookup([0])
    client = _boto3(source)
    times: dict[str, list[float]] = {"Larder, cold batch": [], "boto3, 16 threads": [], "aiobotocore, 32 at once": []}
    with ThreadPoolExecutor(16) as pool:
        for start in range(0, len(keys), count):
            some = keys[start : start + count]
            ids = np.arange(start, start + count, dtype=np.uint32)
            began = time.perf_counter()
            reader.fetch(ids)
            times["Larder, cold batch"].append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            list(pool.map(partial(_get, client), some))
            times["boto3, 16 threads"].append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            asyncio.run(_get_all(source, some))
            times["aiobotocore, 32 at once"].append((time.perf_counter() - began) * 1e3)
    return {name: median(of) for name, of in times.items()}


def _boto3(source: Running) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{source.port}",
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=16),
    )


def _get(client: Any, key: str) -> int:
    return len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


async def _get_all(source: Running, keys: list[str]) -> None:
    config = AioConfig(max_pool_connections=AT_ONCE, s3={"addressing_style": "path"})
    async with get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"http://127.0.0.1:{source.port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    ) as client:
        waiting = list(keys)

        async def read() -> None:
            while waiting:
                answer = await client.get_object(Bucket=BUCKET, Key=waiting.pop())
                async with answer["Body"] as stream:
                    await stream.read()

        await asyncio.gather(*(read() for _ in range(AT_ONCE)))


# --- the run


def run() -> dict[str, float]:
    """Measure and write the results; returns the ratios that have a budget."""
    # Without isal the client's CRCs take zlib five times as long.
    where = {**machine(), **{name: version(name) for name in ("boto3", "s3torchconnector", "torch", "isal")}}
    cpu: Samples = {}
    reading: Samples = {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        source = stack.enter_context(origin(directory, root))
        servers = _start(stack, directory, source, root)
        loads = list(_loads(directory, servers))
        for load in loads:
            if load.server is servers.nginx and load.connections == max(CONNECTIONS):
                run_wrk(load.script, load.server.port, load.connections, 1)
        for _ in range(REPEATS):
            for load in loads:
                cpu.setdefault(load.case, []).append(_server_cpu(load))
        cases = list(_readings(stack, servers, root))
        for _ in range(REPEATS):
            for case, measure in cases:
                reading.setdefault(case, []).append(measure())
        misses = _misses(servers.larder, source, root)
    return _write(cpu, reading, misses, where)


def _medians(samples: Samples) -> dict[str, dict[str, float]]:
    return {case: {field: median(s[field] for s in of) for field in of[0]} for case, of in samples.items()}


def _judged(cpu: Samples, reading: Samples) -> list[Ratio]:
    """The ratios that have a budget."""
    size, batch = CASE
    rates = {
        reader: [each["items_per_second"] for each in reading[f"{size}, {reader}"]]
        for reader in (f"fetch {batch}", "boto3", "files")
    }
    larder, nginx = ([each["cpu_us"] for each in cpu[f"{size}, {way}"]] for way in (f"exact {batch}, 1", "1"))
    ours, one = rates[f"fetch {batch}"], f"items of {size} per second: one Python process"
    return [
        Ratio.compared(f"CPU of an item of {size} in batches of {batch}: Larder / nginx", larder, nginx, CPU_BUDGET),
        Ratio.compared(f"{one} / boto3 through nginx", ours, rates["boto3"], BOTO3_BUDGET, at_least=True),
        Ratio.compared(f"{one} / local files", ours, rates["files"], FILES_BUDGET, at_least=True),
    ]


def _write(
    cpu_rounds: Samples, reading_rounds: Samples, misses: dict[str, float], where: dict[str, str]
) -> dict[str, float]:
    cpu, reading = _medians(cpu_rounds), _medians(reading_rounds)
    ratios, judged = _ratios(cpu, reading), _judged(cpu_rounds, reading_rounds)
    data = {
        "repeats": REPEATS,
        "seconds": SECONDS,
        "candidates": CANDIDATES,
        "sizes": list(LENGTHS),
        "case": CASE,
        "cpu_budget": CPU_BUDGET,
        "missed": MISSES,
        "cpu": cpu,
        "reading": reading,
        "misses_ms": misses,
        "ratios": ratios,
    }
    write("batches", data, where, judged)
    return ratios


def _ratios(cpu: dict[str, dict[str, float]], reading: dict[str, dict[str, float]]) -> dict[str, float]:
    size, batch = CASE
    rate = {case: of["items_per_second"] for case, of in reading.items()}
    found = {
        f"cpu, {case}": of["cpu_us"] / cpu[f"{parts[0]}, {parts[2]}"]["cpu_us"]
        for case, of in cpu.items()
        if len(parts := case.split(", ")) == 3
    }
    found["boto3"] = rate[f"{size}, fetch {batch}"] / rate[f"{size}, boto3"]
    found["files"] = rate[f"{size}, fetch {batch}"] / rate[f"{size}, files"]
    found["loader/files"] = rate[f"{size}, loader {batch}"] / rate[f"{size}, files"]
    return found


if __name__ == "__main__":
    run()
