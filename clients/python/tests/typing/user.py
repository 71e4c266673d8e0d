"""A user's program for mypy --strict: the library's types are visible to users. It is never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import larder


def prepare(endpoint: str, file: Path) -> larder.DatasetInfo:
    """Register a dataset, unless the gateway knows it."""
    client = larder.Client(
        endpoint, credentials=larder.Credentials("key", "secret"), timeout=5, retry=larder.Retry(attempts=2)
    )
    assert_type(client.ping(), dict[str, object])
    try:
        return client.dataset("digits")
    except larder.UnknownDataset as error:
        assert_type(error.code, str)
        return client.register("digits", file, caching="auto")


def read(endpoint: str, info: larder.DatasetInfo, file: Path) -> dict[int, bytes]:
    """Read a few items, past the gateway if need be."""
    store = larder.S3("https://s3.eu-west-1.amazonaws.com")
    reader = larder.BatchReader(endpoint, info, fallback=store, digest_file=file)
    try:
        fetched = reader.fetch([1, 2, 3], mode="substitute", take=2)
    except (larder.GatewayUnavailable, larder.RequestRefused):
        return {}
    assert_type(fetched.indices, NDArray[np.uint32])
    assert_type(fetched.failed, dict[int, larder.ItemFailure])
    assert_type(reader.prefetch(np.arange(10)), dict[str, int])
    assert_type(reader.lookup(fetched.indices), NDArray[np.bool_])
    return {int(index): bytes(data) for index, data in zip(fetched.indices, fetched.data, strict=True)}


async def read_later(reader: larder.BatchReader) -> list[memoryview]:
    """The same from asyncio."""
    fetched = await larder.AsyncBatchReader(reader).fetch([1, 2, 3], ordered=True)
    return fetched.data


def sizes(bucket: str) -> dict[str, int]:
    """List a bucket."""
    return {entry.key: entry.size for entry in larder.S3().list(bucket, "train/")}
