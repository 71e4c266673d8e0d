"""The parts of the demo, started on one machine: an origin, a gateway with two tenants, and clients."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from gateway.demo.data import BUCKET
from gateway.demo.interrupts import Interrupts
from gateway.demo.origin import COUNTS_PATH
from gateway.demo.processes import Child, DemoFailed, start

THREADS = 16


@dataclass(frozen=True, slots=True)
class Keys:
    """An access key with its secret; those of the demo open nothing outside it."""

    access_key_id: str
    secret_access_key: str


ORIGIN_KEYS = Keys("origin-key", "origin-secret")
VISION = Keys("vision-key", "vision-secret")
SPEECH = Keys("speech-key", "speech-secret")

CONFIGURATION = """\
[server]
host = "127.0.0.1"
port = {port}
drain = "2s"

[cache]
dir = "{folder}/cache"
capacity = "1GB"
reserve = "0"

[log]
access = "{folder}/access.log"

[[origins]]
name = "default"
endpoint = "{origin}"
access_key_id = "{origin_keys.access_key_id}"
secret_access_key = "{origin_keys.secret_access_key}"

[[credentials]]
tenant = "vision"
access_key_id = "{vision.access_key_id}"
secret_access_key = "{vision.secret_access_key}"

[[credentials]]
tenant = "speech"
access_key_id = "{speech.access_key_id}"
secret_access_key = "{speech.secret_access_key}"
allow = ["{bucket}/speech/**"]
"""


@dataclass(frozen=True, slots=True)
class World:
    """What is running: addresses, the folder that everything is in, and the gateway's process."""

    folder: Path
    origin: str
    endpoint: str
    gateway: Child

    def client(self, endpoint: str, keys: Keys) -> Any:
        """A plain boto3 S3 client; nothing is repeated, so every request that is counted was meant."""
        config = Config(
            s3={"addressing_style": "path"}, max_pool_connections=THREADS, retries={"total_max_attempts": 1}
        )
        return boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=keys.access_key_id,
            aws_secret_access_key=keys.secret_access_key,
            config=config,
        )

    def origin_requests(self) -> int:
        """How many requests have arrived at the origin, counted there."""
        status, body = _get(self.origin, COUNTS_PATH)
        assert status == 200, body
        return sum(json.loads(body).values())

    def cached_bytes(self) -> int:
        """Bytes of the blobs in the cache directory, as the file system has them."""
        return sum(path.stat().st_size for path in (self.folder / "cache/blobs").rglob("*") if path.is_file())


def build(port: int, stack: ExitStack, interrupts: Interrupts, command: Sequence[str]) -> World:
    """Start everything; whatever is started or created is put on ``stack`` to be ended and removed.

    Args:
        port: where the gateway listens; 0 picks a free port.
        stack: its callbacks undo what was done, in reverse.
        interrupts: delays signals while something exists that is not on the stack yet.
        command: how the gateway is started; ``--config FILE`` is appended.

    Raises:
        DemoFailed: a part did not start.
    """
    with interrupts.uninterrupted():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-demo-")))
    port_file = folder / "origin.port"
    store = start("origin", (sys.executable, "-m", "gateway.demo.origin", str(port_file)), folder, stack, interrupts)
    store.wait_until(port_file.exists)
    origin = f"http://127.0.0.1:{port_file.read_text()}"

    endpoint = f"http://127.0.0.1:{_free_port(port)}"
    configuration = folder / "larder.toml"
    configuration.write_text(
        CONFIGURATION.format(
            port=endpoint.rpartition(":")[2], folder=folder, origin=origin, origin_keys=ORIGIN_KEYS, vision=VISION,
            speech=SPEECH, bucket=BUCKET,
        )
    )  # fmt: skip
    gateway = start("gateway", (*command, "--config", str(configuration)), folder, stack, interrupts)
    gateway.wait_until(lambda: _ready(endpoint))
    return World(folder, origin, endpoint, gateway)


def _free_port(wanted: int) -> int:
    try:
        with socket.create_server(("127.0.0.1", wanted)) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise DemoFailed(f"port {wanted} cannot be used: {error.strerror}") from None


def _ready(endpoint: str) -> bool:
    try:
        return _get(endpoint, "/-/readyz")[0] == 200
    except (OSError, HTTPException):
        return False


def _get(endpoint: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
