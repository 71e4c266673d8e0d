"""TLS with a private authority: the commands of docs/deploy.md, and a fleet whose nodes use HTTPS between each other."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rig.gateways import Settings, fleet, gateway
from rig.origin import OriginThread
from rig.processes import free_port
from rig.redis_server import RedisServer
from tests.docs.blocks import ROOT, RUNNABLE, Block, blocks
from tests.docs.terminal import Terminal

PAGE = ROOT / "docs/deploy.md"
CHAIN = {"AWS_ACCESS_KEY_ID": "origin-key-a", "AWS_SECRET_ACCESS_KEY": "origin-secret-a"}


def typed() -> list[Block]:
    """The blocks of the page that a reader types, or puts into a file, without a cluster and without being root."""
    return [
        block
        for block in blocks(PAGE)
        if block.said("not run") is None and (block.language in RUNNABLE or block.said("file") is not None)
    ]


def test_the_page_can_be_typed(tmp_path: Path) -> None:
    """Rule: the page's TLS instructions work: an authority, a certificate, curl with and without trust, and boto3."""
    with OriginThread() as origin:
        origin.put("datasets", "imagenet/0001.jpg", b"a photograph")
        swaps = {"https://s3.eu-west-1.amazonaws.com": origin.endpoint, "9000": str(free_port())}
        terminal = Terminal(tmp_path, swaps, CHAIN)
        try:
            for block in typed():
                terminal.type(block)
        finally:
            terminal.close()
    assert len(typed()) > 8


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder in which the page's commands have made an authority and a certificate."""
    folder = tmp_path / "tls"
    folder.mkdir()
    for block in typed():
        if block.said("file") == "names.cnf":
            (folder / "names.cnf").write_text(block.text)
        elif block.text.startswith("openssl "):
            subprocess.run(["bash", "-ec", block.text], cwd=folder, check=True, capture_output=True)
    return folder


def test_nodes_believe_one_another_by_their_authority(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: with HTTPS and SSL_CERT_FILE gateways are one cache: they answer each other, and not everything is read twice."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.crt"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority / "ca.crt"))
    tls = {"tls_cert": str(authority / "tls.crt"), "tls_key": str(authority / "tls.key")}
    with RedisServer() as redis, OriginThread() as origin:
        for number in range(8):
            origin.put("bucket", f"key-{number}", b"bytes")
        with fleet(origin.endpoint, redis.url, 2, tmp_path, server=tls) as nodes:
            for client in [node.client() for node in nodes]:
                for number in range(8):
                    assert client.get_object(Bucket="bucket", Key=f"key-{number}")["Body"].read() == b"bytes"
            assert sum(node.metric("larder_peer_requests_total", result="answered") for node in nodes) > 0
            assert sum(node.metric("larder_origin_requests_total", method="GET") for node in nodes) < 16


def test_an_idle_client_does_not_hold_up_a_stop(authority: Path, tmp_path: Path) -> None:
    """Rule: closing does not wait asyncio's 30 s for a TLS client that has stopped reading."""
    tls = {"tls_cert": str(authority / "tls.crt"), "tls_key": str(authority / "tls.key")}
    with (
        OriginThread() as origin,
        gateway(Settings(origin.endpoint, tmp_path / "cache", server=tls), tmp_path) as running,
    ):
        idle = running.connection()
        idle.request("GET", "/-/healthz")
        assert idle.getresponse().read()
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 25
        idle.close()
