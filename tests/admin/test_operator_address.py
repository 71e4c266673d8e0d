"""The address of operators' pages: what is served there, and what at the address for clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.admin.address import OperatorAddress
from gateway.base.config import ServerSettings, load_settings
from gateway.model.errors import ConfigError
from gateway.server.listening import listen, listen_for_operators, usual_port
from rig.gateways import Running, Settings, gateway
from rig.processes import free_port
from rig.v1 import ask, send
from rig.world import Origin

TOKEN = "a-token-for-operators"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with an object."""
    with Origin() as started:
        started.put("/data/x", b"bytes")
        yield started


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def running(
    origin: Origin, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A gateway with an admin token."""
    home = tmp_path_factory.mktemp("operators")
    settings = Settings(origin.endpoint, home / "cache", workers=request.param, extra=f'[admin]\ntoken = "{TOKEN}"\n')
    with gateway(settings, home) as ready:
        yield ready


def at_pages(running: Running) -> Running:
    """The gateway at the address of its pages."""
    return replace(running, endpoint=running.console)


@pytest.mark.parametrize("path", ["/", "/docs", "/runbook", "/static/dashboard/main.js?v=1"])
def test_pages_are_at_their_own_address(running: Running, path: str) -> None:
    """Rule: the address for clients serves no page, and leads to the one that does under the name that the browser used."""
    assert send(at_pages(running), "GET", path, b"", {}).status == 200
    for host in ("127.0.0.1", "localhost"):
        led = send(running, "GET", path, b"", {"host": f"{host}:{running.port}"})
        port = urlsplit(running.console).port
        assert (led.status, led.headers["location"]) == (307, f"http://{host}:{port}/-{path}")


def test_operators_address_serves_no_tenant(running: Running) -> None:
    """Rule: objects, datasets and nodes are not there, whoever signs; /-/admin, health and metrics are."""
    pages = at_pages(running)
    connection = pages.connection()
    for path in ("/data/x", "/data", "/-x", "/data/-/admin"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, b"operators" in answer.read()) == (404, True), path
    connection.close()
    for path in ("/v1/datasets", "/v1", "/%761/datasets", "/peer/object"):
        assert ask(pages, "GET", path).code == "NotFound", path
    for path in ("/admin/tenants", "/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert send(pages, "GET", path, b"", BEARER).status == 200, path


def test_programs_reach_the_admin_api_at_both(running: Running) -> None:
    """Rule: /-/admin with a token answers at the address for clients too, as do health and metrics."""
    for path in ("/admin/tenants", "/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert send(running, "GET", path, b"", BEARER).status == 200, path
    assert running.client().get_object(Bucket="data", Key="x")["Body"].read() == b"bytes"


def test_an_address_may_be_exclusive(origin: Origin, tmp_path: Path) -> None:
    """Rule: with admin.exclusive clients get objects, /-/v1 and /-/healthz, and operators the rest at the address set."""
    port = free_port()
    extra = f'[admin]\ntoken = "{TOKEN}"\naddress = "127.0.0.1:{port}"\nexclusive = true\n'
    with gateway(Settings(origin.endpoint, tmp_path / "cache", extra=extra), tmp_path, unready=True) as running:
        assert running.console == f"http://127.0.0.1:{port}"
        for path in ("/admin/tenants", "/readyz", "/metrics", "/openapi.json", "/nothing"):
            assert send(running, "GET", path, b"", BEARER).code == "NotFound", path
        assert send(running, "GET", "/", b"", {}).headers["location"] == f"{running.console}/-/"
        assert ask(running, "GET", "/v1/datasets").status == ask(running, "GET", "/healthz").status == 200
        assert send(at_pages(running), "GET", "/readyz", b"", {}).status == 200


def test_the_usual_port_is_taken_by_another() -> None:
    """Rule: without a setting another port is used then, so gateways side by side start; with one the start says why not."""
    with listen(ServerSettings(port=0)) as clients, socket.socket() as other:
        usual = usual_port(clients.getsockname()[1])
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", usual))
        other.listen()
        pages = listen_for_operators("", ServerSettings(), clients)
        assert pages is not None
        with pages:
            assert pages.getsockname()[1] not in (usual, clients.getsockname()[1])
        with pytest.raises(
            ConfigError, match=rf"admin.address: cannot listen on 127.0.0.1:{usual}: Address already in use"
        ):
            listen_for_operators(f"127.0.0.1:{usual}", ServerSettings(), clients)


@pytest.mark.parametrize(("port", "usual"), [(9000, 19000), (22767, 32767), (22768, 2768), (65535, 45535)])
def test_the_usual_port_is_one(port: int, usual: int) -> None:
    """Rule: it is far from that of clients, so that neighbours do not collide, and is a port that a user may open."""
    assert usual_port(port) == usual


@pytest.mark.parametrize(
    ("operators", "clients", "named", "url"),
    [
        ("http://127.0.0.1:19000", "http://127.0.0.1:9000", "localhost:9000", "http://localhost:19000"),
        ("https://0.0.0.0:9001", "https://0.0.0.0:9000", "cache.example", "https://cache.example:9001"),
        ("http://[::1]:9001", "http://[::1]:9000", "[::1]:9000", "http://[::1]:9001"),
        ("http://127.0.0.1:9001", "http://10.0.0.7:9000", "10.0.0.7:9000", "http://127.0.0.1:9001"),
        ("http://127.0.0.1:19000", "http://127.0.0.1:9000", "evil.example/x", "http://evil.example:19000"),
        ("http://127.0.0.1:19000", "http://127.0.0.1:9000", "a b", "http://127.0.0.1:19000"),
        ("http://127.0.0.1:19000", "http://127.0.0.1:9000", "", "http://127.0.0.1:19000"),
    ],
)
def test_a_browser_is_led_to_a_name_that_it_knows(operators: str, clients: str, named: str, url: str) -> None:
    """Rule: it is the name that the browser used, if the listener answers to that, and else the listener's own."""
    address = OperatorAddress.between(operators, clients)
    assert address is not None
    assert address.url(named) == url


@pytest.mark.parametrize("address", ["9001", "127.0.0.1", "http://127.0.0.1:9001", "127.0.0.1:99999", "[::1]", ":9001"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """Rule: the setting is HOST:PORT; the refusal names it and shows one."""
    with pytest.raises(ConfigError, match=r'admin.address: must look like "127.0.0.1:9001"'):
        load_settings(None, {"LARDER_ADMIN__ADDRESS": address, "LARDER_ORIGINS__0__ENDPOINT": "http://origin"})
