"""The row groups of a Parquet file, as parts that can be read and cached separately.

A row has no bytes of its own: values are stored by column, and compressed by page. So the smallest part with a digest is a row
group, which is one stretch of the file. Reading it needs the file's footer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from larder.base.parquet_layout import span_of
from larder.digest.ranges import ReadRange

_TAIL = 8
"""Bytes at the end of a file: the length of the metadata, and the magic number."""


def row_groups(bucket: str, key: str, size: int, read: ReadRange) -> Iterator[tuple[int, int]]:
    """Offset and length of each row group with rows, and of the footer.

    Raises:
        ValueError: the object is not a Parquet file, or a row group is not one stretch of it.
    """
    if size <= _TAIL or (tail := read(size - _TAIL, _TAIL))[4:] != b"PAR1":
        raise ValueError("not a Parquet file")
    footer = int.from_bytes(tail[:4], "little") + _TAIL
    if footer > size:
        raise ValueError("a Parquet file without its beginning")
    metadata = pq.read_metadata(pa.BufferReader(read(size - footer, footer)))
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    spans = sorted(span_of(group) for group in groups if group.num_rows)
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise ValueError("its row groups overlap")
    yield from ((start, end - start) for start, end in spans)
    yield size - footer, footer
