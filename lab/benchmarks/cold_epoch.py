"""A cold first epoch that waits for a distant origin: one loader through a gateway beside boto3 with 16 threads.

The origin answers after a latency and has bandwidth to spare. With a long latency the number of concurrent reads counts, with a
short one the processor time of a read. The two sides are measured in turn, in one run, with a new gateway each time; the loader
computes nothing between batches. Processor time is reported beside the wall clock, because it barely depends on other load.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import boto3
import numpy as np
from botocore.config import Config

from lab.benchmarks.datasets import CREDENTIALS, register, write_digests
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import BUCKET, gateway
from larder.reading.source import Access
from larder.training.loader import Loader
from rig.origin import OriginThread
from rig.origin_auth import User
from rig.origin_pace import SendingPace

ITEMS = 600
LENGTH = 20_000
LATENCIES = {0.02: 2, 0.2: 1}
"""Seconds until the origin answers, and the number of measured pairs: waits for a distant origin hardly vary."""
THREADS = 16
BATCHES = (8, 64)
CAPACITIES = {"full": ITEMS * LENGTH * 4, "part": ITEMS * LENGTH * 3 // 10, "none": ITEMS * LENGTH}


Contents = Callable[[], Mapping[str, bytes]]
"""Makes objects: contents by key."""
Pairs = list[tuple["Cost", "Cost", float]]
"""By round: boto3, the loader, and reads of the origin per item."""


def contents() -> dict[str, bytes]:
    """The objects."""
    generator = np.random.default_rng(3)
    return {f"item-{number:05}": generator.bytes(LENGTH) for number in range(ITEMS)}


def _serve(connection: Connection, objects: Contents, counted: tuple[str, str]) -> None:
    with OriginThread([User("origin", "origin-secret")]) as store:
        store.public.append(f"{BUCKET}*")
        for key, content in objects().items():
            store.put(BUCKET, key, content)
        connection.send(store.port)
        while (latency := connection.recv()) is not None:
            store.paces["/"] = SendingPace(10e9, latency)
            connection.send(store.count(*counted))


@contextmanager
def distant_origin(
    objects: Contents = contents, counted: tuple[str, str] = ("GET", f"/{BUCKET}/")
) -> Iterator[tuple[int, Connection]]:
    """An origin in a separate process: its port, and a connection that takes a latency and returns the number of reads so far.

    Args:
        objects: makes the bucket's content, in the other process; a module-level function.
        counted: method (any, when empty) and path prefix of the requests that count as reads.
    """
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, objects, counted), daemon=True)
    process.start()
    try:
        yield here.recv(), here
    finally:
        here.send(None)
        process.join(10)


class Cost(NamedTuple):
    """Wall-clock and processor seconds."""

    seconds: float
    cpu: float


def s3_client(port: int, access_key: str, secret_key: str) -> Any:
    """A boto3 client for many threads."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(max_pool_connections=THREADS, s3={"addressing_style": "path"}),
    )


def with_boto3(client: Any, keys: Sequence[str]) -> Cost:
    """Read these objects in random order; the processor time is the client's."""
    keys = np.random.default_rng(0).permutation(list(keys)).tolist()
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(THREADS) as pool:
        read = pool.map(lambda key: len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()), keys)
        if sum(read) != len(keys) * LENGTH:
            raise RuntimeError("boto3 did not read everything")
    return Cost(time.perf_counter() - began, time.process_time() - cpu)


def with_loader(directory: Path, port: int, caching: str, batch_size: int) -> tuple[Cost, Loader]:
    """A first epoch with an empty cache; the processor time is that of loader and gateway together."""
    digests = directory / "cold.parquet"
    write_digests(digests, contents())
    with gateway(directory, port, capacity=str(CAPACITIES[caching])) as server:
        register(server, digests, "cold", caching)
        endpoint = f"http://127.0.0.1:{server.port}"
        loader = Loader(endpoint, "cold", batch_size=batch_size, access=Access(credentials=CREDENTIALS))
        assert loader.info.items == ITEMS
        began, cpu = time.perf_counter(), time.process_time() + server.cpu_seconds()
        came = np.concatenate([batch.indices for batch in loader.epoch(0)])
        cost = Cost(time.perf_counter() - began, time.process_time() + server.cpu_seconds() - cpu)
    if not np.array_equal(np.sort(came), np.arange(ITEMS)):
        raise RuntimeError("not every item came once")
    return cost, loader


def _measured(directory: Path, origin: tuple[int, Connection], latency: float, caching: str, batch_size: int) -> Pairs:
    port, ask = origin
    pairs: Pairs = []
    for number in range(LATENCIES[latency]):
        home = directory / f"{latency}-{caching}-{batch_size}-{number}"
        home.mkdir()
        ask.send(latency)
        ask.recv()
        plain = with_boto3(s3_client(port, "origin", "origin-secret"), list(contents()))
        ask.send(latency)
        before = ask.recv()
        cost, _ = with_loader(home, port, caching, batch_size)
        ask.send(latency)
        pairs.append((plain, cost, (ask.recv() - before) / ITEMS))
    return pairs


def run() -> None:
    """Measure and write the results."""
    where, cases = machine(), []
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, distant_origin() as origin:
        for latency, caching, batch_size in product(LATENCIES, CAPACITIES, BATCHES):
            pairs = _measured(Path(temporary), origin, latency, caching, batch_size)
            speed = [plain.seconds / cost.seconds for plain, cost, _ in pairs]
            cpu = [plain.cpu / cost.cpu for plain, cost, _ in pairs]
            of = {"speed": speed, "cpu": cpu, "reads": [read for _, _, read in pairs]}
            cases.append({"latency": latency, "caching": caching, "batch": batch_size, **of})
    slowest = min(median(case["speed"]) for case in cases if case["latency"] == max(LATENCIES))
    ratio = Ratio(
        f"a cold epoch {max(LATENCIES) * 1e3:.0f} ms away, the slowest case: loader / boto3", slowest, 1.0, True
    )
    data = {"items": ITEMS, "length": LENGTH, "threads": THREADS, "pairs": LATENCIES, "cases": cases}
    write("cold_epoch", data, where, [ratio])


if __name__ == "__main__":
    run()
