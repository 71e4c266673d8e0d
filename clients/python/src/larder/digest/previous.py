"""The objects of an earlier digest file, which a new build need not read if they are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from larder.base.errors import DigestFileError
from larder.digest.file import COLUMNS, damaged, opened
from larder.digest.items import ROW_GROUPS
from larder.digest.journal import ItemDigest, Object
from larder.digest.writer import ITEMS_KEY

_OWN = ("etag", "size", "member")
_ROWS = 1 << 16
"""Rows read at a time."""


def previous_objects(path: Path, bucket: str, items: str) -> Iterator[Object]:
    """The objects of a bucket in a digest file of ``build``; none for files of other tools or of other items.

    Raises:
        DigestFileError: at once if the file is not a digest file; during iteration if it is damaged.
    """
    try:
        with opened(path) as parquet:
            kind = (parquet.metadata.metadata or {}).get(ITEMS_KEY.encode(), b"").decode()
            own = set(_OWN) <= set(parquet.schema_arrow.names)
    except DigestFileError as error:
        raise DigestFileError(f"{error}; remove it, or choose another name for the new digest file") from error
    return _objects(path, bucket, shared=kind == ROW_GROUPS) if own and kind == items else iter(())


def _objects(path: Path, bucket: str, *, shared: bool) -> Iterator[Object]:
    for key, rows in groupby(_rows(path, bucket), lambda row: row["key"]):
        items = list(rows)
        etag, size = items[0]["etag"], items[0]["size"]
        if etag and size is not None:
            digests = [ItemDigest(row["offset"], row["length"], row["digest"], row["member"]) for row in items]
            if shared:  # the footer of a Parquet file is beside each of its row groups
                digests = list(dict.fromkeys(digests))
            yield Object(key, etag, size, tuple(sorted(digests, key=lambda item: (item.offset or 0, item.length))))


def _rows(path: Path, bucket: str) -> Iterator[dict[str, Any]]:
    with opened(path) as parquet:
        batches = parquet.iter_batches(_ROWS, columns=[*COLUMNS, *_OWN], use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise damaged(path, error) from error
            if batch is None:
                return
            yield from (row for row in batch.to_pylist() if row["bucket"] == bucket)
