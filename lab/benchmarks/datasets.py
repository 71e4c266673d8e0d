"""Datasets of the objects that are read, registered at the gateway that is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running
from larder import Client, Credentials, DatasetInfo
from larder.digest.writer import Row, write

CREDENTIALS = Credentials(ACCESS_KEY, SECRET_KEY)


def write_digests(path: Path, contents: Mapping[str, bytes | Path], bucket: str = BUCKET) -> None:
    """A digest file of whole objects, whose indices follow the given order."""
    rows = []
    for key, content in contents.items():
        data = content.read_bytes() if isinstance(content, Path) else content
        rows.append(Row(hashlib.sha256(data).digest(), bucket, key, None, len(data), "", len(data), None))
    write(path, rows, "objects")


def register(server: Running, digests: Path, name: str, caching: str = "full") -> DatasetInfo:
    """Register a digest file at a gateway."""
    return Client(f"http://127.0.0.1:{server.port}", credentials=CREDENTIALS).register(name, digests, caching=caching)


def register_files(server: Running, root: Path, name: str, keys: list[str], caching: str = "full") -> DatasetInfo:
    """A dataset of files below ``root``, as the origin serves them."""
    digests = root.parent / f"{name}.parquet"
    write_digests(digests, {key: root / BUCKET / key for key in keys})
    return register(server, digests, name, caching)
