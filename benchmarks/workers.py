"""Warm GETs of 110 KiB by a gateway with two workers, beside one with a single worker, loaded by wrk over 16 connections.

Two workers can answer twice as much only if each request costs no more than with one, and if cores are left for them. CPU per
request shows the first on any machine; the throughput beside it is shared with wrk, which needs a good part of a core.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.load import raw_request, run_wrk, write_script
from benchmarks.objects import make_many
from benchmarks.report import Ratio, machine, table, write
from benchmarks.servers import gateway, origin
from benchmarks.turns import cpu_per_request, in_turn, medians_of

LENGTH = 110 * 1024
OBJECTS = 64
CONNECTIONS = 16
REPEATS = 5
WORKERS = (1, 2)
BUDGET = 2 / 1.8
"""Two workers give 1.8 times the throughput of one if a request costs them at most this much more."""


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "object", OBJECTS, LENGTH)
        source = stack.enter_context(origin(directory, root))
        cpu, rate = {}, {}
        for workers in WORKERS:
            home = directory / f"{workers}"
            home.mkdir()
            server = stack.enter_context(gateway(home, source.port, workers=workers))
            script = home / "requests.lua"
            write_script(script, [raw_request(server.port, key) for key in keys])
            run_wrk(script, server.port, CONNECTIONS, 2)
            cpu[str(workers)] = partial(cpu_per_request, server, script, CONNECTIONS)
            rate[str(workers)] = partial(_rate, server.port, script)
        rounds, answered = in_turn(cpu, REPEATS), medians_of(in_turn(rate, REPEATS))
    used = medians_of(rounds)
    ratio = Ratio.compared("CPU of a warm GET: two workers / one", rounds["2"], rounds["1"], BUDGET)
    rows = [[number, f"{used[number]:.0f} µs", f"{answered[number]:.0f}/s"] for number in used]
    text = (
        f"{__doc__}\nMedians of {REPEATS} runs of 1 s, in turn.\n\n"
        + table(["workers", "CPU per request", "requests"], rows)
        + f"\n\nCPU, two / one: {ratio}; throughput, two / one: {answered['2'] / answered['1']:.2f}"
    )
    write("workers", "Two workers", text, {"cpu_us": used, "requests_per_second": answered}, where, [ratio])


def _rate(port: int, script: Path) -> float:
    outcome = run_wrk(script, port, CONNECTIONS, 1)
    return outcome.requests / outcome.seconds


if __name__ == "__main__":
    run()
