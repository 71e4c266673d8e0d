"""Gateways that are one fleet, with a Redis, as processes on this machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import free_port
from evaluation.origin import KEY, SECRET, Data, Origin
from gateway.fleet.redis.embedded import find_server
from larder import Client, Credentials, DatasetInfo
from larder.http.api import Api

CREDENTIALS = Credentials("evaluation", "a secret of the evaluation")
LOW = 0.9
"""Share of a cache's capacity that is used (gateway/policies/watermarks.py)."""
_START = 300.0


@dataclass(frozen=True)
class Fleet:
    """Its gateways' addresses."""

    endpoints: tuple[str, ...]
    directory: Path

    def register(self, data: Data, caching: str = "auto") -> DatasetInfo:
        """Let the fleet know a dataset."""
        client = Client(self.endpoints[0], credentials=CREDENTIALS)
        return client.register(data.name, data.digests(self.directory), caching=caching)

    def ask(self, path: str) -> Any:
        """The first gateway's answer to GET ``path``."""
        return Api(self.endpoints[0], credentials=CREDENTIALS, timeout=10).json("GET", path)


@contextmanager
def fleet(
    store: Origin,
    directory: Path,
    capacity: float,
    *,
    nodes: int = 3,
    workers: int = 1,
    manager: Mapping[str, object] | None = None,
) -> Iterator[Fleet]:
    """Some gateways, each of so many worker processes, whose caches together keep ``capacity`` bytes."""
    directory.mkdir(parents=True)
    redis, ports = free_port(), [free_port() for _ in range(nodes)]
    with ExitStack() as stack:
        quiet = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        stack.enter_context(_process([find_server(), "--port", str(redis), *quiet], directory / "redis.log"))
        for number, port in enumerate(ports):
            config = directory / f"node-{number}.toml"
            server = {"host": "127.0.0.1", "port": port, "workers": workers}
            config.write_text(_toml(store, directory, number, server, redis, capacity / nodes / LOW, manager or {}))
            command = [str(Path(sys.executable).with_name("larder-gateway")), "serve", "--config", str(config)]
            stack.enter_context(_process(command, directory / f"node-{number}.log"))
        running = Fleet(tuple(f"http://127.0.0.1:{port}" for port in ports), directory)
        _wait(running, nodes)
        yield running


def _toml(
    store: Origin,
    directory: Path,
    number: int,
    server: Mapping[str, object],
    redis: int,
    capacity: float,
    manager: Mapping[str, object],
) -> str:
    tables: list[tuple[str, Mapping[str, object]]] = [
        ("[server]", server),
        (
            "[cache]",
            {"dir": str(directory / f"cache-{number}"), "capacity": str(math.ceil(capacity)), "reserve": "100MB"},
        ),
        ("[redis]", {"url": f"redis://127.0.0.1:{redis}"}),
        ("[fleet]", {"secret": "a secret of the evaluation's fleet", "node": f"node-{number}"}),
        ("[manager]", manager),
        ("[log]", {"level": "warning"}),
        ("[[origins]]", {"endpoint": store.endpoint, "access_key_id": KEY, "secret_access_key": SECRET}),
        (
            "[[credentials]]",
            {"access_key_id": CREDENTIALS.access_key_id, "secret_access_key": CREDENTIALS.secret_access_key},
        ),
        ("[[rules]]", {"match": "**", "freshness": "immutable", "grant": "1h"}),
    ]
    lines = [
        title + "\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in of.items()) for title, of in tables
    ]
    return "\n\n".join(lines) + "\n"


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(running: Fleet, nodes: int) -> None:
    deadline = time.monotonic() + _START
    waiting = list(running.endpoints)
    while waiting:
        try:
            answer = Api(waiting[0], credentials=CREDENTIALS, timeout=5).json("GET", "/-/v1/fleet")
            if sum(node["state"] == "READY" for node in answer["nodes"]) == nodes:
                waiting.pop(0)
                continue
        except Exception as error:
            failure: object = error
        else:
            failure = answer
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-1500:] for path in running.directory.glob("node-*.log"))
            raise RuntimeError(f"the fleet did not come together: {failure}\n{logs}")
        time.sleep(0.1)
