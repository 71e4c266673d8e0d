"""Warm reads through a gateway of 1, 2, 4 and 8 worker processes, loaded by several wrk at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gateway.sim.figures import pyplot
from lab.benchmarks.datasets import register_files
from lab.benchmarks.load import raw_batch, raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway
from lab.evaluation.jobs import s3_client
from lab.evaluation.origin import Origin, origin_of_files
from lab.evaluation.pages import machine, picture, record

WORKERS = (1, 2, 4, 8)
LENGTH, OBJECTS, BATCH, REQUESTS = 110 * 1024, 256, 256, 16
CLIENTS, CONNECTIONS = 4, 16
"""Processes of wrk, each with one thread, and connections of each."""
SECONDS = 2


def run() -> None:
    """Measure, and write the page."""
    where = machine()
    found: dict[str, Any] = {
        "where": where,
        "cores": os.cpu_count(),
        "objects": OBJECTS,
        "length": LENGTH,
        "clients": CLIENTS,
        "connections": CONNECTIONS,
        "seconds": SECONDS,
        "batch": BATCH,
        "workers": {},
    }
    with tempfile.TemporaryDirectory(prefix="larder-cores-") as temporary:
        directory = Path(temporary)
        keys = make_many(directory / "objects", "object", OBJECTS, LENGTH)
        with origin_of_files(directory / "objects" / BUCKET, BUCKET, 0, 0) as store:
            for workers in WORKERS:
                with _loads(directory, store, keys, workers) as (server, scripts):
                    found["workers"][str(workers)] = {
                        name: _measure(server, script) for name, script in scripts.items()
                    }
                print(workers, found["workers"][str(workers)], flush=True)
    _plot(found["workers"])
    record("evaluation/cores", found)


@contextmanager
def _loads(directory: Path, store: Origin, keys: list[str], workers: int) -> Iterator[tuple[Running, dict[str, Path]]]:
    """A gateway that has cached everything, and scripts of requests by kind."""
    home = directory / f"workers-{workers}"
    home.mkdir()
    with gateway(home, store.port, workers=workers) as server:
        client = s3_client(f"http://127.0.0.1:{server.port}", ACCESS_KEY, SECRET_KEY, CONNECTIONS)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), keys))
        info = register_files(server, directory / "objects", "objects", keys)
        indices = np.random.default_rng(1).permutation(OBJECTS).astype("<u4").tobytes()
        requests = {
            "GET": [raw_request(server.port, key) for key in keys],
            "batch": [raw_batch(server.port, info.id, indices[: 4 * BATCH], "mode=exact")] * REQUESTS,
        }
        scripts = {}
        for name, each in requests.items():
            scripts[name] = home / f"{name}.lua"
            write_script(scripts[name], each)
            run_wrk(scripts[name], server.port, CONNECTIONS, 1)
        yield server, scripts


def _measure(server: Running, script: Path) -> dict[str, float]:
    before = server.cpu_seconds()
    with ThreadPoolExecutor(CLIENTS) as pool:
        load = partial(run_wrk, script, server.port, CONNECTIONS)
        outcomes = list(pool.map(load, [SECONDS] * CLIENTS))
    used = server.cpu_seconds() - before
    items = sum(each.bytes for each in outcomes) / LENGTH
    return {
        "items_per_second": sum(each.bytes / LENGTH / each.seconds for each in outcomes),
        "cpu_us": used / items * 1e6,
        "failed": sum(each.errors for each in outcomes),
        "p99_ms": max(each.p99_latency for each in outcomes) * 1e3,
    }


def _plot(measured: dict[str, Any]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 3.2))
    workers = [int(each) for each in measured]
    for name, label, colour in (("GET", "GETs", "#3b78a8"), ("batch", "items in batches", "#1b7f5c")):
        rates = [of[name]["items_per_second"] / 1e3 for of in measured.values()]
        axes.plot(workers, rates, "o-", color=colour, label=f"{label} of {LENGTH // 1024} KiB")
        axes.plot(workers, [rates[0] * each for each in workers], ":", color=colour, linewidth=0.8)
    axes.set_xlabel("workers (dotted: as many times one)")
    axes.set_ylabel("thousands per second")
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    picture("cores", figure)
