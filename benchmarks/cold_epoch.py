"""A cold first epoch that waits for a distant origin: one loader through a gateway beside boto3 with 16 threads.

The origin answers after ``LATENCY`` and has bandwidth to spare, so what counts is how many reads are under way at once. The two
are measured in turn, in one run, with a new gateway each time; the loader computes nothing between batches.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import boto3
import numpy as np
from botocore.config import Config

from benchmarks.datasets import CREDENTIALS, register, write_digests
from benchmarks.report import machine, table, write
from benchmarks.servers import BUCKET, gateway
from gateway.testing.origin import OriginThread
from gateway.testing.origin_auth import User
from gateway.testing.origin_pace import Pace
from larder.loader import Loader
from larder.source import Access

ITEMS = 600
LENGTH = 20_000
LATENCY = 0.2
THREADS = 16
ROUNDS = 3
BATCHES = (8, 64)
CAPACITIES = {"full": ITEMS * LENGTH * 4, "chunked": ITEMS * LENGTH * 3 // 10, "none": ITEMS * LENGTH}


def contents() -> dict[str, bytes]:
    """The objects."""
    generator = np.random.default_rng(3)
    return {f"item-{number:05}": generator.bytes(LENGTH) for number in range(ITEMS)}


def _serve(connection: Connection) -> None:
    with OriginThread([User("origin", "origin-secret")]) as store:
        for key, content in contents().items():
            store.put(BUCKET, key, content)
        store.paces["/"] = Pace(10e9, LATENCY)
        connection.send(store.port)
        while connection.recv():
            connection.send(store.count("GET", f"/{BUCKET}/"))


@contextmanager
def distant_origin() -> Iterator[tuple[int, Connection]]:
    """An origin in a process of its own: its port, and whom to ask how many reads it has answered."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv(), here
    finally:
        here.send(False)
        process.join(10)


def with_boto3(port: int) -> float:
    """Seconds for all objects in random order."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="origin",
        aws_secret_access_key="origin-secret",
        region_name="us-east-1",
        config=Config(max_pool_connections=THREADS, s3={"addressing_style": "path"}),
    )
    keys = np.random.default_rng(0).permutation(list(contents())).tolist()
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        read = pool.map(lambda key: len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()), keys)
        if sum(read) != ITEMS * LENGTH:
            raise RuntimeError("boto3 did not read everything")
    return time.perf_counter() - began


def with_loader(directory: Path, port: int, caching: str, batch_size: int) -> tuple[float, Loader]:
    """Seconds of a first epoch with an empty cache."""
    digests = directory / "cold.parquet"
    write_digests(digests, contents())
    with gateway(directory, port, capacity=str(CAPACITIES[caching])) as server:
        register(server, digests, "cold", caching)
        endpoint = f"http://127.0.0.1:{server.port}"
        loader = Loader(endpoint, "cold", batch_size=batch_size, access=Access(credentials=CREDENTIALS))
        assert loader.info.items == ITEMS
        began = time.perf_counter()
        came = np.concatenate([batch.indices for batch in loader.epoch(0)])
        seconds = time.perf_counter() - began
    if not np.array_equal(np.sort(came), np.arange(ITEMS)):
        raise RuntimeError("not every item came once")
    return seconds, loader


def run() -> dict[str, Any]:
    """Measure and write the results."""
    where, rows, data = machine(), [], {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, distant_origin() as (port, ask):
        for caching in CAPACITIES:
            for batch_size in BATCHES:
                ratios, reads = [], []
                for number in range(ROUNDS):
                    directory = Path(temporary) / f"{caching}-{batch_size}-{number}"
                    directory.mkdir()
                    plain = with_boto3(port)
                    ask.send(True)
                    before = ask.recv()
                    seconds, _ = with_loader(directory, port, caching, batch_size)
                    ask.send(True)
                    reads.append((ask.recv() - before) / ITEMS)
                    ratios.append(plain / seconds)
                rows.append([caching, str(batch_size), f"{median(ratios):.2f}", f"{max(reads):.3f}"])
                data[f"{caching}/{batch_size}"] = {"ratios": ratios, "reads": reads}
    text = (
        f"{ITEMS} items of {LENGTH} bytes, an origin that answers after {LATENCY * 1e3:.0f} ms, one loader with an empty cache. "
        f"Speed as a multiple of boto3 with {THREADS} threads straight from the origin, medians of {ROUNDS} pairs; reads of the "
        "origin per item, the most. Rotating chunks also load the next epoch's first chunk.\n\n"
        + table(["caching", "batch", "times boto3", "origin reads per item"], rows)
    )
    write("cold_epoch", "A cold epoch far from the origin", text, data, where)
    return data


if __name__ == "__main__":
    run()
