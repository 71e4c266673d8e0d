"""The common interface of all clients; a client overrides the operations that it supports."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import boto3
from botocore.config import Config

PART = 5 * 1024 * 1024
"""The size of a part of a multipart upload, the smallest that S3 takes."""


@dataclass(frozen=True)
class Access:
    """Access to a gateway; ``authority`` is the PEM file to trust, if it uses https."""

    endpoint: str
    key: str
    secret: str
    authority: Path | None
    region: str = "us-east-1"

    @property
    def address(self) -> str:
        """Host and port."""
        return self.endpoint.partition("://")[2]

    @property
    def tls(self) -> bool:
        """True if it uses https."""
        return self.authority is not None


class Client:
    """An S3 client with retries off, so that a refusal shows at once; ``retries`` marks one that cannot turn them off.

    ``name`` is its common name, ``package`` the package of its version.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    retries: ClassVar[bool] = False

    def __init__(self, access: Access, scratch: Path) -> None:
        self.access = access
        self.scratch = scratch

    @classmethod
    def can(cls, operation: str) -> bool:
        """True if the client supports an operation (the name of a method below)."""
        return getattr(cls, operation) is not getattr(Client, operation)

    def version(self) -> str:
        """Its version, for the table."""
        raise AssertionError(f"{self.name} does not say its version")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Upload bytes in one request."""
        raise AssertionError("put")

    def get(self, bucket: str, key: str) -> bytes:
        """Read an object whole."""
        raise AssertionError("get")

    def head(self, bucket: str, key: str) -> int:
        """The size of an object, from its metadata."""
        raise AssertionError("head")

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        """Read the bytes from ``start`` to before ``stop``."""
        raise AssertionError("read_range")

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        raise AssertionError("list_keys")

    def upload(self, bucket: str, key: str, source: Path) -> None:
        """Upload a file in parts."""
        raise AssertionError("upload")

    def download(self, bucket: str, key: str, target: Path) -> None:
        """Download to a file, in parts where the client can."""
        raise AssertionError("download")

    def presign_get(self, bucket: str, key: str) -> str:
        """A presigned address for reading."""
        raise AssertionError("presign_get")

    def presign_put(self, bucket: str, key: str) -> str:
        """A presigned address for writing."""
        raise AssertionError("presign_put")

    def copy(self, bucket: str, source: str, target: str) -> None:
        """Copy within the bucket, at the store."""
        raise AssertionError("copy")

    def delete(self, bucket: str, key: str) -> None:
        """Delete one object."""
        raise AssertionError("delete")

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete several objects in one request."""
        raise AssertionError("delete_many")

    def close(self) -> None:
        """End connections and processes."""


def boto3_client(access: Access, **options: Any) -> Any:
    """A boto3 client of a gateway, path style, without retries."""
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint,
        aws_access_key_id=access.key,
        aws_secret_access_key=access.secret,
        region_name=access.region,
        verify=str(access.authority) if access.authority else None,
        config=botocore_config(**options),
    )


def botocore_config(**options: Any) -> Config:
    """Path style, one attempt."""
    settings = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}, "read_timeout": 60}
    return Config(**{**settings, **options})


def fetch(access: Access, url: str, body: bytes | None = None) -> bytes:
    """Use a presigned address as a program without any S3 library would: GET, or PUT when there is a body."""
    # Not urllib: it adds a Content-Type to a body, which SigV2 signs.
    connection: http.client.HTTPConnection
    if access.tls:
        context = ssl.create_default_context(cafile=access.authority)
        connection = http.client.HTTPSConnection(access.address, timeout=60, context=context)
    else:
        connection = http.client.HTTPConnection(access.address, timeout=60)
    try:
        target = url.partition(access.address)[2]
        connection.request("GET" if body is None else "PUT", target, body)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"{answer.status}: {content!r}")
    return content
