"""Clients that send nothing more, at a gateway whose limits are small: nobody else is kept out."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from rig.clients import Client
from rig.gateways import Running, Settings, finish, start
from rig.world import Origin, content, credentials, eventually

MIB = 1024**2
MOST = 8
"""Places for requests at work."""


@pytest.fixture(scope="module")
def small(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with little of everything, and two tenants."""
    home: Path = tmp_path_factory.mktemp("small")
    server = {"max_in_flight": MOST, "body_memory": "128MiB", "spool": "16MiB", "body_timeout": "10m"}
    running = start(Settings(origin.endpoint, home / "cache", server=server, credentials=credentials("a", "b")), home)
    yield running
    finish(running)


def begun(running: Running, method: str, path: str, length: int, *, key: str = "", body: bytes = b"a") -> socket.socket:
    """A request whose body never ends; ``key`` of ``""`` signs nothing."""
    headers = {"Host": f"127.0.0.1:{running.port}", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    request = AWSRequest(method, f"{running.endpoint}{path}", headers=headers)
    if key:
        S3SigV4Auth(Credentials(f"GW{key.upper()}", f"gateway-secret-{key}"), "s3", "us-east-1").add_auth(request)
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=60)
    sock.sendall(f"{method} {path} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n".encode() + body)
    return sock


def statuses(running: Running, origin: Origin, name: str) -> dict[str, int]:
    """What tenant b gets: a cached object, one that is not, a write, and the results of a dataset that does not exist."""
    for kind in ("hit", "miss"):
        origin.put(f"/shares/{name}-{kind}", content(5000, name))
    with Client(running.endpoint, "GWB", "gateway-secret-b") as client:
        client.get(f"/shares/{name}-hit")
        return {
            "hit": client.get(f"/shares/{name}-hit").status,
            "miss": client.get(f"/shares/{name}-miss").status,
            "write": client.put(f"/shares/{name}-write", b"new").status,
            "results": client.ask("PUT", f"/-/v1/datasets/none/results/{'0' * 64}", body=b"none").status,
        }


SERVED = {"hit": 200, "miss": 200, "write": 200, "results": 404}


@pytest.mark.parametrize("key", ["", "a"], ids=["without a key", "of a tenant"])
@pytest.mark.parametrize(
    ("method", "path", "length"),
    [
        ("PUT", "/shares/slow", 1000),
        ("PUT", "/shares/slow-large", 50 * MIB),
        ("POST", "/shares?delete", 100_000),
        ("PUT", f"/-/v1/datasets/none/results/{'0' * 64}", 60 * MIB),
        ("POST", "/-/v1/datasets/none/batch", 4000),
        ("PUT", "/-/v1/datasets/none", 10 * MIB),
    ],
    ids=["small", "large", "delete", "results", "batch", "dataset"],
)
def test_bodies_that_never_end_keep_nobody_out(
    small: Running, origin: Origin, key: str, method: str, path: str, length: int
) -> None:
    """Rule: unfinished bodies, whosever and wherever, leave other tenants everything they need."""
    with ExitStack() as stack:
        for _ in range(4 * MOST):
            stack.enter_context(begun(small, method, path, length, key=key))
        assert statuses(small, origin, f"{method}{len(path)}{length}{key}") == SERVED


def test_answers_that_nobody_takes_keep_nobody_out(small: Running, origin: Origin) -> None:
    """Rule: clients that read nothing of large answers, cached or not, hold no place."""
    origin.put("/shares/large", content(32 * MIB, "large"))
    with ExitStack() as stack:
        for _ in range(3 * MOST):
            client = stack.enter_context(Client(small.endpoint))
            client.send("GET", "/shares/large")
            client.connection.sock.recv(1)
        eventually(lambda: small.metric("larder_requests_in_flight"), lambda count: count == 0, "no place is held")
        assert statuses(small, origin, "unread") == SERVED


def test_a_form_without_an_end_takes_a_share_of_the_spool(small: Running, origin: Origin) -> None:
    """Rule: a form without a key is refused SlowDown beyond a quarter of the spool; a tenant's upload with a trailer passes."""
    head = b'--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nform\r\n--b\r\n'
    head += b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as sock:
        lines = b"POST /shares HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        sock.sendall(lines + b"Content-Length: %d\r\n\r\n" % 10**9 + head + bytes(3 * MIB))
        boto = small.client("GWB", "gateway-secret-b")
        boto.put_object(Bucket="shares", Key="trailer", Body=bytes(MIB), ChecksumAlgorithm="CRC32")
        sock.sendall(bytes(2 * MIB))
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert (answer.status, b"EntityTooLarge" in answer.read()) == (400, True)
