"""No log and no answer contains secrets, tokens or signatures, even at the most verbose setting."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rig.gateways import Settings, gateway
from rig.origin import OriginThread
from rig.origin_auth import User

SECRETS = (
    "tell-gateway-secret",
    "tell-gateway-token",
    "tell-origin-secret",
    "tell-origin-token",
    "tell-redis-password",
)
CREDENTIAL = {
    "access_key_id": "GWA",
    "secret_access_key": "tell-gateway-secret",
    "session_token": "tell-gateway-token",
    "origin_access_key_id": "OK",
    "origin_secret_access_key": "tell-origin-secret",
    "origin_session_token": "tell-origin-token",
}
EXTRA = '[log]\nlevel = "debug"\naccess = "{}"\n[redis]\nurl = "redis://:tell-redis-password@127.0.0.1:1/0"\n'
_SIGNATURE = re.compile(rb"[Ss]ignature[^0-9a-zA-Z]+([0-9a-f]{64}|[A-Za-z0-9+/%]{27,40}=?)")


@dataclass
class Told:
    """Everything that the gateway wrote, and every signature that it was sent."""

    logs: str = ""
    answers: bytes = b""
    signatures: set[str] = field(default_factory=set)


def _workload(port: int, told: Told) -> None:
    """Right and wrong requests in all three ways of signing."""
    for version in ("s3v4", "s3"):
        config = Config(signature_version=version, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
        for token in ("tell-gateway-token", "tell-gateway-token-wrong"):
            for secret in ("tell-gateway-secret", "tell-gateway-secret-wrong"):
                session = boto3.Session("GWA", secret, token, region_name="us-east-1")
                client = session.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=config)
                for key in ("here", "missing"):
                    address = client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": key})
                    _ask(port, address, told)
                    _ask(port, address.replace("Signature=", "%53ignature="), told)
                    _ask(port, address + "x", told)
                if version == "s3v4":
                    _by_header(client, told)


def _by_header(client: Any, told: Told) -> None:
    def note(request: Any, **_: Any) -> None:
        told.signatures.update(re.findall(r"Signature=([0-9a-f]{64})", str(request.headers["Authorization"])))

    client.meta.events.register("before-send.s3", note)
    calls = [
        lambda: client.put_object(Bucket="bucket", Key="new", Body=b"x"),
        lambda: client.get_object(Bucket="bucket", Key="here"),
        lambda: client.copy_object(Bucket="bucket", Key="copy", CopySource="bucket/here"),
        lambda: client.list_objects_v2(Bucket="nobucket"),
    ]
    for call in calls:
        try:
            told.answers += repr(call()).encode()
        except ClientError as error:
            told.answers += repr(error.response).encode()


def _ask(port: int, address: str, told: Told) -> None:
    parts = urlsplit(address)
    told.signatures.update(found.decode() for found in _SIGNATURE.findall(parts.query.encode()))
    head = f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nReferer: {address}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"{head}Connection: close\r\n\r\n".encode())
        while piece := sock.recv(65536):
            told.answers += piece


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Returns all output of a verbose gateway under valid and invalid requests, with its origin up and down."""
    home: Path = tmp_path_factory.mktemp("secrets")
    everything = Told()
    thread = OriginThread([User("OK", "tell-origin-secret", "tell-origin-token")])
    with thread as origin:
        origin.put("bucket", "here", b"x")
        settings = Settings(origin.endpoint, home / "cache", credentials=(CREDENTIAL,))
        settings.extra = EXTRA.format(home / "access.log")
        with gateway(settings, home) as running:
            _workload(running.port, everything)
            assert b"200" in everything.answers
            thread.run(origin.stop)
            _workload(running.port, everything)
            running.config.write_text(running.config.read_text() + "\nnonsense")
        everything.logs = (home / "access.log").read_text() + running.log.read_text()
    return everything


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_is_told(told: Told, secret: str) -> None:
    """Rule: no key's secret, session token or password, ours or the client's, in logs or answers."""
    assert secret not in told.logs
    assert secret.encode() not in told.answers


def test_no_signature_is_told(told: Told) -> None:
    """Rule: signatures can be replayed, so no log line or error document has one."""
    assert len(told.signatures) > 20
    assert [signature for signature in told.signatures if signature in told.logs] == []
    assert [signature for signature in told.signatures if signature.encode() in told.answers] == []


def test_what_remains_is_still_a_log(told: Told) -> None:
    """Rule: redaction removes values, not lines: the requests are logged with key, status and code."""
    for word in (
        "REST.GET.OBJECT",
        "REST.PUT.OBJECT",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "Signature=REDACTED",
        " here ",
    ):
        assert word in told.logs
