"""The demo's clients: keys, plain S3 clients, and the counts at the origin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import boto3
from botocore.config import Config

COUNTS_PATH = "/_counts"
REGION = "us-east-1"
THREADS = 16


@dataclass(frozen=True, slots=True)
class DemoKeys:
    """An access key with its secret, valid only within the demo."""

    access_key_id: str
    secret_access_key: str


ORIGIN_KEYS = DemoKeys("origin-key", "origin-secret")
VISION = DemoKeys("vision-key", "vision-secret")
SPEECH = DemoKeys("speech-key", "speech-secret")


def s3_client(endpoint: str, keys: DemoKeys) -> Any:
    """A plain boto3 S3 client without retries, so that every counted request is intended."""
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=THREADS, retries={"total_max_attempts": 1})
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=keys.secret_access_key,
        config=config,
    )


def origin_requests(origin: str) -> int:
    """The number of requests that have arrived at the origin, counted there."""
    status, body = get(origin, COUNTS_PATH)
    assert status == 200, body
    return sum(json.loads(body).values())


def get(endpoint: str, path: str) -> tuple[int, bytes]:
    """Status and body of an unsigned GET."""
    connection = HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
