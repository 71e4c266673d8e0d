"""Warm GETs: server CPU per request and throughput, Larder beside nginx proxy_cache, in one run.

Both servers stand in front of the same origin and hold all objects; they are loaded in turn, so other load on the machine affects
both alike. CPU is that of the server's process tree divided by the requests answered; wrk's is not in it. The third server,
Larder's protocol with an application that only opens files, shows how much of Larder's cost is the protocol's. The kernel does
the work of TCP in whichever of server and wrk runs, so for large objects the sum of both is shown too.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import SIZES, make_objects
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, nginx_cache, origin, protocol_alone

CONNECTIONS = (1, 16, 64)
BUDGETS = {"4 KiB": 2.5, "110 KiB": 2.5, "1 MiB": 0.7, "8 MiB": 1.0}
JUDGED = 16
"""The number of connections whose ratios the summary shows."""
REPEATS = 3
SECONDS = 1
Sample = dict[str, float]


def _measure(server: Running, script: Path, connections: int) -> Sample:
    before, wrk_before = server.cpu_seconds(), _ended_children()
    outcome = run_wrk(script, server.port, connections, SECONDS)
    used, wrk_used = server.cpu_seconds() - before, _ended_children() - wrk_before
    if outcome.errors:
        raise RuntimeError(f"{server.name}: {outcome.errors} of {outcome.requests} requests failed")
    return {
        "cpu_us": used / outcome.requests * 1e6,
        "with_wrk_us": (used + wrk_used) / outcome.requests * 1e6,
        "requests_per_second": outcome.requests / outcome.seconds,
        "latency_ms": outcome.median_latency * 1e3,
    }


def _ended_children() -> float:
    """CPU seconds of all ended child processes, which are those of wrk."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _scripts(directory: Path, server: Running, keys: dict[str, list[str]]) -> dict[str, Path]:
    scripts = {}
    for size, names in keys.items():
        scripts[size] = directory / f"{server.name}-{size.replace(' ', '')}.lua"
        write_script(scripts[size], [raw_request(server.port, name) for name in names])
        run_wrk(scripts[size], server.port, 4, 1)
    return scripts


def run(with_gateway: bool = True) -> dict[str, dict[str, Sample]]:
    """Measure and write the results; medians by ``"SIZE x CONNECTIONS"`` and server."""
    where = machine()
    samples: dict[str, dict[str, list[Sample]]] = {}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_objects(root)
        source = stack.enter_context(origin(directory, root))
        servers = [stack.enter_context(nginx_cache(directory, source.port))]
        servers.append(stack.enter_context(protocol_alone(directory, root)))
        if with_gateway:
            servers.append(stack.enter_context(gateway(directory, source.port)))
        scripts = {server.name: _scripts(directory, server, keys) for server in servers}
        for _ in range(REPEATS):
            for size in SIZES:
                for connections in CONNECTIONS:
                    case = samples.setdefault(f"{size} x {connections}", {})
                    for server in servers:
                        case.setdefault(server.name, []).append(
                            _measure(server, scripts[server.name][size], connections)
                        )
    medians = {
        case: {name: {field: median(s[field] for s in of) for field in of[0]} for name, of in by_server.items()}
        for case, by_server in samples.items()
    }
    _write(medians, samples, where)
    return medians


def _write(
    medians: dict[str, dict[str, Sample]], samples: dict[str, dict[str, list[Sample]]], where: dict[str, str]
) -> None:
    ratios: dict[str, dict[str, Ratio]] = {}
    for case, by_server in samples.items():
        size = case.partition(" x ")[0]
        cpu = {name: [sample["cpu_us"] for sample in of] for name, of in by_server.items()}
        what = f"CPU of a warm GET of {size}: Larder / nginx proxy_cache"
        ratios[case] = {
            name: Ratio.compared(what, of, cpu["nginx"], BUDGETS[size]) for name, of in cpu.items() if name != "nginx"
        }
    judged = [of["larder"] for case, of in ratios.items() if case.endswith(f" x {JUDGED}") and "larder" in of]
    data = {
        "repeats": REPEATS,
        "seconds": SECONDS,
        "medians": medians,
        "ratios": {case: {name: asdict(ratio) for name, ratio in of.items()} for case, of in ratios.items()},
    }
    write("s3_reads", data, where, judged)


if __name__ == "__main__":
    run(with_gateway="--without-gateway" not in sys.argv)
