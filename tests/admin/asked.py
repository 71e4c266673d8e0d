"""Requests to running gateways."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from rig.gateways import Running

TOKEN = "a-token-of-these-tests"


def ask(running: Running, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the document of an admin address's answer."""
    connection = running.connection()
    try:
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, f"/-/admin{path}", content, headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def readiness(running: Running) -> tuple[int, Any]:
    """Status and document of /-/readyz."""
    connection = running.connection()
    try:
        connection.request("GET", "/-/readyz")
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def refusal(running: Running, key: str, secret: str) -> str:
    """The code with which a read by this key is refused; empty when it is answered."""
    try:
        running.client(key, secret).get_object(Bucket="bucket", Key="key")["Body"].read()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""
