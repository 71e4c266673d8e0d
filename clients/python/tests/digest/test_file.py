"""Reading digest files of any writer, and refusing other files."""

import hashlib
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from larder.base.errors import DigestFileError
from larder.digest.file import Location, dataset_id, read
from larder.digest.writer import Row, write

N = 5
DIGESTS = [hashlib.sha256(b"%d" % number).digest() for number in range(N)]
KEYS = ["a", "b c/ü", "d%2F..", "x" * 1024, "\n"]


def columns(**changes: pa.Array) -> dict[str, pa.Array]:
    """The columns of a small digest file."""
    return {
        "digest": pa.array(DIGESTS, pa.binary(32)),
        "bucket": pa.array(["one", "two"] * 2 + ["one"]),
        "key": pa.array(KEYS),
        "offset": pa.array([None, 0, 512, 2**40, None], pa.int64()),
        "length": pa.array([None, 0, 7, 2**41, 9], pa.int64()),
    } | changes


def save(path, **changes):
    """A Parquet file of those columns."""
    pq.write_table(pa.table(columns(**changes)), path)
    return path


def test_every_item_has_its_digest_and_location(tmp_path):
    """Row i is item i, with None where the file has null."""
    found = read(save(tmp_path / "d"))
    assert len(found) == N
    assert [found.digest(index) for index in range(N)] == DIGESTS
    assert found.digests.shape == (N, 32)
    assert [found.location(index) for index in range(N)] == [
        Location("one", KEYS[0], None, None),
        Location("two", KEYS[1], 0, 0),
        Location("one", KEYS[2], 512, 7),
        Location("two", KEYS[3], 2**40, 2**41),
        Location("one", KEYS[4], None, 9),
    ]
    assert found.size == 2**41 + 16


def test_the_id_is_the_hash_over_the_digests_in_order(tmp_path):
    """SHA-256 over the 32-byte digests one after another; another order is another dataset."""
    expected = hashlib.sha256(b"".join(DIGESTS)).hexdigest()
    assert read(save(tmp_path / "d")).id == expected
    assert read(save(tmp_path / "e", digest=pa.array(DIGESTS[::-1], pa.binary(32)))).id != expected
    assert dataset_id(np.zeros((0, 32), np.uint8)) == hashlib.sha256().hexdigest()


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": pa.array(DIGESTS, pa.binary())},
        {"digest": pa.array(DIGESTS, pa.large_binary())},
        {"digest": pa.array(DIGESTS, pa.binary()).dictionary_encode()},
        {"bucket": pa.array(["one", "two"] * 2 + ["one"]).dictionary_encode()},
        {"key": pa.array(KEYS, pa.large_string())},
        {"key": pa.array(KEYS, pa.string_view()), "digest": pa.array(DIGESTS, pa.binary_view())},
        {"offset": pa.array([None, 0, 512, 2**40, None], pa.uint64())},
        {"extra": pa.array([{"a": 1}] * N)},
    ],
    ids=lambda changes: "-".join(f"{name}:{array.type}" for name, array in changes.items()),
)
def test_whatever_type_a_writer_chose_is_read(tmp_path, changes):
    """Other writers have other types for the same values; the items are the same."""
    plain, other = read(save(tmp_path / "p")), read(save(tmp_path / "o", **changes))
    assert other.id == plain.id
    assert [other.location(index) for index in range(N)] == [plain.location(index) for index in range(N)]


def test_columns_of_nothing_but_null_are_whole_objects(tmp_path):
    """Columns with only nulls are accepted, in any type: DuckDB and Polars choose their own type for them."""
    found = read(save(tmp_path / "d", offset=pa.nulls(N), length=pa.array([None] * N, pa.int32())))
    assert found.location(1) == Location("two", KEYS[1], None, None)


def test_many_row_groups_are_one_file(tmp_path):
    """Digests of several row groups are joined in order."""
    pq.write_table(pa.table(columns(digest=pa.array(DIGESTS, pa.binary()))), tmp_path / "d", row_group_size=2)
    assert read(tmp_path / "d").id == read(save(tmp_path / "e")).id


@pytest.mark.parametrize("kind", [pa.binary(32), pa.binary()])
def test_an_empty_file_is_a_dataset_without_items(tmp_path, kind):
    """No rows is valid."""
    table = pa.table(columns(digest=pa.array(DIGESTS, kind))).slice(0, 0)
    pq.write_table(table, tmp_path / "d")
    found = read(tmp_path / "d")
    assert (len(found), found.size, found.id) == (0, 0, hashlib.sha256().hexdigest())


def _digests(position: int, value: bytes | None) -> pa.Array:
    return pa.array([value if index == position else digest for index, digest in enumerate(DIGESTS)], pa.binary())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"digest": _digests(3, b"short")}, "column 'digest', row 3: is not 32 bytes"),
        ({"digest": _digests(2, None)}, "column 'digest', row 2: is null"),
        ({"digest": pa.array([digest[:20] for digest in DIGESTS], pa.binary(20))}, "row 0: is not 32 bytes"),
        ({"digest": pa.array([digest.hex() for digest in DIGESTS])}, "column 'digest' is string.*unhex"),
        ({"bucket": pa.array(["ok", "ok", "a/b", "ok", "ok"])}, "column 'bucket', row 2: is not a bucket name"),
        ({"bucket": pa.array(["ok", None, "ok", "ok", "ok"])}, "column 'bucket', row 1: is null"),
        ({"bucket": pa.array([1, 2, 3, 4, 5])}, "column 'bucket' is int64, expected text"),
        ({"key": pa.array(["k"] * 4 + [""])}, "column 'key', row 4: is not a key"),
        ({"key": pa.array(["ü" * 513] + ["k"] * 4)}, "column 'key', row 0: is not a key"),
        ({"key": pa.array([b"k", b"k", b"\xff", b"k", b"k"]).view(pa.string())}, "column 'key', row 2: is not UTF-8"),
        ({"offset": pa.array([0, 0, -1, 0, 0])}, "column 'offset', row 2: is negative"),
        ({"offset": pa.array([0.5] * N)}, "column 'offset' is double, expected an integer"),
        ({"length": pa.array([2**63, 0, 0, 0, 0], pa.uint64())}, "column 'length', row 0: is larger"),
        ({"length": pa.array([0, 0, 2**63 - 1, 0, 0])}, "column 'length', row 2: ends beyond"),
    ],
)
def test_what_a_column_must_not_hold_is_refused_by_column_and_row(tmp_path, changes, says):
    """The error names the column, the first bad row and the reason."""
    with pytest.raises(DigestFileError, match=says):
        read(save(tmp_path / "d", **changes))


@pytest.mark.parametrize("name", ["digest", "bucket", "key", "offset", "length"])
def test_a_missing_column_is_named(tmp_path, name):
    """All five columns must be there, even when they hold nothing but null."""
    pq.write_table(pa.table(columns()).drop_columns([name]), tmp_path / "d")
    with pytest.raises(DigestFileError, match=f"no column '{name}'"):
        read(tmp_path / "d")


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    """A file that was cut anywhere is an error and never a shorter dataset."""
    whole = save(tmp_path / "d").read_bytes()
    for size in range(0, len(whole), 37):
        (tmp_path / "d").write_bytes(whole[:size])
        with pytest.raises(DigestFileError, match="not a complete Parquet file"):
            read(tmp_path / "d")


def test_a_flipped_bit_in_the_data_is_noticed(tmp_path):
    """Files that larder writes carry checksums of their pages, and reading checks them."""
    write(tmp_path / "d", (Row(digest, "b", "k", None, 1, "e", 1, None) for digest in DIGESTS), "objects")
    data = bytearray((tmp_path / "d").read_bytes())
    data[data.index(DIGESTS[2]) + 5] ^= 4
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(DigestFileError, match="not a complete Parquet file"):
        read(tmp_path / "d")


def test_a_file_that_is_not_there_is_named(tmp_path):
    """A wrong path is the reader's error with the path in it."""
    with pytest.raises(DigestFileError, match="nowhere does not exist"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("index", [-1, N])
def test_an_item_that_does_not_exist_is_refused(tmp_path, index):
    """Indices count from 0; negative ones are refused."""
    found = read(save(tmp_path / "d"))
    with pytest.raises(IndexError, match=f"item {index} of .* has {N}"):
        found.location(index)


def test_it_can_be_pickled(tmp_path):
    """A digest file in memory can be handed to another process."""
    found = read(save(tmp_path / "d"))
    again = pickle.loads(pickle.dumps(found))
    assert again.id == found.id
    assert again.location(3) == found.location(3)
