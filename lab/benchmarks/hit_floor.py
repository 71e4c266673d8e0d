"""What bounds a warm GET of 4 KiB: Larder beside nginx proxy_cache and beside the smallest servers that Python allows.

The servers of ``hit_floor_app.py`` receive, verify, look up and send, and do nothing else. Two loops that differ in kind, with
the signature and without it, say what a verified hit costs at least in Python, and how much of that the kernel and the loop take.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lab.benchmarks.load import raw_request, run_wrk, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import SECRET_KEY, Running, gateway, nginx_cache, origin, started
from lab.benchmarks.turns import cpu_per_request, in_turn, medians_of
from rig.processes import free_port

LENGTH, OBJECTS, CONNECTIONS, REPEATS = 4096, 64, 16, 7
KINDS = [(loop, check) for loop in ("uvloop", "epoll") for check in ("unverified", "verified")]


@contextmanager
def floor(directory: Path, root: Path, loop: str, check: str) -> Iterator[Running]:
    """One of the smallest servers."""
    port, name = free_port(), f"{loop}, {check}"
    command = [sys.executable, "-m", "lab.benchmarks.hit_floor_app", loop, check, str(port)]
    environ = {"BENCH_ROOT": str(root), "BENCH_SECRET": SECRET_KEY}
    with started(name, port, command, directory / f"{loop}-{check}.log", environ) as running:
        yield running


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "small", OBJECTS, LENGTH)
        source = stack.enter_context(origin(directory, root))
        servers = [stack.enter_context(nginx_cache(directory, source.port))]
        servers.append(stack.enter_context(gateway(directory, source.port)))
        servers += [stack.enter_context(floor(directory, root, *kind)) for kind in KINDS]
        sides = {}
        for number, server in enumerate(servers):
            script = directory / f"{number}.lua"
            write_script(script, [raw_request(server.port, key) for key in keys])
            for _ in range(3):
                run_wrk(script, server.port, CONNECTIONS, 1)
            sides[server.name] = partial(cpu_per_request, server, script, CONNECTIONS)
        rounds = in_turn(sides, REPEATS)
    medians = medians_of(rounds)
    write("hit_floor", {"connections": CONNECTIONS, "repeats": REPEATS, "medians": medians}, where)


if __name__ == "__main__":
    run()
