"""A counting origin, and builds of its buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from larder import digest
from larder.http.credentials import Credentials
from rig.origin import ALICE, FakeOrigin, OriginThread
from tests.fixtures import moto, radosgw

__all__ = ["moto", "radosgw"]

CREDENTIALS = Credentials(ALICE.access_key_id, ALICE.secret_access_key)


@dataclass
class Store:
    """A FakeOrigin, with builds of its bucket ``b`` into ``file`` and the reads that they made."""

    s3: FakeOrigin
    file: Path

    def put(self, key: str, body: bytes, **headers: str) -> None:
        """Store an object of the bucket."""
        self.s3.put("b", key, body, [(name.replace("_", "-"), value) for name, value in headers.items()])

    def build(self, source: str = "s3://b/", **options: Any) -> digest.Report:
        """Build the digest file; ``reads`` then counts from nothing."""
        self.s3.seen.clear()
        return digest.build(source, self.file, endpoint=self.s3.endpoint, credentials=CREDENTIALS, **options)

    def reads(self) -> Counter[str]:
        """The number of reads of each key since the last build began, whole or in part."""
        return Counter(
            unquote(seen.raw_path.removeprefix("/b/"))
            for seen in self.s3.seen
            if seen.method == "GET" and len(seen.raw_path) > 3
        )

    def items(self) -> dict[tuple[str, int | None, int | None], bytes]:
        """The digest of each item of the file, by key, offset and length."""
        file = digest.read(self.file)
        return {tuple(file.location(index)[1:]): file.digest(index) for index in range(len(file))}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty bucket ``b`` and where its digest file will be."""
    with OriginThread() as origin:
        origin.buckets.objects["b"] = {}
        yield Store(origin, tmp_path / "items.digest")
