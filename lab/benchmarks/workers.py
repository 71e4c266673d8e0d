"""Warm GETs of 110 KiB by a gateway with two workers, beside one with a single worker, loaded by wrk over 16 connections."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Set
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, origin
from lab.benchmarks.turns import cpu_per_request, in_turn, medians_of

LENGTH = 110 * 1024
OBJECTS = 64
CONNECTIONS = 16
REPEATS = 5
WORKERS = (1, 2)
BUDGET = 2 / 1.8
"""If a request costs at most this much more with two workers, they reach 1.8 times the throughput of one."""


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "object", OBJECTS, LENGTH)
        source = stack.enter_context(origin(directory, root))
        cpu, apart, rate = {}, {}, {}
        for workers in WORKERS:
            home = directory / f"{workers}"
            home.mkdir()
            server = stack.enter_context(gateway(home, source.port, workers=workers))
            script = home / "requests.lua"
            write_script(script, [raw_request(server.port, key) for key in keys])
            run_wrk(script, server.port, CONNECTIONS, 2)
            cpu[str(workers)] = partial(cpu_per_request, server, script, CONNECTIONS)
            apart[str(workers)] = partial(_on_one_core, server, script)
            rate[str(workers)] = partial(_rate, server.port, script)
        rounds, alone = in_turn(cpu, REPEATS), in_turn(apart, REPEATS)
        answered = medians_of(in_turn(rate, REPEATS))
    used, used_apart = medians_of(rounds), medians_of(alone)
    ratio = Ratio.compared("CPU of a warm GET: two workers / one", rounds["2"], rounds["1"], BUDGET)
    code = Ratio.compared("CPU of a warm GET: two workers / one, on one core", alone["2"], alone["1"], BUDGET)
    data = {
        "repeats": REPEATS,
        "cpu_us": used,
        "cpu_us_on_one_core": used_apart,
        "requests_per_second": answered,
    }
    write("workers", data, where, [ratio, code])


def _on_one_core(server: Running, script: Path) -> float:
    """CPU per request of a server on one core, with wrk on another."""
    cores = os.sched_getaffinity(0)
    first, *others = sorted(cores)
    _keep_on(server, {first})
    os.sched_setaffinity(0, others or cores)  # wrk inherits it
    try:
        return cpu_per_request(server, script, CONNECTIONS)
    finally:
        os.sched_setaffinity(0, cores)
        _keep_on(server, cores)


def _keep_on(server: Running, cores: Set[int]) -> None:
    for pid in server.processes():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)


def _rate(port: int, script: Path) -> float:
    outcome = run_wrk(script, port, CONNECTIONS, 1)
    return outcome.requests / outcome.seconds


if __name__ == "__main__":
    run()
