"""The slowest hundredth of warm GETs of 110 KiB at 70 % load, beside nginx proxy_cache."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, nginx_cache, origin
from lab.benchmarks.turns import in_turn, medians_of

LENGTH = 110 * 1024
OBJECTS = 64
CONNECTIONS = 64
LOAD = 0.7
REPEATS = 5
SECONDS = 3
BUDGET = 3.0


def _paced(directory: Path, server: Running, requests: list[bytes]) -> Path:
    """A script that sends 70 % of the server's highest request rate."""
    flat_out, paced = directory / f"{server.name}.lua", directory / f"{server.name}-paced.lua"
    write_script(flat_out, requests)
    run_wrk(flat_out, server.port, CONNECTIONS, 2)
    most = run_wrk(flat_out, server.port, CONNECTIONS, 2)
    interval = CONNECTIONS / (LOAD * most.requests / most.seconds)
    write_script(paced, requests, pause=interval)
    return paced


def _p99(server: Running, script: Path) -> float:
    outcome = run_wrk(script, server.port, CONNECTIONS, SECONDS)
    if outcome.errors:
        raise RuntimeError(f"{server.name}: {outcome.errors} of {outcome.requests} requests failed")
    return outcome.p99_latency * 1e3


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "object", OBJECTS, LENGTH)
        source = stack.enter_context(origin(directory, root))
        sides = {}
        for server in (
            stack.enter_context(nginx_cache(directory, source.port)),
            stack.enter_context(gateway(directory, source.port)),
        ):
            script = _paced(directory, server, [raw_request(server.port, key) for key in keys])
            sides[server.name] = partial(_p99, server, script)
        rounds = in_turn(sides, REPEATS)
    medians = medians_of(rounds)
    ratio = Ratio.compared(
        "p99 of warm GETs at 70 % load: Larder / nginx proxy_cache", rounds["larder"], rounds["nginx"], BUDGET
    )
    write("tail_latency", {"repeats": REPEATS, "seconds": SECONDS, "medians_ms": medians}, where, [ratio])


if __name__ == "__main__":
    run()
