"""The number of series stays bounded under a workload that tries to inflate it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rig.gateways import Running, Settings, gateway
from rig.origin import OriginThread
from rig.signed_requests import ClientSigner

TENANTS = 100
KEYS = 3_000
FIRST = 500
"""Enough for each kind of request to have come several times from several tenants."""
MOST = 600
METHODS = ("GET", "HEAD", "DELETE", "OPTIONS", "PROPFIND", "LOCK", "TELLTALE", "GET")
THREADS = 4


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A gateway with a hundred tenants, each with its own prefix."""
    credentials = tuple(
        {
            "access_key_id": f"telltale{number}",
            "secret_access_key": "secret",
            "tenant": f"telltale-tenant-{number}",
            "allow": [f"telltale-bucket/{number}/**"],
        }
        for number in range(TENANTS)
    )
    with (
        OriginThread() as origin,
        gateway(Settings(origin.endpoint, tmp_path / "cache", credentials=credentials), tmp_path) as started,
    ):
        for number in range(TENANTS):
            origin.put("telltale-bucket", f"{number}/there", b"x")
        yield started


def hostile(connection: http.client.HTTPConnection, endpoint: str, number: int) -> None:
    """Send one request with a new key, and often a new caller; a fortieth of the requests reach the store."""
    tenant, kind = number % TENANTS, number % 8
    method, key, headers = METHODS[number // 8 % 8], f"telltale-key-{number}", {}
    path = f"/telltale-bucket/{tenant}/{key}"
    if number % 40 == 0:
        signer = ClientSigner(f"telltale{tenant}", "secret")
        path = f"/telltale-bucket/{tenant}/{'there' if number % 80 else key}"
        headers = {name.decode(): value.decode() for name, value in signer.header("GET", endpoint + path).headers}
        method = "GET"
    elif kind < 3:
        credential = f"Credential=telltale-stranger-{number}/20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=00"}
    elif kind == 3:
        path = f"/-/v1/datasets/telltale-dataset-{number}/batch?mode=telltale-{number}"
        method = "POST"
    elif kind == 4:
        path = f"/-/peer/v1/telltale-{number}"
        headers = {"Authorization": f"Larder telltale-{number}", "X-Larder-Node": f"telltale-{number}"}
    elif kind == 5:
        path = f"/-/telltale-{number}"
    elif kind == 6:
        path = f"/-/admin/telltale-{number}"
        headers = {"Authorization": f"Bearer telltale-{number}"}
    else:
        path = f"/Telltale_{number}/{key}?telltale-{number}"
    connection.request(method, path, headers=headers)
    connection.getresponse().read()


def ask(running: Running, numbers: range) -> None:
    """Send these requests over some connections, reopening each that the gateway closes."""
    shares = [numbers[first::THREADS] for first in range(THREADS)]

    def work(share: range) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        for number in share:
            hostile(connection, running.endpoint, number)
        connection.close()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, shares))


def exposed(running: Running) -> set[str]:
    """The series: every name with its labels."""
    connection = running.connection()
    connection.request("GET", "/-/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {each.rpartition(" ")[0] for each in text.splitlines() if not each.startswith("#")}


@pytest.mark.timeout(300)
def test_the_number_of_series_does_not_depend_on_what_is_asked_for(running: Running) -> None:
    """Rule: 3,000 keys, 100 tenants, made-up methods, datasets, nodes, addresses and strangers make no series of their own.

    None of their names is in a label.
    """
    ask(running, range(FIRST))
    first = exposed(running)
    ask(running, range(FIRST, KEYS))
    last = exposed(running)
    assert running.metric("larder_origin_requests_total") > 0
    assert running.metric("larder_auth_failures_total") > KEYS / 4
    assert len(last) < MOST
    # A slow machine may show a new reason, such as that of a joined fill; not twenty-five hundred of them.
    assert len(last - first) < 20, sorted(last - first)
    assert [each for each in last if "telltale" in each.lower()] == []
