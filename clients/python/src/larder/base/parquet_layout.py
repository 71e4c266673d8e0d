"""The place of a row group in its Parquet file (Apache Parquet, "File Format": column chunks and their pages)."""

from __future__ import annotations

from typing import Any


def span_of(group: Any) -> tuple[int, int]:
    """First byte of a row group with columns, and the first byte after it.

    Args:
        group: a ``pyarrow.parquet.RowGroupMetaData``.
    """
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [min(filter(None, (column.dictionary_page_offset, column.data_page_offset))) for column in columns]
    ends = (start + column.total_compressed_size for start, column in zip(starts, columns, strict=True))
    return min(starts), max(ends)
