"""Requests to ``/-/v1`` of a running gateway, signed by botocore."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rig.gateways import Running
from rig.signed_requests import ClientSigner

Key = tuple[str, str]
GWA: Key = ("GWA", "gateway-secret-a")
WITHIN = 120.0
"""Seconds: a digest file is read by a process that may have to wait for its turn."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the answer, which must be a problem document."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        document = self.json
        assert {"type", "title", "status", "code", "detail"} <= document.keys()
        assert (document["type"], document["status"]) == ("about:blank", self.status)
        code: str = document["code"]
        return code


def ask(
    running: Running,
    method: str,
    path: str,
    body: bytes = b"",
    key: Key | None = GWA,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request to ``/-`` + path; unsigned without a key."""
    given = dict(headers or {})
    if key is not None:
        url = f"{running.endpoint}/-{path}"
        signed = ClientSigner(*key).header(method, url, given, body=body)
        given = {name.decode(): value.decode() for name, value in signed.headers}
    return send(running, method, path, body, given)


def send(running: Running, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """Send one request with exactly these headers, and a length."""
    connection = running.connection()
    connection.timeout = WITHIN
    try:
        connection.request(method, f"/-{path}", body or None, dict(headers))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, names, response.read())
    finally:
        connection.close()


def register(running: Running, name: str, file: bytes, key: Key | None = GWA, query: str = "", **headers: str) -> Reply:
    """Upload a digest file."""
    return ask(running, "PUT", f"/v1/datasets/{name}{query}", file, key, headers)
