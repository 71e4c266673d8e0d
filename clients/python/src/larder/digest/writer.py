"""Writes digest files: equal rows give equal bytes, and a file appears only when it is complete.

Beyond the columns of every digest file (see ``file``) there are ``etag`` and ``size`` of the item's object, which let a later
build skip unchanged objects, and ``member``, the name of an item in a TAR or a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from larder.digest.file import DIGEST_SIZE, MEMBERS_KEY

SCHEMA = pa.schema(
    [
        pa.field("digest", pa.binary(DIGEST_SIZE), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("member", pa.string()),
    ]
)
ITEMS_KEY = "larder.items"
"""Metadata of the file: the kind of its items, see ``Items`` of ``build``."""
# Equal files depend on this, so it is not a setting; a writer holds one group in memory.
_ROWS_PER_GROUP = 1 << 17
"""Rows of a Parquet row group."""


class Row(NamedTuple):
    """One item, as the columns of ``SCHEMA``; ``offset`` is ``None`` for a whole object."""

    digest: bytes
    bucket: str
    key: str
    offset: int | None
    length: int
    etag: str
    size: int
    member: str | None


def write(path: Path, rows: Iterable[Row], items: str, members: Sequence[str] = ()) -> int:
    """Write a digest file, replacing any file at ``path``; returns the number of rows.

    Args:
        path: of the file; its directory must exist.
        rows: ordered by key (as UTF-8) and offset, by convention; registering takes any order.
        items: the kind of items, kept in the file's metadata.
        members: names of the members of a sample if adjacent rows form one, also kept there.

    Raises:
        OSError: the disk is full or cannot be written; a previous file at ``path`` stays.
    """
    unfinished = path.with_name(path.name + ".writing")
    named = {MEMBERS_KEY: ",".join(members)} if members else {}
    count = 0
    try:
        with unfinished.open("wb") as stream:
            with _writer(stream) as parquet:
                for batch in _batches(rows):
                    parquet.write_batch(batch, row_group_size=_ROWS_PER_GROUP)
                    count += batch.num_rows
                parquet.add_key_value_metadata({ITEMS_KEY: items, **named})
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return count


def _writer(stream: object) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        stream,
        SCHEMA,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=["bucket"],
        write_statistics=["bucket", "key"],
        store_schema=False,
        write_page_checksum=True,
    )


def _batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    remaining = iter(rows)
    while group := list(islice(remaining, _ROWS_PER_GROUP)):
        columns = zip(*group, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
