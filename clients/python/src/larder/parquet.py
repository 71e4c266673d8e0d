"""Rows of Parquet files in a loader: items are row groups (``larder digest build --row-groups``), delivered as a dict of columns.

::

    dataset = CachedDataset(endpoint, "rows.digest", batch_size=4, transform=read_rows, collate=concatenate, keys=True)
    for columns in DataLoader(dataset, batch_size=None):
        columns["label"]  # an array with the rows of four row groups

Row groups come in random order, each once per epoch, with all of their rows. Needs pyarrow, which the extra ``digest`` installs;
it is imported when the first item is read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import LarderError
from larder.base.parquet_layout import span_of
from larder.reading.source import Item

__all__ = ["concatenate", "read_rows"]

_FOOTERS = 64
"""The most parsed footers that a process keeps; each serves all row groups of its file."""


def read_rows(item: Item, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The rows of a row group, a transform of a dataset with ``keys=True``.

    Args:
        item: of a dataset of row groups.
        columns: names of the columns to decode (default: all). All are read from the cache.

    Returns:
        An array for each column, shape (rows,). Dates, times and durations are whole numbers in the unit of the column, since
        tensors have no type for them: a ``timestamp[us]`` counts microseconds since 1970-01-01 UTC, whatever its zone, a
        ``date32`` days since then, a ``time64[ns]`` nanoseconds since midnight. Nulls among numbers are NaN. Texts, decimals,
        lists and structs are objects, in which times are as pyarrow gives them.

    Raises:
        ImportError: pyarrow is not installed.
        LarderError: the dataset lacks ``keys=True``, or its items are not row groups.
    """
    pa, parquet = _pyarrow()
    if item.offset is None:
        raise LarderError(
            "rows are read from row groups (`larder digest build --row-groups`) of a dataset with keys=True"
        )
    rows, footer = item.members.values()
    metadata, groups = _parsed(bytes(footer))
    source = pa.PythonFile(_Stretch(rows, item.offset), mode="r")
    with parquet.ParquetFile(source, metadata=metadata) as file:
        table = file.read_row_group(
            groups[item.offset], columns=None if columns is None else list(columns), use_threads=False
        )
    return {name: _array(table.column(name), pa) for name in table.column_names}


def _array(column: Any, pa: Any) -> NDArray[Any]:
    """A column's values; times as integers, because PyTorch's `DataLoader` refuses ``datetime64`` and ``timedelta64``."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        narrow = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
        column = column.cast(narrow).cast(pa.int64())
    values: NDArray[Any] = column.to_numpy()
    return values


def concatenate(samples: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The rows of several row groups together: a ``collate`` function."""
    return {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("larder.parquet needs pyarrow: pip install 'larder[digest]'") from error
    return pyarrow, pyarrow.parquet


@lru_cache(maxsize=_FOOTERS)
def _parsed(footer: bytes) -> tuple[Any, dict[int, int]]:
    """A file's metadata, and the number of the row group that begins at each offset."""
    pa, parquet = _pyarrow()
    metadata = parquet.read_metadata(pa.BufferReader(footer))
    groups = ((number, metadata.row_group(number)) for number in range(metadata.num_row_groups))
    return metadata, {span_of(group)[0]: number for number, group in groups if group.num_rows}


class _Stretch(io.RawIOBase):
    """A stretch of a file that acts as the whole file.

    Args:
        data: the bytes.
        start: their place in the file.
    """

    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._start = start
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The next byte's place in the file."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the file; the stretch is the file's end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._start + len(self._data)}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read bytes of the stretch; none outside of it."""
        target = memoryview(buffer).cast("B")
        place = self._position - self._start
        piece = self._data[place : place + len(target)] if place >= 0 else self._data[:0]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)
