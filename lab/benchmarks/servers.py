"""The measured servers, as real processes on loopback, and their use of resources as counted by the kernel."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from rig import gateways
from rig.gateways import Settings, table
from rig.launched import PROGRAM
from rig.processes import descendants, free_port
from rig.redis_server import RedisServer

BUCKET = "bench"
ACCESS_KEY = "LARDERBENCH"
SECRET_KEY = secrets.token_hex(20)
_PAGE = os.sysconf("SC_PAGE_SIZE")

_NGINX = """
user root; worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; keepalive_requests 100000000; types {{ }} default_type application/octet-stream;
  sendfile_max_chunk 2m;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
  scgi_temp_path {dir}/s;
  {http}
}}
"""
_ORIGIN = "server {{ listen 127.0.0.1:{port}; root {root}; limit_rate {limit}; {log} }}"
_LOGGED = "log_format asked '$request_method $uri $status $body_bytes_sent $sent_http_content_range';"
_CACHE = """
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=k:10m max_size=10g inactive=1h use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache k;
                  proxy_cache_key $uri; proxy_cache_valid 200 1h; }} }}
"""
_SLICES = """
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=k:10m max_size=10g inactive=1h use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ slice 1m; proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_set_header Range $slice_range; proxy_cache k; proxy_cache_key $uri$slice_range;
                  proxy_cache_valid 200 206 1h; }} }}
"""
_UPLOADS = """
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port}; client_max_body_size 1g;
    location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_request_buffering off; }} }}
"""


@dataclass(frozen=True)
class Running:
    """A server process with its children."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Time on a core of the whole process tree since it started.

        Taken from the scheduler's own clock, in nanoseconds: user and system time are sampled at ticks, so a server that works in
        bursts shorter than a tick may seem to use none.
        """
        return sum(_scheduled(pid) for pid in self.processes()) / 1e9

    def processes(self) -> list[int]:
        """The ids of the whole process tree."""
        return [self.pid, *descendants(self.pid)]

    def rss(self) -> int:
        """Resident bytes of the whole process tree."""
        return sum(int(_stat(pid)[21]) for pid in self.processes()) * _PAGE


def _scheduled(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@contextmanager
def started(
    name: str, port: int, command: list[str], log: Path, environ: dict[str, str] | None = None
) -> Iterator[Running]:
    """A server, once its port is open.

    Raises:
        RuntimeError: it did not start; the end of its log is in the message.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environ or {})}
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield Running(name, port, process.pid)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _nginx(name: str, directory: Path, port: int, http: str) -> Iterator[Running]:
    directory.mkdir()
    config = directory / "nginx.conf"
    config.write_text(_NGINX.format(dir=directory, http=http))
    with started(name, port, ["nginx", "-p", str(directory), "-c", str(config)], directory / "log") as running:
        yield running


@contextmanager
def origin(directory: Path, root: Path, limit: int = 0, log: Path | None = None) -> Iterator[Running]:
    """nginx serving files with keep-alive, as the fastest possible object store; it ignores signatures.

    Args:
        directory: parent of its new folder.
        root: the folder of the buckets.
        limit: bytes per second of each answer; 0 is unlimited.
        log: gets a line for each request: method, path, status, bytes sent, Content-Range.
    """
    port = free_port()
    http = _ORIGIN.format(port=port, root=root, limit=limit, log=f"access_log {log} asked;" if log else "")
    http = f"{_LOGGED} {http}" if log else http
    with _nginx("origin", directory / "origin", port, http) as running:
        yield running


def nginx_cache(directory: Path, origin_port: int) -> AbstractContextManager[Running]:
    """nginx proxy_cache with one worker in front of the origin; it verifies nothing."""
    return _in_front(_CACHE, directory, origin_port)


def nginx_slices(directory: Path, origin_port: int) -> AbstractContextManager[Running]:
    """nginx proxy_cache with slices of 1 MiB, which serves ranges without the whole object."""
    return _in_front(_SLICES, directory, origin_port)


def nginx_uploads(directory: Path, origin_port: int) -> AbstractContextManager[Running]:
    """nginx that passes uploads on as they arrive, without a temporary file."""
    return _in_front(_UPLOADS, directory, origin_port)


def _in_front(http: str, directory: Path, origin_port: int) -> AbstractContextManager[Running]:
    folder, port = directory / "nginx", free_port()
    return _nginx("nginx", folder, port, http.format(dir=folder, port=port, origin=origin_port))


@contextmanager
def redis() -> Iterator[Running]:
    """A Redis that keeps nothing on disk."""
    with RedisServer() as server:
        yield Running("redis", server.port, server.pid)


@contextmanager
def gateway(
    directory: Path,
    origin_port: int,
    cache: Path | None = None,
    *,
    capacity: str = "10TB",
    extra: str = "",
    program: Path = PROGRAM,
    workers: int = 1,
    unix_socket: str = "",
) -> Iterator[Running]:
    """Larder in front of the same origin, verifying SigV4; with an existing cache if one is given.

    Args:
        directory: parent of its new folder.
        origin_port: where the origin listens on loopback; it must accept or ignore the key "origin" with "origin-secret".
        cache: an existing cache to use.
        capacity: of the cache, as in the configuration.
        extra: further settings of its only rule, then further tables.
        program: the gateway, possibly that of another checkout.
        workers: its processes.
        unix_socket: path of an additional socket; empty for none.
    """
    home = directory / "gateway"
    home.mkdir()
    if cache is not None:
        (home / "cache").symlink_to(cache)
    settings = Settings(
        f"http://127.0.0.1:{origin_port}",
        home / "cache",
        capacity,
        reserve="100MB",
        workers=workers,
        origin_key=("origin", "origin-secret"),
        credentials=({"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY},),
        rules=({"match": "**", "freshness": "1h", "grant": "1h"},),
        server={"unix_socket": unix_socket} if unix_socket else {},
        extra=f"{extra}\n{table('[log]', {'level': 'warning'})}",
    )
    with gateways.gateway(settings, home, program=(program,)) as running:
        yield Running("larder", running.port, running.process.pid)


def counted(port: int) -> dict[str, float]:
    """The sums of the gateway's counters, by name."""
    with urlopen(f"http://127.0.0.1:{port}/-/metrics") as answer:
        text = answer.read().decode()
    names = ("larder_sent_bytes_total", "larder_origin_received_bytes_total", "larder_origin_requests_total")
    return {
        name: sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))
        for name in names
    }


@contextmanager
def protocol_alone(directory: Path, root: Path) -> Iterator[Running]:
    """Larder's server protocol with an application that only opens files: the floor under the gateway."""
    port = free_port()
    command = [sys.executable, "-m", "lab.benchmarks.files_app", str(port)]
    with started("protocol", port, command, directory / "protocol.log", {"BENCH_ROOT": str(root)}) as running:
        yield running
