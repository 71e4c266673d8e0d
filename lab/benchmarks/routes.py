"""Code that one request passes through: calls, files, moves between files, and climbs to a higher floor.

Run ``python -m lab.benchmarks routes``; ``python -m lab.benchmarks.routes --calls get-hit`` lists the calls of one route.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import gateway
from gateway.app import create
from gateway.base.config import load_settings
from gateway.base.metrics import RELAYED
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.peer.auth import PeerSigner
from gateway.model.peer.objects import object_path
from gateway.model.peer.principal import principal_header
from gateway.server.asgi_types import Application
from gateway.server.run import Launch, serve
from gateway.wiring.config_file import launch_environment
from lab.benchmarks.fleet_reads import FLEET, SECRET, await_fleet
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, protocol_alone, redis
from lab.benchmarks.servers import gateway as gateway_of
from larder.digest.writer import Row
from larder.digest.writer import write as write_digests
from rig.processes import free_port
from rig.signed_requests import ClientSigner

ROOT = str(Path(gateway.__file__).parent) + os.sep
TOKEN = "an-admin-token-of-this-program"
SIZE = 110 * 1024
ITEMS = 32
TIMES = 7
APART = 0.2
"""Seconds between two requests."""
FLOORS = {
    "model": 0, "policies": 1, "base": 2, "net": 2, "store": 3, "origin": 3, "fleet": 3, "engine": 4, "sim": 4, "commands": 4,
    "server": 5, "edge": 5, "api": 5, "admin": 5, "operate": 5, "feature.py": 5, "testing": 6, "wiring": 6, "app.py": 6,
    "demo": 6, "local": 7, "cli.py": 7, "__main__.py": 7,
}  # fmt: skip
BUDGETS = {
    "get-hit": {"calls": 1, "files": 1, "climbs": 0},  # and one call of compiled code
    "get-miss": {"calls": 139, "files": 47, "climbs": 24},
    "batch-32-hits": {"calls": 200},
    "put": {"calls": 173, "files": 42},
    "get-hit-range": {"calls": 20},
    "get-relayed": {"calls": 47},
    "get-relayed-home": {"calls": 30},
    "heartbeat": {"calls": 136},  # all of a round trip that was up to ten
    "credential-created": {"calls": 720},
}
"""The most of each figure, by route: figures that were reached and must not grow."""
GOALS = {"get-miss": {"files": 30, "climbs": 12}}
"""Goals that are not reached yet."""

_CONFIG = """
[server]
port = {port}
[cache]
dir = "{dir}/cache"
capacity = "1GB"
reserve = "0"
[log]
level = "warning"
[admin]
token = "{token}"
[[origins]]
endpoint = "http://127.0.0.1:{origin}"
access_key_id = "origin"
secret_access_key = "origin-secret"
[[credentials]]
access_key_id = "{key}"
secret_access_key = "{secret}"
[[rules]]
match = "**"
freshness = "1h"
grant = "1h"
"""


@dataclass
class Route:
    """The calls of one request in order: file, relative to ``gateway``, and qualified name."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        """Calls, files, moves and climbs."""
        files = [file for file, _ in self.calls]
        moves = [(source, target) for source, target in pairwise(files) if source != target]
        return {
            "calls": len(files),
            "files": len(set(files)),
            "moves": len(moves),
            "climbs": sum(floor(target) > floor(source) for source, target in moves),
        }


def floor(file: str) -> int:
    """The floor of a file, named relative to ``gateway``."""
    return FLOORS[file.partition(os.sep)[0]]


class Recorder:
    """Records the calls of the thread that runs the given event loop."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._names: dict[CodeType, str] = {}
        self._route = Route()

    def found(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop in which the application serves."""
        self._loop = loop
        self.ready.set()

    def record(self, request: Callable[[], object]) -> Route:
        """The route of the work that ``request`` causes; called in another thread."""
        self._in_loop(self._begin)
        request()
        route: Route = self._in_loop(self._end)
        return route

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def _begin(self) -> None:
        self._route = Route()
        sys.setprofile(self._see)

    def _end(self) -> Route:
        sys.setprofile(None)
        return self._route

    def _file(self, code: CodeType) -> str:
        if code not in self._names:
            name = code.co_filename
            self._names[code] = name.removeprefix(ROOT) if name.startswith(ROOT) else ""
        return self._names[code]

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (file := self._file(frame.f_code)):
            self._route.calls.append((file, frame.f_code.co_qualname))


RECORDER = Recorder()


class _Traced:
    """The gateway's application, which reports its event loop."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._inner(scope, receive, send)
            return

        async def told(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                RECORDER.found(asyncio.get_running_loop())

        await self._inner(scope, receive, told)

    def begin(self, scope: Any, receive: Any, send: Any, send_files: Any) -> Any:
        """The calls that the gateway's application makes at once."""
        return self._inner.begin(scope, receive, send, send_files)


def traced() -> _Traced:
    """The factory that the server calls."""
    return _Traced(create())


class Requests:
    """The requests, sent over one kept connection."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._signer = ClientSigner(ACCESS_KEY, SECRET_KEY)
        self._made = 0

    def signed(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Send a signed request, which must succeed; returns the body."""
        url, _, query = path.partition("?")
        request = self._signer.header(method, self._url + path, dict(headers), body=body)
        given = {name.decode(): value.decode() for name, value in request.headers}
        return self._send(method, url + ("?" + query if query else ""), body, given)

    def relayed(self, path: str) -> bool:
        """Send a signed read; returns whether another node answered it."""
        count = RELAYED.labels("answered")._value
        before = count.get()
        self.signed("GET", path)
        return bool(count.get() > before)

    def as_node(self, key: str) -> None:
        """Send a read of an object as another node of the fleet does."""
        _, told = principal_header(ACCESS_KEY, OriginIdentity("default", "origin"))
        path = object_path(ObjectKey("default", BUCKET, key))
        socket = self._connection.sock
        socket.sendall(PeerSigner(SECRET, "other").get(path, "127.0.0.1", told, time.time()))
        response = http.client.HTTPResponse(socket, method="GET")
        response.begin()
        if response.status != 200 or len(response.read()) != SIZE:
            raise RuntimeError(f"{path}: {response.status}")

    def admin(self, method: str, path: str, document: object) -> bytes:
        """Send a request to an admin address."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        return self._send(method, path, json.dumps(document).encode(), headers)

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        self._connection.request(method, path, body or None, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {data[:300]!r}")
        return data

    def batch(self, dataset: str) -> None:
        """An exact batch of resident items."""
        indices = np.arange(ITEMS, dtype="<u4").tobytes()
        self.signed("POST", f"/-/v1/datasets/{dataset}/batch?mode=exact", indices)

    def join(self, dataset: str) -> None:
        """Register a job."""
        words = {"job": "routes", "dataset": dataset, "gpus": 1, "batch_size": ITEMS, "ranks": 1}
        self.signed("POST", "/-/v1/jobs", json.dumps(words).encode(), **{"Content-Type": "application/json"})

    def beat(self) -> None:
        """Send a heartbeat of the job."""
        words = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}, "queue": 1}
        body = json.dumps(words).encode()
        self.signed("POST", "/-/v1/jobs/routes/heartbeat", body, **{"Content-Type": "application/json"})

    def create(self) -> None:
        """Create a credential."""
        self._made += 1
        self.admin("POST", "/-/admin/credentials", {"access_key_id": f"routes-{self._made}"})


def routes(requests: Requests, root: Path, directory: Path) -> Iterator[tuple[str, Route]]:
    """Name and route of each kind of request, after its preparations."""
    hits = [f"/{BUCKET}/{key}" for key in make_many(root, "hit", ITEMS, SIZE)]
    misses = [f"/{BUCKET}/{key}" for key in make_many(root, "miss", TIMES, SIZE)]
    for path in [*hits, *hits]:
        requests.signed("GET", path)
    dataset = _register(requests, root, directory)
    requests.batch(dataset)
    requests.join(dataset)
    time.sleep(2)  # by then, the preparation's background work is done
    cold, body = iter(misses), bytes(SIZE)
    plain: dict[str, Callable[[], object]] = {
        "get-hit": lambda: requests.signed("GET", hits[0]),
        "get-hit-range": lambda: requests.signed("GET", hits[1], Range="bytes=1000-2999"),
        "get-miss": lambda: requests.signed("GET", next(cold)),
        "put": lambda: requests.signed("PUT", f"/{BUCKET}/put", body),
        "batch-32-hits": lambda: requests.batch(dataset),
        "heartbeat": requests.beat,
        "credential-created": requests.create,
    }
    for name, request in plain.items():
        yield name, shortest(request)


def shortest(request: Callable[[], object]) -> Route:
    """The shortest route of a request that is sent several times."""
    sent = []
    for _ in range(TIMES):
        time.sleep(APART)
        sent.append(RECORDER.record(request))
    return min(sent, key=lambda route: len(route.calls))


def fleet_routes(requests: Requests, root: Path, _directory: Path) -> Iterator[tuple[str, Route]]:
    """Name and route of a relayed hit, at the node that the client asks and at the home."""
    by_home: dict[bool, str] = {}
    for key in make_many(root, "fleet", ITEMS, SIZE):
        by_home[requests.relayed(f"/{BUCKET}/{key}")] = key
    far, near = by_home[True], by_home[False]
    for _ in range(2):
        requests.signed("GET", f"/{BUCKET}/{far}")
        requests.as_node(near)
    yield "get-relayed", shortest(lambda: requests.signed("GET", f"/{BUCKET}/{far}"))
    yield "get-relayed-home", shortest(lambda: requests.as_node(near))


def _register(requests: Requests, root: Path, directory: Path) -> str:
    rows = []
    for key in sorted(path.name for path in (root / BUCKET).glob("hit-*")):
        data = (root / BUCKET / key).read_bytes()
        rows.append(Row(hashlib.sha256(data).digest(), BUCKET, key, None, len(data), "", len(data), None))
    file = directory / "routes.parquet"
    write_digests(file, rows, "objects")
    found = json.loads(requests.signed("PUT", "/-/v1/datasets/routes?caching=full", file.read_bytes()))
    return str(found["id"])


Routes = Callable[[Requests, Path, Path], Iterator[tuple[str, Route]]]


def measure() -> dict[str, Route]:
    """The routes by name: of a single gateway, then of one in a fleet of two. Call it in the main thread."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="routes-")))
        (directory / "objects" / BUCKET).mkdir(parents=True)
        store = stack.enter_context(protocol_alone(directory, directory / "objects"))
        common = stack.enter_context(redis())
        found = served(directory, store.port, common.port, routes)
        first, second = (FLEET.format(redis=common.port, secret=SECRET, name=name) for name in ("first", "second"))
        (directory / "second").mkdir()
        other = stack.enter_context(gateway_of(directory / "second", store.port, capacity="1GB", extra=second))
        return {**found, **served(directory, store.port, common.port, fleet_routes, [other], first)}


def served(
    directory: Path, origin: int, common: int, routes: Routes, others: Sequence[Running] = (), extra: str = ""
) -> dict[str, Route]:
    """The routes, by name, of a gateway that is started and stopped here.

    Args:
        directory: of its configuration, its cache and the origin's objects.
        origin: the origin's port.
        common: the port of Redis.
        routes: sends the requests.
        others: further nodes of its fleet.
        extra: further tables of its configuration.
    """
    found: dict[str, Route] = {}
    failures: list[BaseException] = []
    port, config = free_port(), directory / "larder.toml"
    own = _CONFIG.format(dir=directory, port=port, origin=origin, token=TOKEN, key=ACCESS_KEY, secret=SECRET_KEY)
    config.write_text(own + extra)
    settings = load_settings(config, {}, {})
    launch = Launch("lab.benchmarks.routes:traced", launch_environment(config, {}, f"redis://127.0.0.1:{common}/0"))
    RECORDER.ready.clear()

    def drive() -> None:
        try:
            if not RECORDER.ready.wait(60):
                raise RuntimeError("the gateway did not start")
            if others:
                await_fleet([*others, Running("first", port, os.getpid())])
            found.update(routes(Requests(port), directory / "objects", directory))
        except BaseException as failure:
            failures.append(failure)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    driver = threading.Thread(target=drive)
    driver.start()
    serve(settings.server, launch)
    driver.join()
    if failures:
        raise failures[0]
    return found


def run() -> None:
    """Measure, and write results/routes.md."""
    figures = {name: route.figures() for name, route in measure().items()}
    ratios = [
        Ratio(f"{figure} of {name}{suffix}", figures[name][figure], most, deviation=0.0)
        for suffix, limits in (("", BUDGETS), (", beside its goal", GOALS))
        for name, of in limits.items()
        for figure, most in of.items()
    ]
    write("routes", {"routes": figures, "budgets": BUDGETS, "goals": GOALS}, machine(), ratios)


def main() -> None:
    """Print the figures, or the calls of one route."""
    parser = argparse.ArgumentParser(description="Count the calls and files that one request passes through.")
    parser.add_argument("--calls", metavar="ROUTE", help="list the calls of this route instead")
    options = parser.parse_args()
    # The server imports this module by name for its factory; the recorder must belong to that module.
    from lab.benchmarks import routes as module

    for name, route in module.measure().items():
        if options.calls is None:
            print(f"{name:20}", *(f"{figure} {number:5}" for figure, number in route.figures().items()))
        elif name == options.calls:
            for file, call in route.calls:
                print(f"{file:32} {call}")


if __name__ == "__main__":
    main()
