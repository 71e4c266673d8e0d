"""Clients that live in a process of their own, in another language or environment: a driver does what lines of JSON say.

A line ``{"operation": "get", "bucket": ..., ...}`` is answered by ``{"value": ...}`` or ``{"error": "..."}``. Bodies travel in
files.
"""

# ruff: noqa: D102 - the base class says what each operation is

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.s3compat.clients.base import PART, Access, Client

DRIVERS = Path(__file__).resolve().parents[1] / "drivers"


class Driven(Client):
    """A client behind a driver."""

    command: ClassVar[Sequence[str]]

    def __init__(self, access: Access, scratch: Path) -> None:
        super().__init__(access, scratch)
        told = {"ENDPOINT": access.endpoint, "KEY": access.key, "SECRET": access.secret, "REGION": access.region,
                "AUTHORITY": str(access.authority or ""), "PART": str(PART), "NODE_NO_WARNINGS": "1"}  # fmt: skip
        if access.authority is not None:
            told["NODE_EXTRA_CA_CERTS"] = str(access.authority)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._process = subprocess.Popen(
            self.command, env={**inherited, **told}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, operation: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"operation": operation, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise OSError(answer["error"])
        return answer.get("value")

    def version(self) -> str:
        return str(self._ask("version"))

    def put(self, bucket: str, key: str, body: bytes) -> None:
        path = self.scratch / "body"
        path.write_bytes(body)
        self._ask("put", bucket=bucket, key=key, path=str(path))

    def get(self, bucket: str, key: str) -> bytes:
        path = self.scratch / "got"
        self._ask("get", bucket=bucket, key=key, path=str(path))
        return path.read_bytes()

    def head(self, bucket: str, key: str) -> int:
        return int(self._ask("head", bucket=bucket, key=key))

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        path = self.scratch / "got"
        self._ask("read_range", bucket=bucket, key=key, start=start, stop=stop, path=str(path))
        return path.read_bytes()

    def list_keys(self, bucket: str, prefix: str) -> list[str]:
        return list(self._ask("list_keys", bucket=bucket, prefix=prefix))

    def upload(self, bucket: str, key: str, source: Path) -> None:
        self._ask("upload", bucket=bucket, key=key, path=str(source))

    def download(self, bucket: str, key: str, target: Path) -> None:
        self._ask("download", bucket=bucket, key=key, path=str(target))

    def presign_get(self, bucket: str, key: str) -> str:
        return str(self._ask("presign_get", bucket=bucket, key=key))

    def presign_put(self, bucket: str, key: str) -> str:
        return str(self._ask("presign_put", bucket=bucket, key=key))

    def copy(self, bucket: str, source: str, target: str) -> None:
        self._ask("copy", bucket=bucket, source=source, target=target)

    def delete(self, bucket: str, key: str) -> None:
        self._ask("delete", bucket=bucket, key=key)

    def delete_many(self, bucket: str, keys: Sequence[str]) -> None:
        self._ask("delete_many", bucket=bucket, keys=list(keys))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class JavaScript(Driven):
    """The AWS SDK for JavaScript, version 3, with lib-storage and s3-request-presigner."""

    name = "AWS SDK for JavaScript"
    package = "@aws-sdk/client-s3"


class Minio(Driven):
    """minio-py."""

    name = "minio-py"
    package = "minio"
