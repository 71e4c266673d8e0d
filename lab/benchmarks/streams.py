"""Warm GETs with access streams and without: server CPU per request, of two gateways in turn, in one run.

The objects of one prefix are read in random order, those of another sequentially: two recognised streams. The gateways differ
only in ``streams.enabled``. CPU is that of the server's process tree, including its Redis, divided by the answered requests.
The page also has the CPU of idle gateways, and of the single parts: noting a read, packing and unpacking it, folding it into
the tree.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from gateway.model.keys import ObjectKey
from gateway.policies.streams.tree import AccessStreamTree
from gateway.store.shared.accesses import MOST, ObservedReads
from gateway.store.shared.observation import decode_reads, encode_reads
from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import BUCKET, Running, gateway, origin

CONNECTIONS = 16
OBJECTS = 400
SIZE = 4096
REPEATS = 5
SECONDS = 2
PARTS = 200
ORDERS = ("random", "sequential")
IDLE = "idle"
KEY = ObjectKey("default", "bucket", "datasets/imagenet/train/n01440764/n01440764_10026.JPEG")


def _cpu(server: Running, script: Path) -> float:
    """Microseconds of CPU per request."""
    before = server.cpu_seconds()
    outcome = run_wrk(script, server.port, CONNECTIONS, SECONDS)
    if outcome.errors:
        raise RuntimeError(f"{server.name}: {outcome.errors} of {outcome.requests} requests failed")
    return (server.cpu_seconds() - before) / outcome.requests * 1e6


def _gets() -> dict[str, dict[str, list[float]]]:
    """Microseconds per GET by the order of the reads, and the share of a core that an idle gateway takes."""
    found: dict[str, dict[str, list[float]]] = {what: {"on": [], "off": []} for what in (*ORDERS, IDLE)}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = {}
        for order in ORDERS:
            (root / BUCKET / order).mkdir(parents=True)
            keys[order] = make_many(root, f"{order}/object", OBJECTS, SIZE)
        source = stack.enter_context(origin(directory, root))
        servers = {}
        for name, extra in (("on", ""), ("off", "[streams]\nenabled = false\n")):
            (directory / name).mkdir()
            servers[name] = stack.enter_context(gateway(directory / name, source.port, extra=extra))
            for order in ORDERS:
                requests = [raw_request(servers[name].port, key) for key in keys[order]]
                if order == "random":
                    random.Random(name).shuffle(requests)
                write_script(directory / f"{name}-{order}.lua", requests)
                run_wrk(directory / f"{name}-{order}.lua", servers[name].port, CONNECTIONS, 1)
        for _ in range(REPEATS):
            for name, server in servers.items():
                for order in ORDERS:
                    found[order][name].append(_cpu(server, directory / f"{name}-{order}.lua"))
        for _ in range(REPEATS):
            for name, server in servers.items():
                before = server.cpu_seconds()
                time.sleep(SECONDS)
                found[IDLE][name].append((server.cpu_seconds() - before) / SECONDS)
    return found


def _best(work: Callable[[], object], count: int) -> float:
    """Microseconds per operation, for the ``count`` operations of ``work``, in the fastest of several runs."""
    fastest = float("inf")
    for _ in range(PARTS):
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest / count * 1e6


def _parts() -> dict[str, float]:
    observed, tree = ObservedReads(), AccessStreamTree()

    def note() -> None:
        for _ in range(MOST):
            observed.note(KEY, 0, SIZE, SIZE, True, 1.5, "AKIAEXAMPLE", ("10.0.0.1", 44444))

    def noted() -> None:
        observed.take_reads()
        note()

    names = [f"train/{number:05}" for number in range(MOST)]
    folds = iter(range(10**9))

    def fold() -> None:
        for name in names:
            tree.record("bucket", name, 0, 1, next(folds) / 1000, 7, True, SIZE)

    noted()
    reads, _ = observed.take_reads()
    datagram = encode_reads(reads)
    return {
        "noting a read": _best(noted, MOST),
        "packing it": _best(lambda: encode_reads(reads), MOST),
        "unpacking it": _best(lambda: decode_reads(datagram), MOST),
        "folding it into the tree": _best(fold, MOST),
    }


def run() -> None:
    """Measure and write the results."""
    where = machine()
    gets, parts = _gets(), _parts()
    medians = {what: {name: median(values) for name, values in each.items()} for what, each in gets.items()}
    data = {
        "connections": CONNECTIONS,
        "repeats": REPEATS,
        "seconds": SECONDS,
        "noted_per_second": MOST * 4,
        "gets": gets,
        "medians": medians,
        "parts": parts,
    }
    write("streams", data, where)


if __name__ == "__main__":
    run()
