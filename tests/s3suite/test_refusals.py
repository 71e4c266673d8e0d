"""The gateway's deliberate refusals; docs/s3-compatibility.md lists each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rig.signed_requests import ClientSigner
from tests.s3suite.forms import BODY, BUCKET, Target

DOCUMENT = Path(__file__).parents[2] / "docs" / "s3-compatibility.md"
KEY = f"/{BUCKET}/refused"


def ask(target: Target, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, str]:
    """Send a request unchanged; return status and code of the answer."""
    connection = target.gateway.connection()
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        code = re.search(rb"<Code>(\w+)</Code>", response.read())
        return response.status, code[1].decode() if code else ""
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "outcome"),
    [
        ("PUT", f"{KEY}?taging", {"Content-Length": "0"}, (501, "NotImplemented")),
        ("DELETE", f"{KEY}?taging", {}, (501, "NotImplemented")),
        ("PUT", f"{KEY}?renameObject", {"Content-Length": "0"}, (501, "NotImplemented")),
        ("PUT", KEY, {"x-amz-meta-a": "b" * 2048, "Content-Length": "0"}, (400, "MetadataTooLarge")),
        ("PUT", KEY, {}, (411, "MissingContentLength")),
        ("GET", KEY, {"Authorization": "AWS GWA:c2lnbmF0dXJl"}, (400, "InvalidRequest")),
        ("GET", KEY, {"Authorization": "AWS4-ECDSA-P256-SHA256 Credential=GWA/x"}, (501, "NotImplemented")),
        ("GET", f"/tenant:{BUCKET}/key", {}, (400, "InvalidBucketName")),
        ("GET", f"/tenant%3A{BUCKET}/key", {}, (400, "InvalidBucketName")),
        ("PATCH", KEY, {}, (405, "MethodNotAllowed")),
    ],
)
def test_what_is_refused_is_documented(
    target: Target, method: str, path: str, headers: dict[str, str], outcome: tuple[int, str]
) -> None:
    """Rule: each refusal has a line with its status and code."""
    assert ask(target, method, path, headers) == outcome
    assert f"{outcome[0]} `{outcome[1]}`" in DOCUMENT.read_text()


def test_the_region_of_a_scope_is_the_clients_choice(target: Target) -> None:
    """Rule: the signature is verified for the region that it names."""
    target.direct.put_object(Bucket=BUCKET, Key="regional", Body=BODY)
    signer = ClientSigner("GWA", "gateway-secret-a", region="mars-north-1")
    request = signer.header("GET", f"{target.gateway.endpoint}/{BUCKET}/regional")
    headers = {name.decode(): value.decode() for name, value in request.headers if name != b"host"}
    assert ask(target, "GET", f"/{BUCKET}/regional", headers) == (200, "")
