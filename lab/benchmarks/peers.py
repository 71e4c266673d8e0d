"""Larder beside other caches in front of one S3 store: processor time and latency of warm reads and listings, and a cold
epoch."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.benchmarks.cold_epoch import ITEMS, LENGTH, THREADS, contents, distant_origin, s3_client, with_boto3
from lab.benchmarks.load import raw_listing, raw_request, run_wrk, write_script
from lab.benchmarks.objects import SIZES
from lab.benchmarks.peer_servers import PEERS, serving, version_of
from lab.benchmarks.report import machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway, redis
from lab.benchmarks.turns import in_turn

WARM = {"4 KiB": 64, "110 KiB": 64, "1 MiB": 16}
"""Objects by size."""
LISTING = "a listing"
LISTED = "list-type=2&max-keys=1000&prefix=item-"
ROWS = (*WARM, LISTING)
CONNECTIONS = 16
REPEATS = 3
LATENCY = 0.05
"""Seconds until the origin answers, in the cold epoch."""
YARDSTICK = "nginx proxy_cache"
LARDER = "Larder"


def objects() -> dict[str, bytes]:
    """The bucket's content: items for cold reads, and objects for warm reads."""
    generator = random.Random(30)
    warm = {key: generator.randbytes(SIZES[size]) for size in WARM for key in warm_keys(size)}
    return contents() | warm


def warm_keys(size: str) -> list[str]:
    """The objects of a size."""
    return [f"warm/{size.replace(' ', '')}-{number:03}" for number in range(WARM[size])]


@dataclass(frozen=True)
class Side:
    """A cache to measure.

    Attributes:
        title: the name to display.
        version: of its program.
        servers: the one that gets the requests, then others whose processor time counts.
    """

    title: str
    version: str
    servers: tuple[Running, ...]

    @property
    def port(self) -> int:
        """The port for requests."""
        return self.servers[0].port

    def cpu_seconds(self) -> float:
        """Processor time since its start."""
        return sum(server.cpu_seconds() for server in self.servers)


Rounds = dict[str, list[float]]
"""The figures of all rounds by side."""


@contextmanager
def all_sides(directory: Path, origin_port: int) -> Iterator[list[Side]]:
    """Larder and all peers, running."""
    with ExitStack() as stack:
        ours = stack.enter_context(gateway(directory, origin_port, extra='listing = "immutable"\n'))
        sides = [Side(LARDER, version("larder-gateway"), (ours,))]
        for peer in PEERS:
            stores = (stack.enter_context(redis()),) if peer.needs_redis else ()
            ports = [store.port for store in stores]
            server = stack.enter_context(serving(peer, directory, origin_port, *ports))
            sides.append(Side(peer.title, version_of(peer), (server, *stores)))
        yield sides


def verifies(side: Side) -> bool:
    """Whether a request is refused after one digit of its signature was changed."""
    request = raw_request(side.port, warm_keys("4 KiB")[0])
    place = request.index(b"Signature=") + len(b"Signature=")
    other = b"1" if request[place : place + 1] == b"0" else b"0"
    with socket.create_connection(("127.0.0.1", side.port), timeout=10) as connection:
        connection.sendall(request[:place] + other + request[place + 1 :])
        return b" 403 " in connection.recv(4096).partition(b"\r\n")[0]


def check(side: Side) -> None:
    """Read everything warm.

    Raises:
        RuntimeError: an object or the listing is not the store's.
    """
    client = s3_client(side.port, ACCESS_KEY, SECRET_KEY)
    expected = objects()
    for key in (key for size in WARM for key in warm_keys(size)):
        if client.get_object(Bucket=BUCKET, Key=key)["Body"].read() != expected[key]:
            raise RuntimeError(f"{side.title}: {key} is not the store's")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix="item-", MaxKeys=1000)["Contents"]
    if [entry["Key"] for entry in listed] != sorted(contents()):
        raise RuntimeError(f"{side.title}: the listing is not the store's")


def write_scripts(directory: Path, side: Side) -> dict[str, Path]:
    """wrk's scripts by row; each was run for a second."""
    scripts = {}
    for row in ROWS:
        scripts[row] = directory / f"{side.port}-{row.replace(' ', '')}.lua"
        if row == LISTING:
            requests = [raw_listing(side.port, LISTED)]
        else:
            requests = [raw_request(side.port, key) for key in warm_keys(row)]
        write_script(scripts[row], requests)
        run_wrk(scripts[row], side.port, 4, 1)
    return scripts


def cpu_of(side: Side, script: Path) -> float:
    """Microseconds of processor time per request in a second of load."""
    before = side.cpu_seconds()
    outcome = run_wrk(script, side.port, CONNECTIONS, 1)
    used = side.cpu_seconds() - before
    if outcome.errors:
        raise RuntimeError(f"{side.title}: {outcome.errors} of {outcome.requests} requests failed")
    return used / outcome.requests * 1e6


def latency_of(side: Side, script: Path) -> float:
    """The median, in milliseconds, of one connection that sends its next request after each answer at once."""
    return run_wrk(script, side.port, 1, 1).median_latency * 1e3


def measure_warm(directory: Path, sides: list[Side]) -> dict[str, dict[str, Rounds]]:
    """All rounds by row, figure and side."""
    scripts = {side.title: write_scripts(directory, side) for side in sides}
    measured: dict[str, dict[str, Rounds]] = {}
    for row in ROWS:
        measured[row] = {
            name: in_turn({side.title: partial(measure, side, scripts[side.title][row]) for side in sides}, REPEATS)
            for name, measure in (("cpu", cpu_of), ("latency", latency_of))
        }
    return measured


def measure_cold(sides: list[Side], ask: Connection) -> dict[str, list[dict[str, float]]]:
    """An epoch over the items, in as many parts as there are rounds: every side reads each item once, from the origin."""
    keys = random.Random(2).sample(sorted(contents()), ITEMS)
    rounds: dict[str, list[dict[str, float]]] = {side.title: [] for side in sides}
    for number in range(REPEATS):
        part = keys[number::REPEATS]
        for side in sides:
            client = s3_client(side.port, ACCESS_KEY, SECRET_KEY)
            before, cpu = _asked(ask, LATENCY), side.cpu_seconds()
            seconds = with_boto3(client, part).seconds
            used, after = side.cpu_seconds() - cpu, _asked(ask, 0.0)
            figures = {"seconds": seconds, "cpu": used / len(part) * 1e6, "requests": (after - before) / len(part)}
            rounds[side.title].append(figures)
    return rounds


def _asked(ask: Connection, latency: float) -> int:
    """Set the origin's latency; returns the number of requests so far."""
    ask.send(latency)
    count: int = ask.recv()
    return count


def run() -> dict[str, Any]:
    """Measure and write the results."""
    where = machine()
    with (
        tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary,
        distant_origin(objects, counted=("", "/")) as (port, ask),
    ):
        _asked(ask, 0.0)
        with all_sides(Path(temporary), port) as sides:
            for side in sides:
                check(side)
            cold = measure_cold(sides, ask)
            refusing = {side.title: verifies(side) for side in sides}
            warm = measure_warm(Path(temporary), sides)
            versions = {side.title: side.version for side in sides}
    data = {
        "repeats": REPEATS,
        "listed": ITEMS,
        "length": LENGTH,
        "threads": THREADS,
        "latency": LATENCY,
        "connections": CONNECTIONS,
        "yardstick": YARDSTICK,
        "versions": versions,
        "verifies": refusing,
        "warm": warm,
        "cold": {
            figure: {title: [part[figure] for part in parts] for title, parts in cold.items()}
            for figure in ("seconds", "cpu", "requests")
        },
    }
    write("peers", data, where | {"versions": _listed(versions)})
    return data


def _listed(versions: dict[str, str]) -> str:
    return "; ".join(f"{title}: {number}" for title, number in versions.items())


if __name__ == "__main__":
    run()
