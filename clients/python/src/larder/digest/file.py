"""Digest files: the Parquet files that list a dataset's items.

Columns: ``digest`` (32 bytes, the SHA-256 of the item), ``bucket`` and ``key`` (text), ``offset`` and ``length`` (integers; an
item without an offset is a whole object, one without a length ends where its object ends). Registration
ignores other columns. Files that ``larder digest build`` wrote have three more (see ``writer``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from larder.base.errors import DigestFileError

DIGEST_SIZE = 32
"""Bytes of a SHA-256."""
LONGEST_KEY = 1024
"""Bytes of the longest key that S3 accepts."""
NONE = -1
"""The value for "none" in ``offsets`` and ``lengths``."""
COLUMNS = ("digest", "bucket", "key", "offset", "length")
"""The columns of every digest file."""
MEMBERS_KEY = "larder.members"
"""Metadata of a file whose samples are adjacent rows: the members' names with commas between. Gateways read it."""
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (
    pa.types.is_fixed_size_binary,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
_LARGEST = np.iinfo(np.int64).max


class Location(NamedTuple):
    """The location of an item's bytes; ``offset`` and ``length`` as in the file, ``None`` for none."""

    bucket: str
    key: str
    offset: int | None
    length: int | None


@dataclass(frozen=True, eq=False)
class DigestFile:
    """A digest file in memory; item ``i`` is row ``i``. Holds no Python object per item, and can be forked and pickled.

    Args:
        path: where it was read.
        digests: SHA-256 of each item, shape (items, 32).
        buckets: bucket of each item, an Arrow dictionary array of ``large_string``.
        keys: key of each item, an Arrow array of ``large_string``.
        offsets: first byte of each item in its object, -1 without an offset.
        lengths: bytes of each item, -1 if unknown.
        members: names of the members of a sample, in the order of its adjacent items; empty if items are not members.
    """

    path: Path
    digests: NDArray[np.uint8]
    buckets: Any
    keys: Any
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    members: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def id(self) -> str:
        """The dataset's id."""
        return dataset_id(self.digests)

    @property
    def size(self) -> int:
        """The sum of the known lengths, in bytes."""
        return int(self.lengths[self.lengths != NONE].sum())

    def digest(self, index: int) -> bytes:
        """The SHA-256 of an item. Raises IndexError."""
        row: NDArray[np.uint8] = self.digests[self._checked(index)]
        return row.tobytes()

    def location(self, index: int) -> Location:
        """The location of an item. Raises IndexError."""
        index = self._checked(index)
        return Location(
            self.buckets[index].as_py(),
            self.keys[index].as_py(),
            _optional(int(self.offsets[index])),
            _optional(int(self.lengths[index])),
        )

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {self.path}, which has {len(self)}")
        return int(index)


def dataset_id(digests: NDArray[np.uint8]) -> str:
    """The id of a dataset: SHA-256 over the digests of its items in order, as 64 hexadecimal digits.

    Args:
        digests: shape (items, 32).
    """
    return hashlib.sha256(np.ascontiguousarray(digests).data).hexdigest()


def read(path: str | os.PathLike[str]) -> DigestFile:
    """Read and check a digest file.

    Raises:
        DigestFileError: there is no such file, it is damaged, or a column is missing or has invalid values; the error names the
            column and, if there is one, the row.
    """
    path = Path(path)
    with opened(path) as parquet:
        try:
            return _checked_file(path, parquet)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, error) from error


def opened(path: Path) -> pq.ParquetFile:
    """The Parquet file at a path, known to have the columns of a digest file. Raises DigestFileError."""
    try:
        parquet = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise DigestFileError(f"{path} does not exist") from None
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    names = parquet.schema_arrow.names
    for name in COLUMNS:
        if names.count(name) != 1:
            parquet.close()
            many = "no column" if name not in names else "more than one column"
            raise DigestFileError(f"{path} has {many} {name!r}; a digest file has {', '.join(COLUMNS)}")
    return parquet


def damaged(path: Path, error: Exception) -> DigestFileError:
    """The error for a file that cannot be read to its end."""
    return DigestFileError(f"{path} is not a complete Parquet file, write or fetch it again: {error}")


def _checked_file(path: Path, parquet: pq.ParquetFile) -> DigestFile:
    def column(name: str) -> _Column:
        # One column at a time bounds memory. No Arrow threads, because the caller may be about to fork.
        return _Column(path, name, parquet.read(columns=[name], use_threads=False).column(name))

    digests = column("digest").digests()
    buckets = column("bucket").text(_bad_bucket, "is not a bucket name").dictionary_encode()
    keys = column("key").text(_bad_key, f"is not a key of 1 to {LONGEST_KEY} bytes")
    offsets, length = column("offset").numbers(), column("length")
    lengths = length.numbers()
    both = (offsets != NONE) & (lengths != NONE)
    length.refuse(both & (offsets > _LARGEST - np.maximum(lengths, 0)), "ends beyond any object")
    pa.default_memory_pool().release_unused()
    named = (parquet.metadata.metadata or {}).get(MEMBERS_KEY.encode(), b"").decode("utf-8", "replace")
    return DigestFile(path, digests, buckets, keys, offsets, lengths, tuple(filter(None, named.split(","))))


class _Column:
    """Converts one column from its writer's type to the type used here."""

    def __init__(self, path: Path, name: str, values: pa.ChunkedArray) -> None:
        self._path = path
        self._name = name
        self._values = values

    def digests(self) -> NDArray[np.uint8]:
        """Shape (rows, 32). Raises DigestFileError."""
        values = self._plain()
        kind = values.type
        if not any(is_one(kind) for is_one in _BINARIES):
            hint = ", 64 hexadecimal digits must be decoded (unhex)" if _is_text(kind) else ""
            self._wrong_type(f"32 bytes{hint}")
        self._refuse_nulls(values)
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width == DIGEST_SIZE:
            joined = _joined(values)
            return _rows(joined.buffers()[1], joined.offset * DIGEST_SIZE, len(joined))
        values = values.cast(pa.large_binary())
        self.refuse(_numpy(pc.not_equal(pc.binary_length(values), DIGEST_SIZE)), f"is not {DIGEST_SIZE} bytes long")
        joined = _joined(values)
        _, starts, data = joined.buffers()
        first = int(np.frombuffer(starts, np.int64)[joined.offset]) if len(joined) else 0
        return _rows(data, first, len(joined))

    def text(self, bad: Callable[[pa.ChunkedArray], pa.ChunkedArray], what: str) -> Any:
        """An Arrow array of ``large_string``. Raises DigestFileError."""
        values = self._plain()
        if not _is_text(values.type):
            self._wrong_type("text")
        self._refuse_nulls(values)
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            self.refuse(np.array([not _is_utf8(value) for value in values]), "is not UTF-8")
            raise
        values = values.cast(pa.large_string())
        self.refuse(_numpy(bad(values)), what)
        return _joined(values)

    def numbers(self) -> NDArray[np.int64]:
        """One number per row, ``NONE`` for null. Raises DigestFileError."""
        values = self._plain()
        kind = values.type
        if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
            self._wrong_type("an integer")
        if pa.types.is_uint64(kind):
            self.refuse(pc.fill_null(values, 0).to_numpy() > _LARGEST, "is larger than any object")
        numbers = values.cast(pa.int64())
        self.refuse(_numpy(pc.less(numbers, 0)), "is negative")
        filled: NDArray[np.int64] = pc.fill_null(numbers, NONE).to_numpy()
        return filled

    def refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        """Raise DigestFileError for the first invalid row."""
        rows = np.flatnonzero(bad)
        if len(rows):
            raise DigestFileError(f"{self._path}: column {self._name!r}, row {rows[0]}: {what}")

    def _plain(self) -> pa.ChunkedArray:
        if pa.types.is_dictionary(self._values.type):
            return self._values.cast(self._values.type.value_type)
        return self._values

    def _refuse_nulls(self, values: pa.ChunkedArray) -> None:
        if values.null_count:
            self.refuse(_numpy(pc.is_null(values)), "is null")

    def _wrong_type(self, expected: str) -> None:
        raise DigestFileError(f"{self._path}: column {self._name!r} is {self._values.type}, expected {expected}")


def _rows(data: pa.Buffer | None, first: int, count: int) -> NDArray[np.uint8]:
    if data is None or not count:
        return np.zeros((0, DIGEST_SIZE), np.uint8)
    return np.frombuffer(data, np.uint8, count * DIGEST_SIZE, first).reshape(-1, DIGEST_SIZE)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _TEXTS)


def _is_utf8(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _bad_bucket(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.invert(pc.match_substring_regex(values, r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"))


def _bad_key(values: pa.ChunkedArray) -> pa.ChunkedArray:
    length = pc.binary_length(values)
    return pc.or_(pc.equal(length, 0), pc.greater(length, LONGEST_KEY))


def _numpy(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(values, False).to_numpy()
    return mask


def _joined(values: pa.ChunkedArray) -> Any:
    """The chunks joined into one array; empty without chunks."""
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _optional(value: int) -> int | None:
    return None if value == NONE else value
