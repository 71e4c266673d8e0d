"""Conversion of digest files, valid and invalid.

Files that harm their reader or test its limits of time and memory are read in the child process that gateways use, and so is
one file for each kind of answer. All others are read in the test process, because a child process takes half a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gateway.model.datasets import UNKNOWN_LENGTH, ApiError, Location
from gateway.policies.items.dataset_quota import Limit
from gateway.store.datasets.content import Content
from gateway.store.datasets.conversion import Converted, Grant, GrantExceeded, Limits, convert
from gateway.store.datasets.locations import Locations, items_of, open_locations
from gateway.store.files.failures import DiskFault
from rig.digests import SCHEMA, Row, columns_of, id_of, rows_of, sha, write, write_columns
from rig.near import read_near

BOOT = 7
Convert = Callable[..., Awaitable[Converted]]


@pytest.fixture
def read(tmp_path: Path) -> Convert:
    """Reads a digest file into ``tmp_path / "out"``."""

    async def run(path: Path, grant: Grant | None = None) -> Converted:
        out = tmp_path / "out"
        out.mkdir()
        return _kept(out, await read_near(path, out, Limits(), grant or Grant()))

    return run


@pytest.fixture
def read_apart(tmp_path: Path) -> Convert:
    """Does the same in the process that does it in a gateway."""

    async def run(path: Path, limits: Limits | None = None, grant: Grant | None = None) -> Converted:
        out = tmp_path / "out"
        out.mkdir()
        return _kept(out, await convert(path, out, limits or Limits(), grant or Grant(), (tmp_path / "turn",)))

    return run


def _kept(out: Path, done: Converted) -> Converted:
    (out / "content").rename(out.parent / done.tag)
    return done


def opened(tmp_path: Path, done: Converted) -> tuple[Content, Locations]:
    """Open the content and the locations that a conversion wrote."""
    return Content(tmp_path / done.tag, BOOT), open_locations(tmp_path / "out" / "locations")


async def refused(read: Convert, path: Path, **more: object) -> ApiError:
    """The refusal of a digest file."""
    with pytest.raises(ApiError) as caught:
        await read(path, **more)
    return caught.value


async def test_every_row_comes_back(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: digest, bucket, key, offset and length of each item are those of its row; the id is SHA-256 over the digests."""
    rows = [
        Row(sha("a"), "data", "plain", None, None),
        Row(sha("b"), "other.bucket", "a/ä ü%2F+../\n", 0, 5),
        Row(sha("a"), "data", "k" * 1024, 2**40, 0),
        Row(sha("c"), "data", "x", None, 2**62),
    ]
    done = await read_apart(write(tmp_path / "f", rows))
    content, locations = opened(tmp_path, done)
    assert (done.id, done.items, done.size) == (id_of(rows), 4, 5 + 2**62)
    assert (content.id, content.items, content.size) == (done.id, 4, done.size)
    assert [content.digest(index) for index in range(4)] == [row.digest for row in rows]
    assert content.lengths[:].tolist() == [UNKNOWN_LENGTH, 5, 0, 2**62]
    assert [locations.of(index) for index in range(4)] == [Location(*row[1:]) for row in rows]
    assert list(locations.between(1, 3)) == [Location(*row[1:]) for row in rows[1:3]]


async def test_rows_of_many_batches_stay_in_order(read: Convert, tmp_path: Path) -> None:
    """Rule: the order is the file's, across the batches in which it is read and the row groups in which it was written."""
    rows = rows_of(150_000)
    done = await read(write(tmp_path / "f", rows, row_group_size=40_000))
    content, locations = opened(tmp_path, done)
    assert done.id == id_of(rows)
    for index in (0, 65_535, 65_536, 131_072, 149_999):
        assert content.digest(index) == rows[index].digest
        assert locations.of(index).key == rows[index].key
    assert [location.key for location in locations.between(60_000, 70_000)] == [row.key for row in rows[60_000:70_000]]


async def test_the_items_of_an_object_are_found(read: Convert, tmp_path: Path) -> None:
    """Rule: all items of an object are found by its name, wherever they are listed; of another bucket's or of none, nothing."""
    keys = [f"shards/{number % 400:04d}.tar" for number in range(5000)]
    buckets = ["data" if number % 3 else "other" for number in range(5000)]
    rows = [Row(sha(str(number)), *place, number, 1) for number, place in enumerate(zip(buckets, keys, strict=True))]
    _, locations = opened(tmp_path, await read(write(tmp_path / "f", rows)))
    for bucket, key in (("data", keys[0]), ("other", keys[399]), ("data", keys[250])):
        wanted = [number for number, row in enumerate(rows) if (row.bucket, row.key) == (bucket, key)]
        assert items_of(locations, bucket, key) == wanted != []
    assert items_of(locations, "data", "shards/0400.tar") == items_of(locations, "none", keys[0]) == []


async def test_no_items(read: Convert, tmp_path: Path) -> None:
    """Rule: a dataset may be empty; its id is the SHA-256 of no bytes."""
    done = await read(write(tmp_path / "f", []))
    content, locations = opened(tmp_path, done)
    assert (done.items, done.id) == (0, sha(b"").hex())
    assert content.indices_of(sha("a")).tolist() == []
    assert content.states.resident == 0
    assert list(locations.between(0, 0)) == []
    with pytest.raises(IndexError):
        locations.of(0)


async def test_items_are_found_by_their_bytes(read: Convert, tmp_path: Path) -> None:
    """Rule: all items of a digest are found, in order; a digest with the same beginning finds none."""
    same = sha("same")
    near = same[:8] + bytes(24)
    rows = [Row(same), Row(sha("b")), Row(near), Row(same), Row(near), Row(same[:31] + bytes([same[31] ^ 1]))]
    content, _ = opened(tmp_path, await read(write(tmp_path / "f", rows)))
    assert content.indices_of(same).tolist() == [0, 3]
    assert content.indices_of(near).tolist() == [2, 4]
    assert content.indices_of(sha("b")).tolist() == [1]
    assert content.indices_of(same[:8] + b"\xff" * 24).tolist() == []
    assert content.indices_of(sha("nobody")).tolist() == []


async def test_many_digests_of_one_prefix(read: Convert, tmp_path: Path) -> None:
    """Rule: digests are claims; a file in which all begin alike costs a search, not a scan."""
    count = 300_000
    digests = np.zeros((count, 32), np.uint8)
    digests[:, 24:] = np.arange(count, 0, -1).astype(">u8").view(np.uint8).reshape(-1, 8)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(digests.tobytes())])
    columns = columns_of([]) | {
        "digest": fixed,
        "bucket": pa.repeat("data", count),
        "key": pa.repeat("k", count),
        "offset": pa.nulls(count, pa.int64()),
        "length": pa.nulls(count, pa.int64()),
    }
    content, _ = opened(tmp_path, await read(write_columns(tmp_path / "f", columns)))
    looked: list[int] = []
    content.digest = lambda index: looked.append(index) or digests[index].tobytes()  # type: ignore[assignment,method-assign]
    assert content.indices_of(digests[5].tobytes()).tolist() == [5]
    assert len(looked) < 100


TYPES = {
    "binary": ("digest", pa.binary()),
    "large binary": ("digest", pa.large_binary()),
    "binary view": ("digest", pa.binary_view()),
    "digest dictionary": ("digest", pa.dictionary(pa.int32(), pa.binary())),
    "large string": ("key", pa.large_string()),
    "string view": ("key", pa.string_view()),
    "key dictionary": ("key", pa.dictionary(pa.int32(), pa.string())),
    "bucket dictionary": ("bucket", pa.dictionary(pa.int8(), pa.string())),
    "large bucket": ("bucket", pa.large_string()),
    "int32": ("length", pa.int32()),
    "uint16": ("length", pa.uint16()),
    "uint64": ("length", pa.uint64()),
    "uint32 offset": ("offset", pa.uint32()),
}


@pytest.mark.parametrize("name", TYPES)
async def test_types_that_writers_use(read: Convert, tmp_path: Path, name: str) -> None:
    """Rule: DuckDB, Polars, Spark and Arrow write the same columns with different types; all of them are read."""
    column, kind = TYPES[name]
    rows = [Row(sha(str(n)), f"bucket-{n % 2}", f"k{n}", n if n % 2 else None, n if n % 3 else None) for n in range(9)]
    columns = columns_of(rows)
    columns[column] = pa.array([getattr(row, column) for row in rows], kind)
    done = await read(write_columns(tmp_path / "f", columns | {"extra": pa.array(range(9))}))
    _, locations = opened(tmp_path, done)
    assert done.id == id_of(rows)
    assert list(locations.between(0, 9)) == [Location(*row[1:]) for row in rows]


async def test_columns_of_nothing_but_null(read: Convert, tmp_path: Path) -> None:
    """Rule: a writer that knows no offset and no length may write columns of type null."""
    columns = columns_of(rows_of(3)) | {"offset": pa.nulls(3), "length": pa.nulls(3)}
    _, locations = opened(tmp_path, await read(write_columns(tmp_path / "f", columns)))
    assert locations.of(2) == Location("data", "items/0000002.bin", None, None)


def tampered(name: str, row: int, value: object, kind: pa.DataType | None = None) -> dict[str, pa.Array]:
    """Ten good rows but for one value."""
    columns = columns_of(rows_of(10))
    values = columns[name].to_pylist()
    values[row] = value
    return columns | {name: pa.array(values, kind or columns[name].type)}


BAD_VALUES = {
    "short digest": (tampered("digest", 3, b"short", pa.binary()), "Row 3, column 'digest': it is not 32 bytes long."),
    "null digest": (tampered("digest", 4, None), "Row 4, column 'digest': it is null."),
    "null bucket": (tampered("bucket", 5, None), "Row 5, column 'bucket': it is null."),
    "null key": (tampered("key", 6, None), "Row 6, column 'key': it is null."),
    "empty key": (tampered("key", 7, ""), "Row 7, column 'key': it is empty."),
    "long key": (tampered("key", 8, "ä" * 513), "Row 8, column 'key': it is longer than 1024 bytes."),
    "path as bucket": (tampered("bucket", 9, "a/b"), "Row 9, column 'bucket': it is not a bucket name: 'a/b'."),
    "dots as bucket": (tampered("bucket", 0, ".."), "Row 0, column 'bucket': it is not a bucket name: '..'."),
    "negative offset": (tampered("offset", 1, -1), "Row 1, column 'offset': it is negative."),
    "negative length": (tampered("length", 2, -5), "Row 2, column 'length': it is negative."),
    "huge length": (tampered("length", 2, 2**63, pa.uint64()), "Row 2, column 'length': it is too large."),
    "huge end": (
        columns_of([Row(sha("a"), "data", "k", 2**62, 2**62)]),
        "Row 0, column 'length': it reaches beyond the largest object.",
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
async def test_bad_values_are_named(read: Convert, tmp_path: Path, name: str) -> None:
    """Rule: a bad value is refused with its column and the first row that has one."""
    columns, message = BAD_VALUES[name]
    error = await refused(read, write_columns(tmp_path / "f", columns))
    assert (error.code, error.detail) == ("InvalidDigestFile", message)


async def test_a_bad_row_far_behind(read: Convert, tmp_path: Path) -> None:
    """Rule: rows are counted through the whole file, not within the batch in which they are read."""
    rows = rows_of(70_000)
    rows[69_000] = rows[69_000]._replace(key="")
    assert (await refused(read, write(tmp_path / "f", rows))).detail == "Row 69000, column 'key': it is empty."


BAD_COLUMNS = {
    "no digest": (lambda columns: columns.pop("digest"), "The file has no column 'digest'"),
    "no offset": (lambda columns: columns.pop("offset"), "The file has no column 'offset'"),
    "hex digest": (
        lambda columns: columns.update(digest=pa.array(["ab" * 32] * 10)),
        "The column 'digest' has type string; it must be fixed_size_binary[32] or binary",
    ),
    "16 bytes": (
        lambda columns: columns.update(digest=pa.array([b"x" * 16] * 10, pa.binary(16))),
        "The column 'digest' has type fixed_size_binary[16]",
    ),
    "number as key": (lambda columns: columns.update(key=pa.array(range(10))), "The column 'key' has type int64"),
    "float length": (
        lambda columns: columns.update(length=pa.array([1.5] * 10)),
        "The column 'length' has type double; it must be int64",
    ),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
async def test_wrong_columns_are_named(read: Convert, tmp_path: Path, name: str) -> None:
    """Rule: a column that is missing or of another type is named, with the expected type."""
    change, message = BAD_COLUMNS[name]
    columns = columns_of(rows_of(10))
    change(columns)
    error = await refused(read, write_columns(tmp_path / "f", columns))
    assert error.code == "InvalidDigestFile"
    assert error.detail.startswith(message)


async def test_a_column_that_is_there_twice(read: Convert, tmp_path: Path) -> None:
    """Rule: a file with two columns of one name is refused."""
    columns = columns_of(rows_of(2))
    table = pa.Table.from_arrays([*columns.values(), columns["key"]], [*columns, "key"])
    pa.parquet.write_table(table, tmp_path / "f")
    assert (await refused(read, tmp_path / "f")).detail.startswith("The file has 2 columns 'key'")


async def test_keys_that_are_not_utf8(read: Convert, tmp_path: Path) -> None:
    """Rule: Parquet does not check that text is UTF-8, so this does."""
    data = b"goodb\xffd!"
    offsets = np.array([0, 4, 8], np.int32)
    broken = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])
    columns = columns_of(rows_of(2)) | {"key": broken}
    error = await refused(read, write_columns(tmp_path / "f", columns, use_dictionary=False))
    assert (error.code, error.detail) == ("InvalidDigestFile", "Row 1, column 'key': it is not UTF-8.")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.99, 0.9999])
async def test_truncated_files(read: Convert, tmp_path: Path, share: float) -> None:
    """Rule: a truncated file is refused as an invalid digest file; the message does not name its path."""
    whole = write(tmp_path / "whole", rows_of(5000)).read_bytes()
    (tmp_path / "f").write_bytes(whole[: int(len(whole) * share)])
    error = await refused(read, tmp_path / "f")
    assert error.code == "InvalidDigestFile"
    assert str(tmp_path) not in error.detail


@pytest.mark.parametrize("seed", range(12))
async def test_damaged_files(read_apart: Convert, tmp_path: Path, seed: int) -> None:
    """Rule: a damaged file gives a dataset with the same number of items or a refusal, even if the reader process dies."""
    raw = bytearray(write(tmp_path / "whole", rows_of(3000), compression="none").read_bytes())
    random = np.random.default_rng(seed)
    for position in random.integers(len(raw) // 2 * (seed % 2), len(raw), 20):
        raw[position] = random.integers(256)
    (tmp_path / "f").write_bytes(raw)
    try:
        outcome = str((await read_apart(tmp_path / "f")).items)
    except ApiError as error:
        outcome = error.code
    assert outcome in ("3000", "InvalidDigestFile", "TooLarge")


async def test_a_small_file_of_a_hundred_million_rows(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: a file of under a megabyte that stands for more items than a dataset may have is refused before it is unpacked."""
    nothing = pa.table({field.name: pa.nulls(5_000_000, field.type) for field in SCHEMA}, SCHEMA)
    with pa.parquet.ParquetWriter(tmp_path / "f", SCHEMA) as writer:
        for _ in range(21):
            writer.write_table(nothing, row_group_size=5_000_000)
    assert (tmp_path / "f").stat().st_size < 1_000_000
    error = await refused(read_apart, tmp_path / "f")
    assert (error.code, error.status) == ("TooLarge", 413)


async def test_an_index_larger_than_allowed(read: Convert, tmp_path: Path) -> None:
    """Rule: a file's unpacked size is bounded, however small the file is."""
    path = write(tmp_path / "f", rows_of(20_000))
    with pytest.raises(GrantExceeded) as caught:
        await read(path, grant=Grant(output=1_000_000))
    assert caught.value.limit is Limit.BYTES


async def test_more_items_than_allowed(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: a file with too many rows is refused before they are read."""
    with pytest.raises(GrantExceeded) as caught:
        await read_apart(write(tmp_path / "f", rows_of(20)), grant=Grant(items=19))
    assert caught.value.limit is Limit.ITEMS
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "job.json"]


async def test_a_full_disk(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: a full disk is distinct from a wrong file."""
    with pytest.raises(DiskFault) as caught:
        await read_apart(write(tmp_path / "f", rows_of(10)), Limits(reserve=2**60))
    assert caught.value.reason == "no-space"


async def test_too_little_memory(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: a file that takes more memory than the reader has ends the reader, not the gateway."""
    size = 3_000_000
    columns = columns_of([]) | {
        "digest": pa.repeat(pa.scalar(sha("a"), pa.binary(32)), size),
        "bucket": pa.repeat("b" * 200, size),
        "key": pa.repeat("k", size),
        "offset": pa.nulls(size, pa.int64()),
        "length": pa.nulls(size, pa.int64()),
    }
    path = write_columns(tmp_path / "f", columns, row_group_size=size)
    error = await refused(read_apart, path, limits=Limits(memory=450 * 1024**2))
    assert error.code in ("TooLarge", "InvalidDigestFile")
    assert "memory" in error.detail


async def test_too_little_time(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: reading that takes too long is ended, and leaves no process."""
    began = time.monotonic()
    error = await refused(read_apart, write(tmp_path / "f", rows_of(200_000)), limits=Limits(seconds=0.01))
    assert (error.code, "0.01 s" in error.detail) == ("TooLarge", True)
    assert time.monotonic() - began < 60


async def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rule: a gateway installed for S3 only refuses digest files and names the extra that reads them."""
    monkeypatch.setattr("gateway.store.datasets.conversion.find_spec", lambda _name: None)
    with pytest.raises(ApiError, match=r"larder-gateway\[datasets\]") as refusal:
        await convert(tmp_path / "f", tmp_path, Limits(), Grant(), ())
    assert (refusal.value.code, refusal.value.status) == ("NotImplemented", 501)


async def test_conversions_wait_for_one_another(tmp_path: Path) -> None:
    """Rule: conversions that need the same lock wait for one another, and each of them gets its turn."""
    paths = [write(tmp_path / f"f{number}", rows_of(1000, seed=number)) for number in range(3)]
    for number in range(3):
        (tmp_path / f"out{number}").mkdir()
    done = await asyncio.gather(
        *(convert(path, tmp_path / f"out{n}", Limits(), Grant(), (tmp_path / "turn",)) for n, path in enumerate(paths))
    )
    assert [each.id for each in done] == [id_of(rows_of(1000, seed=number)) for number in range(3)]


async def test_the_allow_list_is_checked_row_by_row(read_apart: Convert, tmp_path: Path) -> None:
    """Rule: a key with an allow-list cannot register other objects; the first one is named by its row, never by its key."""
    rows = [Row(sha("a"), "data", "mine/a"), Row(sha("b"), "data", "mine/b/c"), Row(sha("c"), "data", "secret/c")]
    error = await refused(read_apart, write(tmp_path / "f", rows), grant=Grant(("data/mine/**",)))
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.detail == "Row 2: the allow-list of this access key does not cover this item."


@pytest.mark.parametrize("allow", [("**",), ("data/**",), ("data/a/*", "data/b"), ()])
async def test_the_allow_list_covers(read: Convert, tmp_path: Path, allow: tuple[str, ...]) -> None:
    """Rule: an allow-list that covers every item lets the dataset pass, as does the lack of one."""
    rows = [Row(sha("a"), "data", "a/x"), Row(sha("b"), "data", "b")]
    assert (await read(write(tmp_path / "f", rows), grant=Grant(allow))).items == 2


PAIRS = SCHEMA.with_metadata({"larder.members": "jpg,cls"})


async def test_adjacent_rows_are_a_sample(read: Convert, tmp_path: Path) -> None:
    """Rule: the file's metadata names the members; the same rows without it are another content."""
    rows = rows_of(6)
    done = await read(write(tmp_path / "f", rows, PAIRS))
    content, _ = opened(tmp_path, done)
    assert (content.items, content.members, content.id) == (6, 2, id_of(rows))
    (tmp_path / "out" / "locations").unlink()
    (tmp_path / "out").rmdir()
    alone = await read(write(tmp_path / "g", rows))
    assert (alone.id, alone.tag != done.tag, opened(tmp_path, alone)[0].members) == (done.id, True, 1)


@pytest.mark.parametrize(("members", "said"), [("jpg,cls", "7 rows"), (",".join(map(str, range(65))), "65 members")])
async def test_rows_that_are_no_samples(read: Convert, tmp_path: Path, members: str, said: str) -> None:
    """Rule: a file with half a sample, or with larger ones than any loader makes, is refused."""
    path = write(tmp_path / "f", rows_of(7), SCHEMA.with_metadata({"larder.members": members}))
    problem = await refused(read, path)
    assert (problem.code, said in str(problem)) == ("InvalidDigestFile", True)
