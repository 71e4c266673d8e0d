"""deploy/nginx in front of a real gateway: what clients get through it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rig.gateways import Running, Settings, gateway
from rig.processes import free_port, wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import ask, send
from rig.world import Origin

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-operators"
HIDDEN = (
    "/", "/docs", "/static/dashboard/main.js", "/openapi.json", "/admin/tenants", "/readyz", "/metrics", "/peer/object",
    "/%61dmin/tenants", "//admin/tenants", "/v1/../admin/tenants", "/v1/%2e%2e/admin/tenants", "/admin/../../data/x", "/nothing",
)  # fmt: skip


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway, at the address of nginx."""
    home, port = tmp_path_factory.mktemp("nginx"), free_port()
    folder = home / "nginx"
    shutil.copytree(ROOT / "deploy/nginx", folder)
    with Origin() as origin:
        origin.put("/data/x", b"bytes")
        settings = Settings(origin.endpoint, home / "cache", extra=f'[admin]\ntoken = "{TOKEN}"\n')
        with gateway(settings, home) as running:
            text = (folder / "gateways.conf").read_text().replace("listen 9000", f"listen 127.0.0.1:{port}")
            own = "".join(
                f"{kind}_temp_path {kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            (folder / "gateways.conf").write_text(own + re.sub(r"gateway-\d:9000", f"127.0.0.1:{running.port}", text))
            search = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin"
            program = shutil.which("nginx", path=search) or "nginx"
            directives = "daemon off; master_process off; pid nginx.pid; error_log stderr warn;"
            command = [program, "-e", "stderr", "-p", f"{folder}/", "-c", "nginx.conf", "-g", directives]
            front = replace(running, endpoint=f"http://127.0.0.1:{port}")
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as nginx:
                try:
                    wait_until(lambda: _answers(front), 30, "nginx")
                    yield front
                finally:
                    nginx.terminate()


def _answers(front: Running) -> bool:
    try:
        return ask(front, "GET", "/healthz", key=None).status == 200
    except OSError:
        return False


@pytest.mark.parametrize("path", HIDDEN)
def test_clients_reach_nothing_of_operators(proxied: Running, path: str) -> None:
    """Rule: pages, /-/admin, /-/readyz, /-/metrics and /-/peer are not there, even with a token, however they are spelled."""
    reply = send(proxied, "GET", path, b"", {"authorization": f"Bearer {TOKEN}"})
    assert reply.status == 404
    assert b"nginx" in reply.body


def test_clients_reach_objects_and_datasets(proxied: Running) -> None:
    """Rule: objects and /-/v1 pass, signed for the address of nginx."""
    assert proxied.client().get_object(Bucket="data", Key="x")["Body"].read() == b"bytes"
    assert ask(proxied, "GET", "/v1/datasets").json == {"datasets": []}
    strange = ClientSigner().header("GET", f"{proxied.endpoint}/-/v1/nothing")
    headers = {name.decode(): value.decode() for name, value in strange.headers}
    assert send(proxied, "GET", "/v1/nothing", b"", headers).json["code"] == "NotFound"
