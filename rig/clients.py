"""A client that hides nothing: one connection, signed requests, and answers that state whether they came whole."""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from rig.gateways import Running
from rig.processes import descendants

PATIENCE = 60.0


@dataclass(frozen=True)
class Got:
    """One answer; ``whole`` is false when the connection ended before the last byte, or before the first."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True

    @property
    def cache(self) -> str:
        """The cache-status header."""
        return self.headers.get("x-larder-cache", "")

    @property
    def etag(self) -> str:
        """The ETag without quotes."""
        return self.headers.get("etag", "").strip('"')


class Client:
    """One connection, kept open between requests; an empty ``key`` signs nothing."""

    def __init__(self, endpoint: str, key: str = "GWA", secret: str = "gateway-secret-a") -> None:
        self._address = urlsplit(endpoint)
        self._credentials = Credentials(key, secret) if key else None
        self.connection = http.client.HTTPConnection(str(self._address.hostname), self._address.port, timeout=PATIENCE)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, even in the middle of an answer."""
        self.connection.close()

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request; ``path``, with its query, goes unchanged on the wire."""
        address = f"{self._address.scheme}://{self._address.netloc}{path}"
        request = AWSRequest(method, address, headers={"Host": self._address.netloc, **(headers or {})}, data=body)
        if self._credentials is not None:
            S3SigV4Auth(self._credentials, "s3", "us-east-1").add_auth(request)
        self.connection.request(method, path, body or None, dict(request.headers.items()))

    def begin(self) -> http.client.HTTPResponse:
        """Read the head of the answer; the caller reads the body."""
        return self.connection.getresponse()

    def answer(self) -> Got:
        """The whole answer; status 0 if the connection fails before the head."""
        try:
            return finish(self.begin())
        except (http.client.HTTPException, ConnectionError):
            return Got(0, {}, b"", whole=False)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Got:
        """Send a request and read its answer."""
        self.send(method, path, headers, body)
        return self.answer()

    def get(self, path: str, **headers: str) -> Got:
        """Read an object; ``cache_control="no-cache"`` sends that header."""
        return self.ask("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})

    def put(self, path: str, body: bytes) -> Got:
        """Write an object."""
        return self.ask("PUT", path, body=body)


def finish(response: http.client.HTTPResponse, before: bytes = b"") -> Got:
    """Read the rest of a body of which ``before`` was read."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Got(response.status, headers, before + response.read())
    except http.client.IncompleteRead as cut:
        return Got(response.status, headers, before + cut.partial, whole=False)
    except ConnectionError:
        return Got(response.status, headers, before, whole=False)


def get(running: Running, path: str, key: str = "GWA", secret: str = "gateway-secret-a", **headers: str) -> Got:
    """Read an object through a new connection."""
    with Client(running.endpoint, key, secret) as client:
        return client.get(path, **headers)


def children(pid: int, named: str) -> list[int]:
    """The descendants of a process whose command line contains ``named``."""
    return [child for child in descendants(pid) if named in _command_line(child)]


def workers_of(running: Running) -> list[int]:
    """The worker processes of a gateway with several workers: they are forked, so they have its command line."""
    supervisor = running.process.pid
    return [child for child in descendants(supervisor) if _command_line(child) == _command_line(supervisor)]


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Pause processes until the block ends; a process killed meanwhile does not continue."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def client_of_each_worker(running: Running, **who: Any) -> Iterator[dict[int, Client]]:
    """A connection to every worker of a gateway, by pid: the other workers are paused while it is made."""
    workers = workers_of(running) or [running.process.pid]
    clients: dict[int, Client] = {}
    try:
        for worker in workers:
            clients[worker] = Client(running.endpoint, **who)
            with paused(*(other for other in workers if other != worker)):
                assert clients[worker].ask("GET", "/-/readyz").status == 200
        yield clients
    finally:
        for client in clients.values():
            client.close()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
