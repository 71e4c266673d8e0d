"""The parts of the fleet, each a process on this machine: an origin, Redis, three gateways, and nginx if it is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gateway.demo.clients import get
from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import Child, DemoFailed
from gateway.demo.run import GATEWAY_COMMAND
from gateway.demo.world import GATEWAY, DemoProcesses, free_port, ready
from gateway.fleet.redis.embedded import find_server

NODES = 3
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""The folders of Debian's nginx, which are not on users' PATH."""

CONFIGURATION = f"""{GATEWAY}
[redis]
url = "redis://127.0.0.1:{{redis}}"

[fleet]
secret = "the secret of a fleet on one machine"
node = "{{name}}"
"""


class CacheFill(NamedTuple):
    """The content of a node's cache."""

    blobs: int
    size: int
    capacity: int


@dataclass(slots=True)
class NodeProcess:
    """One gateway."""

    name: str
    endpoint: str
    process: Child
    alive: bool = True

    def kill(self) -> None:
        """kill -9, like a power failure."""
        os.killpg(self.process.process.pid, signal.SIGKILL)
        self.process.process.wait()
        self.alive = False

    def fill(self) -> CacheFill:
        """The content of its cache, from its metrics."""
        text = get(self.endpoint, "/-/metrics")[1].decode()
        values = dict(re.findall(r"^(larder_cache_\w+) (\S+)$", text, re.MULTILINE))
        names = ("larder_cache_blobs", "larder_cache_bytes", "larder_cache_capacity_bytes")
        return CacheFill(*(int(float(values.get(name, "0"))) for name in names))


@dataclass(frozen=True, slots=True)
class DemoFleet:
    """The running parts.

    Args:
        ground: owns all processes.
        origin: its address.
        redis: the port of Redis.
        nodes: the gateways.
        balancer: address of nginx; empty without it.
    """

    ground: DemoProcesses
    origin: str
    redis: int
    nodes: tuple[NodeProcess, ...]
    balancer: str

    def endpoint(self, number: int) -> str:
        """The address for a job: nginx's, or else a gateway's."""
        return self.balancer or self.nodes[number].endpoint


def build(capacity: int, port: int, nginx: Path | None, stack: ExitStack, interrupts: Interrupts) -> DemoFleet:
    """Start everything; everything started or created is pushed on ``stack``, to be ended and removed.

    Args:
        capacity: bytes that each gateway caches.
        port: port of nginx, or without it of the first gateway; 0 picks a free port.
        nginx: the folder with its configuration, or ``None`` for no nginx.
        stack: see `DemoProcesses`.
        interrupts: see `DemoProcesses`.

    Raises:
        DemoFailed: a part did not start.
    """
    ground = DemoProcesses.within("fleet", stack, interrupts, GATEWAY_COMMAND)
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{SBIN}") if nginx else None
    redis = _start_redis(ground)
    origin = ground.start_origin()
    # Chosen together: otherwise a free port that is not used yet could be chosen twice.
    first = free_port(0 if program else port)
    ports = [first, *_other_ports(NODES - 1, first)]
    common = {"capacity": capacity, "redis": redis, "origin": origin}
    nodes = tuple(_start_gateway(ground, number, at, common) for number, at in enumerate(ports, 1))
    for node in nodes:
        node.process.wait_until(partial(_whole, node))
    balancer = _start_nginx(ground, program, nginx, nodes, port) if program and nginx else ""
    return DemoFleet(ground, origin, redis, nodes, balancer)


def _other_ports(count: int, taken: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = free_port()
        if port != taken and port not in ports:
            ports.append(port)
    return ports


def _start_redis(ground: DemoProcesses) -> int:
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    process = ground.start("redis", (find_server(), *options))
    process.wait_until(lambda: _listens(port))
    return port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _start_gateway(ground: DemoProcesses, number: int, port: int, common: Mapping[str, object]) -> NodeProcess:
    name = f"gateway-{number}"
    cache = ground.folder / f"cache-{number}"
    process = ground.start_gateway(name, CONFIGURATION.format(name=name, port=port, cache=cache, **common))
    return NodeProcess(name, f"http://127.0.0.1:{port}", process)


def _whole(node: NodeProcess) -> bool:
    """Whether a gateway is ready, and sees all others ready."""
    if not ready(node.endpoint):
        return False
    text = get(node.endpoint, "/-/metrics")[1].decode()
    return f'larder_fleet_nodes{{state="READY"}} {NODES:.1f}' in text


def _start_nginx(ground: DemoProcesses, program: str, source: Path, nodes: Sequence[NodeProcess], wanted: int) -> str:
    """nginx with the configuration of docker-compose.yml, except for the addresses."""
    folder = ground.folder / "nginx"
    shutil.copytree(source, folder)
    port = free_port(wanted)
    text = (folder / "gateways.conf").read_text().replace("listen 9000", f"listen 127.0.0.1:{port}")
    for number, node in enumerate(nodes, 1):
        text = text.replace(f"gateway-{number}:9000", node.endpoint.removeprefix("http://"))
    own = "".join(f"{kind}_temp_path temp-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "gateways.conf").write_text(own + text)
    # One process: workers would outlive a master that is killed.
    directives = "daemon off; master_process off; pid nginx.pid; error_log stderr warn;"
    command = (program, "-e", "stderr", "-p", f"{folder}/", "-c", "nginx.conf", "-g", directives)
    endpoint = f"http://127.0.0.1:{port}"
    process = ground.start("nginx", command)
    process.wait_until(lambda: ready(endpoint, "/-/healthz"))
    return endpoint


def describe(fleet: DemoFleet) -> str:
    """A readable list of the running parts."""
    shape = ", ".join(f"{node.name} {node.endpoint}" for node in fleet.nodes)
    front = f"nginx {fleet.balancer} in front of " if fleet.balancer else ""
    return f"{front}{shape}; Redis 127.0.0.1:{fleet.redis}; origin (moto) {fleet.origin}"


def ended(fleet: DemoFleet) -> DemoFailed:
    """Wait until a gateway ends unexpectedly; returns the failure."""
    living = [node for node in fleet.nodes if node.alive]
    code = living[0].process.process.wait()
    return DemoFailed(f"{living[0].name} ended with exit code {code}")
