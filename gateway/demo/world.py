"""The parts of the demo, started on one machine: an origin, a gateway with two tenants, and clients."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from gateway.base import children
from gateway.demo.clients import ORIGIN_KEYS, SPEECH, VISION, get
from gateway.demo.data import BUCKET
from gateway.demo.interrupts import Interrupts
from gateway.demo.processes import Child, DemoFailed

CAPACITY = 1000**3
PORTS = range(10_000, 32_768)
"""Below the ports that Linux gives to connections, so no connection takes a port between its choice and its use."""

GATEWAY = f"""\
[server]
host = "127.0.0.1"
port = {{port}}
drain = "2s"
drain_notice = "0s"

[cache]
dir = "{{cache}}"
capacity = {{capacity}}
reserve = "0"

[[origins]]
name = "default"
endpoint = "{{origin}}"
access_key_id = "{ORIGIN_KEYS.access_key_id}"
secret_access_key = "{ORIGIN_KEYS.secret_access_key}"

[[credentials]]
tenant = "vision"
access_key_id = "{VISION.access_key_id}"
secret_access_key = "{VISION.secret_access_key}"
"""
CONFIGURATION = f"""{GATEWAY}
[[credentials]]
tenant = "speech"
access_key_id = "{SPEECH.access_key_id}"
secret_access_key = "{SPEECH.secret_access_key}"
allow = ["{BUCKET}/speech/**"]

[log]
access = "{{cache}}.access.log"
"""


@dataclass(frozen=True, slots=True)
class DemoProcesses:
    """Starts the parts and ends them.

    Args:
        folder: of all files.
        stack: undoes everything, in reverse.
        interrupts: delays signals until new processes are on the stack.
        command: starts a gateway; ``--config FILE`` is appended.
    """

    folder: Path
    stack: ExitStack
    interrupts: Interrupts
    command: Sequence[str]

    @classmethod
    def within(cls, name: str, stack: ExitStack, interrupts: Interrupts, command: Sequence[str]) -> DemoProcesses:
        """Processes in a new temporary folder, which is removed at the end."""
        with interrupts.uninterrupted():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"larder-{name}-"))
        return cls(Path(folder), stack, interrupts, command)

    def start(self, name: str, command: Sequence[str | Path]) -> Child:
        """Start a process in ``folder`` that ends with the demo; its output is in ``folder/name.log``."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        log = self.folder / f"{name}.log"
        with self.interrupts.uninterrupted(), log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the commands are the demo's own
                children.bound(*map(str, command)),
                cwd=self.folder,
                # PyTorch creates this folder at import; by default it would stay behind in the temporary directory.
                env={**inherited, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torchinductor")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            child = Child(name, process, log)
            self.stack.callback(child.stop)
        return child

    def start_origin(self) -> str:
        """Start an origin; returns its address."""
        port_file = self.folder / "origin.port"
        process = self.start("origin", (sys.executable, "-m", "gateway.demo.origin", str(port_file)))
        process.wait_until(port_file.exists)
        return f"http://127.0.0.1:{port_file.read_text()}"

    def start_gateway(self, name: str, configuration: str) -> Child:
        """Start a gateway with a configuration."""
        file = self.folder / f"{name}.toml"
        file.write_text(configuration)
        return self.start(name, (*self.command, "--config", str(file)))


@dataclass(frozen=True, slots=True)
class World:
    """The running parts: addresses, the processes' owner, and the gateway's process."""

    ground: DemoProcesses
    origin: str
    endpoint: str
    gateway: Child

    def cached_bytes(self) -> int:
        """Bytes of the blobs in the cache directory, according to the file system."""
        blobs = self.ground.folder / "cache/blobs"
        return sum(path.stat().st_size for path in blobs.rglob("*") if path.is_file())


def build(port: int, stack: ExitStack, interrupts: Interrupts, command: Sequence[str]) -> World:
    """Start everything; everything started or created is pushed on ``stack``, to be ended and removed.

    Args:
        port: of the gateway; 0 picks a free port.
        stack: see `DemoProcesses`.
        interrupts: see `DemoProcesses`.
        command: see `DemoProcesses`.

    Raises:
        DemoFailed: a part did not start.
    """
    ground = DemoProcesses.within("demo", stack, interrupts, command)
    origin = ground.start_origin()
    return World(ground, origin, *start_gateway(ground, origin, "gateway", "cache", port=port))


def start_gateway(
    ground: DemoProcesses, origin: str, name: str, cache: str, *, port: int = 0, capacity: int = CAPACITY
) -> tuple[str, Child]:
    """Start a gateway and wait until it is ready; returns its address and its process.

    Args:
        ground: owns the process.
        origin: address of its origin.
        name: of the process, its log and its configuration file.
        cache: name of its cache directory.
        port: 0 picks a free port.
        capacity: bytes of the cache.

    Raises:
        DemoFailed: it did not start.
    """
    port = free_port(port)
    endpoint, folder = f"http://127.0.0.1:{port}", ground.folder / cache
    configuration = CONFIGURATION.format(port=port, cache=folder, capacity=capacity, origin=origin)
    gateway = ground.start_gateway(name, configuration)
    gateway.wait_until(lambda: ready(endpoint))
    return endpoint, gateway


def free_port(wanted: int = 0) -> int:
    """A port of 127.0.0.1 that nothing listens on: ``wanted``, or any of `PORTS`.

    Raises:
        DemoFailed: the wanted port is taken.
    """
    while True:
        port = wanted or random.choice(PORTS)  # noqa: S311 - a choice, no secret
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return port
        except OSError as error:
            if wanted or error.errno != errno.EADDRINUSE:
                raise DemoFailed(f"port {port} cannot be used: {error.strerror}") from None


def ready(endpoint: str, path: str = "/-/readyz") -> bool:
    """Whether a gateway reports that it is ready, or answers 200 at another path."""
    try:
        return get(endpoint, path)[0] == 200
    except (OSError, HTTPException):
        return False
