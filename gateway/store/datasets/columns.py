"""Checks the columns of a digest file and converts them to arrays. Errors name the column and the first bad row.

Imported by ``convert`` only, because it imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gateway.model.keys import glob_matches, is_bucket_name
from gateway.store.datasets.layout import NONE

MAX_KEY = 1024
MAX_BUCKETS = 65_536
LARGEST = 2**63 - 1
MEMBERS = b"larder.members"
"""Metadata of a digest file whose samples are adjacent rows: the members' names, separated by commas."""
MAX_MEMBERS = 64
"""Maximum members of a sample."""

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_WANTED = {
    "digest": "fixed_size_binary[32] or binary, the SHA-256 of each item's bytes",
    "bucket": "string",
    "key": "string",
    "offset": "int64, null for a whole object",
    "length": "int64, null where it is not known",
}


class BadFile(Exception):
    """The digest file is invalid; ``code`` is the code of the problem document."""

    def __init__(self, message: str, code: str = "InvalidDigestFile") -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Columns:
    """Some rows. ``keys`` are the distinct keys, in order of appearance; ``key_numbers`` has the index of each row's key,
    ``buckets`` the number of its bucket.
    """

    digests: NDArray[np.uint8]
    lengths: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    buckets: NDArray[np.uint32]
    keys: list[bytes]
    key_numbers: NDArray[np.int64]


def check_schema(schema: pa.Schema) -> None:
    """Refuse a file without the columns of a digest file; further columns are ignored.

    Raises:
        BadFile: naming the column and the required type.
    """
    for name, wanted in _WANTED.items():
        positions = schema.get_all_field_indices(name)
        if len(positions) != 1:
            count = "no column" if not positions else f"{len(positions)} columns"
            raise BadFile(f"The file has {count} {name!r}; there must be one, of type {wanted}.")
        kind = schema.field(positions[0]).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not _fits(name, plain):
            raise BadFile(f"The column {name!r} has type {str(kind)[:100]}; it must be {wanted}.")


def members_of(metadata: Mapping[bytes, bytes], items: int) -> int:
    """Number of adjacent rows of a sample: one for each member that the file's metadata names, else 1.

    Raises:
        BadFile: there are too many, or the rows do not form whole samples.
    """
    members = metadata[MEMBERS].count(b",") + 1 if MEMBERS in metadata else 1
    if members > MAX_MEMBERS:
        raise BadFile(f"The file's samples have {members} members; they may have {MAX_MEMBERS}.")
    if items % members:
        raise BadFile(f"The file has {items} rows, but its samples have {members} members each.")
    return members


def _fits(name: str, kind: pa.DataType) -> bool:
    if name == "digest":
        return any(is_one(kind) for is_one in _BINARIES) or bool(
            pa.types.is_fixed_size_binary(kind) and kind.byte_width == 32
        )
    if name in ("bucket", "key"):
        return any(is_one(kind) for is_one in _TEXTS)
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def read_columns(batch: pa.RecordBatch, first: int, buckets: dict[str, int], allow: tuple[str, ...]) -> Columns:
    """Validate some rows and split them into columns.

    Args:
        batch: the rows.
        first: the number of the first row, counted from 0.
        buckets: numbers of the known buckets; new ones are added.
        allow: globs, one of which each item's ``bucket/key`` must match; empty: no restriction.

    Raises:
        BadFile: naming column and row.
    """
    arrays = {name: _plain(batch.column(name)) for name in _WANTED}
    for name in ("digest", "bucket", "key"):
        _refuse_first(name, first, np.asarray(arrays[name].is_null()), "is null")
    numbers, names = _buckets(arrays["bucket"], first, buckets)
    key_texts = _texts("key", arrays["key"], first)
    keys, key_numbers = _distinct(key_texts)
    sizes = np.array([len(key) for key in keys], np.int64)[key_numbers]
    _refuse_first("key", first, sizes == 0, "is empty")
    _refuse_first("key", first, sizes > MAX_KEY, f"is longer than {MAX_KEY} bytes")
    offsets, lengths = _numbers("offset", arrays["offset"], first), _numbers("length", arrays["length"], first)
    both = (offsets != NONE) & (lengths != NONE)
    _refuse_first("length", first, both & (offsets + lengths > LARGEST), "reaches beyond the largest object")
    if allow:
        _check_allowed(key_texts, numbers, names, first, allow)
    return Columns(_digests(arrays["digest"], first), lengths, offsets, numbers, keys, key_numbers)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _refuse_first(name: str, first: int, wrong: NDArray[np.bool_], problem: str) -> None:
    if wrong.any():
        raise BadFile(f"Row {first + int(np.argmax(wrong))}, column {name!r}: it {problem}.")


def _texts(name: str, array: pa.Array, first: int) -> pa.Array:
    """The values as a large_string array of valid UTF-8, which Parquet does not ensure."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wrong = [row for row in range(len(array)) if not _is_text(array[row])]
        where = f"Row {first + wrong[0]}, c" if wrong else "C"
        raise BadFile(f"{where}olumn {name!r}: it is not UTF-8.") from None
    return array.cast(pa.large_string())


def _is_text(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _span(array: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """Values and starts (one more than values, from 0) of a large_string or large_binary array."""
    _, raw_starts, raw = array.buffers()
    starts: NDArray[np.int64] = np.zeros(1, np.int64)
    if raw_starts is not None and len(array):
        starts = np.frombuffer(raw_starts, np.int64, len(array) + 1, 8 * array.offset)
    data = memoryview(raw)[starts[0] : starts[-1]] if raw is not None else memoryview(b"")
    return data, starts - starts[0]


def _distinct(array: pa.Array) -> tuple[list[bytes], NDArray[np.int64]]:
    """The distinct values of a large_string array, and each row's index among them."""
    encoded = array.dictionary_encode()
    values: list[bytes] = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return values, np.asarray(encoded.indices).astype(np.int64)


def _digests(array: pa.Array, first: int) -> NDArray[np.uint8]:
    if pa.types.is_fixed_size_binary(array.type):
        raw = array.buffers()[1]
        if raw is None or not len(array):
            return np.empty((0, 32), np.uint8)
        return np.frombuffer(raw, np.uint8, 32 * len(array), 32 * array.offset).reshape(-1, 32)
    array.validate(full=True)
    data, starts = _span(array.cast(pa.large_binary()))
    _refuse_first("digest", first, np.diff(starts) != 32, "is not 32 bytes long")
    return np.frombuffer(data, np.uint8).reshape(-1, 32)


def _numbers(name: str, array: pa.Array, first: int) -> NDArray[np.uint64]:
    """Non-negative numbers; ``NONE`` for null."""
    if pa.types.is_null(array.type):
        return np.full(len(array), NONE, np.uint64)
    if pa.types.is_unsigned_integer(array.type):
        values: NDArray[np.uint64] = np.asarray(array.fill_null(0).cast(pa.uint64()))
        _refuse_first(name, first, values > LARGEST, "is too large")
    else:
        signed = np.asarray(array.fill_null(0).cast(pa.int64()))
        _refuse_first(name, first, signed < 0, "is negative")
        values = signed.astype(np.uint64)
    return np.where(np.asarray(array.is_null()), np.uint64(NONE), values)


def _buckets(array: pa.Array, first: int, known: dict[str, int]) -> tuple[NDArray[np.uint32], list[str]]:
    """The number of each row's bucket, and the names of all buckets so far."""
    encoded = _texts("bucket", array, first).dictionary_encode()
    local = encoded.dictionary.to_pylist()
    rows: NDArray[Any] = np.asarray(encoded.indices)
    for number, name in enumerate(local):
        if not is_bucket_name(name):
            _refuse_first("bucket", first, rows == number, f"is not a bucket name: {name[:64]!r}")
        known.setdefault(name, len(known))
    if len(known) > MAX_BUCKETS:
        raise BadFile(f"Column 'bucket': there are more than {MAX_BUCKETS} different buckets.")
    numbers = np.array([known[name] for name in local], np.uint32)
    return numbers[rows] if len(rows) else np.empty(0, np.uint32), list(known)


def _check_allowed(
    keys: pa.Array, numbers: NDArray[np.uint32], names: list[str], first: int, allow: tuple[str, ...]
) -> None:
    for number in np.unique(numbers).tolist():
        bucket = names[number]
        if {"**", f"{bucket}/**"}.isdisjoint(allow):
            rows = np.flatnonzero(numbers == number)
            for row, key in zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True):
                if not any(glob_matches(pattern, f"{bucket}/{key}") for pattern in allow):
                    raise BadFile(
                        f"Row {first + row}: the allow-list of this access key does not cover this item.",
                        "AccessDenied",
                    )
