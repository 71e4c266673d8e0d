"""Real gateway processes: ``with gateway(...) as running`` starts one and stops it by its pid."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from rig.forked import Forked
from rig.launched import Launched
from rig.processes import descendants, kill_tree, wait_until
from rig.signed_requests import ClientSigner

START_WITHIN = 60.0
STOP_WITHIN = 60.0


@dataclass
class Settings:
    """The parts of a configuration that tests and measurements vary.

    ``redis`` is a URL, empty for the embedded one; ``memory`` is ``cache.memory``, empty for its default;
    ``further`` has more settings of ``[cache]``.
    ``extra`` is TOML put at the end.
    """

    endpoint: str
    cache: Path
    capacity: str = "200MB"
    block_size: str = "1MiB"
    reserve: str = "0"
    memory: str = ""
    further: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    origin_key: tuple[str, str] = ("origin-key-a", "origin-secret-a")
    origin: Mapping[str, Any] = field(default_factory=dict)
    credentials: tuple[Mapping[str, Any], ...] = (
        {"access_key_id": "GWA", "secret_access_key": "gateway-secret-a", "tenant": "a"},
    )
    rules: tuple[Mapping[str, Any], ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    redis: str = ""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""

    def toml(self) -> str:
        """The configuration file."""
        key, secret = self.origin_key
        lines = [
            table(
                "[server]",
                {"host": "127.0.0.1", "port": 0, "workers": self.workers, "drain_notice": "0s", **self.server},
            ),
            table(
                "[cache]",
                {
                    "dir": str(self.cache),
                    "capacity": self.capacity,
                    "block_size": self.block_size,
                    "reserve": self.reserve,
                    **({"memory": self.memory} if self.memory else {}),
                    **self.further,
                },
            ),
            table(
                "[[origins]]",
                {"endpoint": self.endpoint, "access_key_id": key, "secret_access_key": secret, **self.origin},
            ),
        ]
        lines += [table("[redis]", {"url": self.redis})] if self.redis else []
        lines += [table("[fleet]", self.fleet)] if self.fleet else []
        lines += [table("[[credentials]]", credential) for credential in self.credentials]
        lines += [table("[[rules]]", rule) for rule in self.rules]
        return "\n".join([*lines, self.extra])


def table(title: str, values: Mapping[str, Any]) -> str:
    """A table of a configuration file, its title in brackets."""
    return "\n".join([title, *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""])


@dataclass
class Running:
    """A gateway that is ready."""

    process: Forked | Launched
    endpoint: str
    config: Path
    log: Path
    console: str = ""
    """The address of operators' pages."""

    @property
    def port(self) -> int:
        """The port that the gateway listens on."""
        port = urlsplit(self.endpoint).port
        assert port is not None
        return port

    def client(self, key: str = "GWA", secret: str = "gateway-secret-a", **config: Any) -> Any:
        """A boto3 client that neither retries nor hides anything."""
        return s3_client(self.endpoint, key, secret, **config)

    def connection(self) -> http.client.HTTPConnection:
        """A plain connection to the gateway; its certificate, if any, is not verified."""
        if self.endpoint.startswith("https:"):
            return http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=10, context=ssl._create_unverified_context()
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def metric(self, name: str, token: str = "", **labels: str) -> float:
        """The sum of a metric's samples with these labels; those with names of tenants need a token."""
        connection = self.connection()
        connection.request("GET", "/-/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
        text = connection.getresponse().read().decode()
        connection.close()
        total = 0.0
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            sample, _, rest = head.partition("{")
            if sample == name and all(f'{label}="{wanted}"' in rest for label, wanted in labels.items()):
                total += float(value)
        return total

    def kill(self) -> None:
        """kill -9 the gateway and its workers, as a failure of the machine would."""
        kill_tree(self.process.pid)
        self.process.wait(STOP_WITHIN)

    def stop(self) -> int:
        """Send SIGTERM, and kill the gateway if it does not end; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def s3_client(endpoint: str, key: str, secret: str, **config: Any) -> Any:
    """A boto3 client for any endpoint, path style, without retries."""
    options = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}, "read_timeout": 60, **config}
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(**options),
    )


def start(
    settings: Settings,
    home: Path,
    *,
    unready: bool = False,
    files: int = 0,
    module: str = "gateway",
    isolated: bool = False,
    program: Sequence[str | Path] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Running:
    """Start ``larder-gateway serve`` and wait until it is ready, or reports that it is not; the caller stops it.

    ``files`` limits the descriptors of each of its processes; 0 leaves the limit unchanged. ``module`` is the module to run.
    ``isolated`` makes it read digest files in child processes, as in production. ``program`` is run in a new interpreter instead
    of a forked one; then its own limit, module and isolation apply. ``environ`` is added to the environment.
    """
    home.mkdir(parents=True, exist_ok=True)
    config = home / "larder.toml"
    config.write_text(settings.toml())
    log = home / f"gateway-{time.monotonic_ns()}.log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "AWS_"))}
    inherited.update(environ)
    command = ["serve", "--config", str(config)]
    process: Forked | Launched
    if program:
        process = Launched([*program, *command], inherited, log)
    else:
        process = Forked(command, inherited, log, files=files, module=module, isolated=isolated)
    line = process.stdout.readline()
    if "listening on " not in line:
        process.wait(STOP_WITHIN)
        process.stdout.close()
        raise RuntimeError(f"the gateway did not start: {log.read_text()}")
    console = process.stdout.readline().split("console at ")[1].strip().removesuffix("/-/")
    running = Running(process, line.split("listening on ")[1].strip(), config, log, console)
    statuses, pages = (200, 503) if unready else (200,), replace(running, endpoint=console)
    try:
        wait_until(
            lambda: _readiness(pages) in statuses or process.poll() is not None,
            START_WITHIN,
            "the gateway's readiness",
        )
        if process.poll() is not None:
            raise RuntimeError(f"the gateway ended at start: {log.read_text()}")
    except BaseException:
        running.kill()
        process.stdout.close()
        raise
    return running


def _readiness(running: Running) -> int:
    connection = running.connection()
    try:
        connection.request("GET", "/-/readyz")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@contextmanager
def gateway(settings: Settings, home: Path, **how: Any) -> Iterator[Running]:
    """A gateway for the duration of a test; ``how`` is as for ``start``."""
    running = start(settings, home, **how)
    try:
        yield running
    finally:
        finish(running)


def finish(running: Running) -> None:
    """Stop a gateway, if it still runs, and release its resources."""
    running.stop()
    running.process.stdout.close()


FLEET_SECRET = "a secret that the nodes of the tests share"


@contextmanager
def fleet(
    origin_endpoint: str,
    redis_url: str,
    count: int,
    home: Path,
    *,
    endpoints: Mapping[int, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[list[Running]]:
    """Gateways that form one fleet until the block ends; each sees all others as READY.

    Args:
        origin_endpoint: of the store behind all of them.
        redis_url: of the Redis that they share.
        count: the number of gateways.
        home: parent of the nodes' folders ``node-N``, which have their caches; ids are also ``node-N``, from 0.
        endpoints: other addresses of the store, for nodes that reach it differently.
        settings: further ``Settings``; ``fleet`` overrides secret, id and the quick heartbeat.
    """
    nodes = [
        fleet_node(endpoints.get(number, origin_endpoint), redis_url, number, home, **settings)
        for number in range(count)
    ]
    homes = [home / f"node-{number}" for number in range(count)]
    with ExitStack() as stack:
        with ThreadPoolExecutor(count) as pool:
            starts = [pool.submit(start, *each) for each in zip(nodes, homes, strict=True)]
        for begun in starts:
            if begun.exception() is None:
                stack.callback(finish, begun.result())
        running = [begun.result() for begun in starts]
        wait_for_fleet(running, {f"node-{number}": "READY" for number in range(count)})
        yield running


def fleet_node(origin_endpoint: str, redis_url: str, number: int, home: Path, **settings: Any) -> Settings:
    """The configuration of one node of ``fleet``."""
    name = f"node-{number}"
    table = {"secret": FLEET_SECRET, "node": name, "heartbeat": "200ms", **settings.get("fleet", {})}
    return Settings(origin_endpoint, home / name / "cache", redis=redis_url, **{**settings, "fleet": table})


def wait_for_fleet(nodes: Sequence[Running], states: Mapping[str, str]) -> None:
    """Wait until each of these gateways reports these states of the fleet's nodes.

    A gateway of several workers is asked several times in a row, because each worker has its own view.
    """
    wait_until(
        lambda: all(members(node) == dict(states) for node in nodes for _ in range(_answers(node))),
        START_WITHIN,
        f"a fleet of {dict(states)}",
    )


def _answers(node: Running) -> int:
    workers = len(descendants(node.process.pid))
    return 1 if workers < 2 else 8 * workers


def members(node: Running) -> dict[str, str]:
    """The states of the fleet's nodes by id, as a worker of a gateway knows them."""
    return {each["id"]: each["state"] for each in fleet_document(node)["nodes"]}


def fleet_document(node: Running) -> Any:
    """The answer of one worker of a gateway to ``GET /-/v1/fleet``."""
    signed = ClientSigner("GWA", "gateway-secret-a").header("GET", f"{node.endpoint}/-/v1/fleet")
    connection = node.connection()
    try:
        headers = {name.decode(): value.decode() for name, value in signed.headers}
        connection.request("GET", "/-/v1/fleet", headers=headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return json.loads(text)
    finally:
        connection.close()


def cache_status(response: Mapping[str, Any]) -> str:
    """The x-larder-cache header of a boto3 answer: ``HIT``, ``MISS; reason=cold``, ...

    Reads the body, if there is one: an unread answer keeps its connection open.
    """
    if "Body" in response:
        response["Body"].read()
    value: str = response["ResponseMetadata"]["HTTPHeaders"].get("x-larder-cache", "")
    return value
