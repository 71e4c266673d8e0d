"""Uploads: the gateway's CPU per PUT beside nginx, which passes the same bodies on and verifies nothing."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lab.benchmarks.load import raw_upload, write_script
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, nginx_uploads, protocol_alone
from lab.benchmarks.turns import cpu_per_request, in_turn, medians_of

SMALL = 110 * 1024
LARGE = 64 * 1024**2
KEYS = 64
CONNECTIONS = 16
REPEATS = 5
BUDGETS = {"110 KiB": 2.5, "64 MiB": 1.3}


def _large(server: Running, request: bytes) -> float:
    """Microseconds of CPU of one upload."""
    before = server.cpu_seconds()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request)
        answer = connection.recv(4096)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{server.name}: {answer.decode(errors='replace')}")
    return (server.cpu_seconds() - before) * 1e6


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        source = stack.enter_context(protocol_alone(directory, directory))
        sides: dict[str, dict[str, Callable[[], float]]] = {size: {} for size in BUDGETS}
        for server in (
            stack.enter_context(nginx_uploads(directory, source.port)),
            stack.enter_context(gateway(directory, source.port)),
        ):
            script = directory / f"{server.name}.lua"
            bodies = {f"small-{number}": os.urandom(SMALL) for number in range(KEYS)}
            write_script(script, [raw_upload(server.port, key, body) for key, body in bodies.items()])
            sides["110 KiB"][server.name] = partial(cpu_per_request, server, script, CONNECTIONS)
            large = raw_upload(server.port, "large", os.urandom(LARGE))
            sides["64 MiB"][server.name] = partial(_large, server, large)
        rounds = {size: in_turn(of, REPEATS) for size, of in sides.items()}
    medians = {size: medians_of(of) for size, of in rounds.items()}
    ratios = [
        Ratio.compared(
            f"CPU of a PUT of {size}: Larder / nginx passing it on", of["larder"], of["nginx"], BUDGETS[size]
        )
        for size, of in rounds.items()
    ]
    write("uploads", {"repeats": REPEATS, "connections": CONNECTIONS, "medians": medians}, where, ratios)


if __name__ == "__main__":
    run()
