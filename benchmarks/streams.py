"""Warm GETs with access streams and without: server CPU per request, of two gateways in turn, in one run.

All objects lie in one bucket and are read in random order, a stream that is recognised. The gateways differ in
``streams.enabled`` only. CPU is that of the server's process tree, its Redis included, divided by the requests answered.
Beside it stand the parts alone: noting a read, packing and unpacking it, folding it into the tree.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.load import raw_request, run_wrk, write_script
from benchmarks.objects import make_many
from benchmarks.report import machine, table, write
from benchmarks.servers import Running, gateway, origin
from gateway.model.keys import ObjectKey
from gateway.policies.streams.tree import AccessStreamTree
from gateway.store.accesses import MOST, ObservedReads
from gateway.store.observation import decode_reads, encode_reads

CONNECTIONS = 16
OBJECTS = 400
SIZE = 4096
REPEATS = 9
SECONDS = 2
PARTS = 200
KEY = ObjectKey("default", "bucket", "datasets/imagenet/train/n01440764/n01440764_10026.JPEG")


def _cpu(server: Running, script: Path) -> float:
    """Microseconds of CPU per request."""
    before = server.cpu_seconds()
    outcome = run_wrk(script, server.port, CONNECTIONS, SECONDS)
    if outcome.errors:
        raise RuntimeError(f"{server.name}: {outcome.errors} of {outcome.requests} requests failed")
    return (server.cpu_seconds() - before) / outcome.requests * 1e6


def _gets() -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "small", OBJECTS, SIZE)
        source = stack.enter_context(origin(directory, root))
        servers = {}
        for name, extra in (("on", ""), ("off", "[streams]\nenabled = false\n")):
            (directory / name).mkdir()
            servers[name] = stack.enter_context(gateway(directory / name, source.port, extra=extra))
            script = directory / f"{name}.lua"
            requests = [raw_request(servers[name].port, key) for key in keys]
            random.Random(name).shuffle(requests)
            write_script(script, requests)
            run_wrk(script, servers[name].port, CONNECTIONS, 1)
        for _ in range(REPEATS):
            for name, server in servers.items():
                found[name].append(_cpu(server, directory / f"{name}.lua"))
    return found


def _best(work: Callable[[], object], count: int) -> float:
    """Microseconds of each of ``count`` things that ``work`` does, in the fastest of some runs."""
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
        observed.take()
        note()

    names = [f"train/{number:05}" for number in range(MOST)]
    folds = iter(range(10**9))

    def fold() -> None:
        for name in names:
            tree.record("bucket", name, 0, 1, next(folds) / 1000, 7, True, SIZE)

    noted()
    reads, _ = observed.take()
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
    medians = {name: median(values) for name, values in gets.items()}
    ratio = medians["on"] / medians["off"]
    rows = [[f"streams {name}", f"{value:.1f} µs"] for name, value in medians.items()]
    rows += [["on / off", f"{ratio:.3f}"], *([name, f"{value:.2f} µs"] for name, value in parts.items())]
    text = (
        f"Server CPU per warm GET of 4 KiB over {CONNECTIONS} connections: medians of {REPEATS} runs of {SECONDS} s, in turn. "
        "Below: the fastest of many runs of each part. A worker notes at most 2,048 reads per second; the others are counted "
        "and dropped.\n\n" + table(["what", "CPU"], rows)
    )
    write("streams", "Access streams", text, {"gets": gets, "medians": medians, "ratio": ratio, "parts": parts}, where)


if __name__ == "__main__":
    run()
