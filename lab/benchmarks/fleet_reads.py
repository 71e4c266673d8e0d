"""Warm GETs of 110 KiB whose home is another node, beside those at home: CPU of both gateways per request."""

from __future__ import annotations

import re
import socket
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from lab.benchmarks.load import raw_request, write_script
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import Running, gateway, origin, redis
from lab.benchmarks.turns import cpu_per_request, in_turn, medians_of

LENGTH = 110 * 1024
OBJECTS = 128
CONNECTIONS = 16
REPEATS = 5
BUDGET = 2.5
FLEET = """
[redis]
url = "redis://127.0.0.1:{redis}/0"
[fleet]
secret = "{secret}"
node = "{name}"
"""
SECRET = "benchmarks-measure-a-fleet-of-two-nodes"
_RELAYED = re.compile(r'^larder_relayed_reads_total\{event="answered"\} (\S+)$', re.MULTILINE)
_NODES = re.compile(r'^larder_fleet_nodes\{state="ready"\} (\S+)$', re.MULTILINE | re.IGNORECASE)


def _sum(server: Running, pattern: re.Pattern[str]) -> float:
    with urlopen(f"http://127.0.0.1:{server.port}/-/metrics") as answer:
        return sum(map(float, pattern.findall(answer.read().decode())))


def await_fleet(servers: list[Running]) -> None:
    """Return once every node sees all nodes."""
    deadline = time.monotonic() + 30
    while any(_sum(server, _NODES) < len(servers) for server in servers):
        if time.monotonic() > deadline:
            raise RuntimeError("the gateways did not find each other")
        time.sleep(0.1)


def _by_home(server: Running, keys: list[str]) -> dict[str, list[str]]:
    """Read every key once; returns those that the other node answered."""
    found: dict[str, list[str]] = {"at home": [], "relayed": []}
    for key in keys:
        before = _sum(server, _RELAYED)
        _read(server.port, raw_request(server.port, key))
        found["relayed" if _sum(server, _RELAYED) > before else "at home"].append(key)
    return found


def _read(port: int, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        left = LENGTH
        while left > 0 and (piece := connection.recv(1 << 17)):
            left -= len(piece)


def run() -> None:
    """Measure and write the results."""
    where = machine()
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        keys = make_many(root, "object", OBJECTS, LENGTH)
        source = stack.enter_context(origin(directory, root))
        common = stack.enter_context(redis())
        servers = []
        for name in ("first", "second"):
            (directory / name).mkdir()
            extra = FLEET.format(redis=common.port, secret=SECRET, name=name)
            servers.append(stack.enter_context(gateway(directory / name, source.port, extra=extra)))
        await_fleet(servers)
        entry, other = servers
        sides = {}
        for name, of in _by_home(entry, keys).items():
            script = directory / f"{name.replace(' ', '-')}.lua"
            write_script(script, [raw_request(entry.port, key) for key in of])
            sides[name] = partial(cpu_per_request, entry, script, CONNECTIONS, (other,))
        rounds = in_turn(sides, REPEATS)
    medians = medians_of(rounds)
    ratio = Ratio.compared(
        "CPU of a warm GET: relayed from another node / at home", rounds["relayed"], rounds["at home"], BUDGET
    )
    write("fleet_reads", {"repeats": REPEATS, "connections": CONNECTIONS, "medians": medians}, where, [ratio])


if __name__ == "__main__":
    run()
