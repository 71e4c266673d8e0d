"""Digest files for tests: written from rows, or from arrays with any types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("digest", pa.binary(32)),
        ("bucket", pa.string()),
        ("key", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)


class Row(NamedTuple):
    """One item."""

    digest: bytes
    bucket: str = "data"
    key: str = "key"
    offset: int | None = None
    length: int | None = None


def rows_of(count: int, *, seed: int = 0, bucket: str = "data", length: int | None = 100) -> list[Row]:
    """Items that are unique to the seed."""
    return [Row(sha(f"{seed}/{number}"), bucket, f"items/{number:07d}.bin", None, length) for number in range(count)]


def sha(text: str | bytes) -> bytes:
    """The digest of some bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()


def id_of(rows: Iterable[Row]) -> str:
    """The dataset's id, by its definition."""
    return hashlib.sha256(b"".join(row.digest for row in rows)).hexdigest()


def write(path: Path, rows: Sequence[Row], schema: pa.Schema = SCHEMA, **options: Any) -> Path:
    """Write a digest file with these rows."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)
    pq.write_table(table, path, **options)
    return path


def write_columns(path: Path, columns: Mapping[str, pa.Array], **options: Any) -> Path:
    """Write a Parquet file with these columns."""
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


def columns_of(rows: Sequence[Row]) -> dict[str, pa.Array]:
    """The columns of a digest file, for tests to modify."""
    return {field.name: pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA}


def write_many(path: Path, count: int, seed: int = 1) -> Path:
    """Write a digest file of many items, with keys like ImageNet's and random digests."""
    random = np.random.default_rng(seed)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, count, 250_000):
            size = min(250_000, count - start)
            digests = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(32), size, [None, pa.py_buffer(random.bytes(32 * size))]
            )
            keys = pa.array([f"train/n{n // 1300:08d}/n{n // 1300:08d}_{n}.JPEG" for n in range(start, start + size)])
            lengths = pa.array(random.integers(1, 200_000, size))
            table = pa.table(
                [digests, pa.array(["imagenet"] * size), keys, pa.nulls(size, pa.int64()), lengths], SCHEMA
            )
            writer.write_table(table)
    return path


def files_below(directory: Path) -> set[str]:
    """The files in a directory of datasets, without the locks."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return {path for path in found - {"lock"} if not path.startswith("turns/")}
