"""Writing digest files."""

import hashlib
import os

import pyarrow.parquet as pq
import pytest

from larder.digest import writer
from larder.digest.file import read
from larder.digest.writer import SCHEMA, Row, write


def rows(count: int, **changes: object) -> list[Row]:
    """Rows that differ in every column."""
    made = [
        Row(
            hashlib.sha256(b"%d" % n).digest(),
            "b",
            f"k/{n:06}",
            n or None,
            n * 3,
            f'"{n}"',
            n * 9,
            f"m{n}" if n % 2 else None,
        )
        for n in range(count)
    ]
    return [row._replace(**changes) for row in made]


def test_what_was_written_is_read(tmp_path):
    """Rows come back in order, with every column."""
    assert write(tmp_path / "d", rows(7), "objects") == 7
    assert [tuple(row.values()) for row in pq.read_table(tmp_path / "d").to_pylist()] == [tuple(row) for row in rows(7)]
    assert read(tmp_path / "d").location(3) == ("b", "k/000003", 3, 9)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    """The file depends only on the rows, not on time, machine or order of work."""
    write(tmp_path / "a", rows(1000), "objects")
    write(tmp_path / "b", iter(rows(1000)), "objects")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_groups_hold_a_fixed_number_of_rows(tmp_path, monkeypatch):
    """Memory is bounded by a group, whose size is part of the format."""
    monkeypatch.setattr(writer, "_ROWS_PER_GROUP", 100)
    write(tmp_path / "d", rows(250), "objects")
    file = pq.ParquetFile(tmp_path / "d")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [100, 100, 50]
    assert read(tmp_path / "d").id == hashlib.sha256(b"".join(row.digest for row in rows(250))).hexdigest()


def test_no_rows_are_a_valid_file(tmp_path):
    """A dataset may have no items; its file has all columns."""
    assert write(tmp_path / "d", [], "objects") == 0
    assert len(read(tmp_path / "d")) == 0
    assert pq.read_schema(tmp_path / "d").names == SCHEMA.names


def test_what_the_items_are_is_kept(tmp_path):
    """The metadata says what kind of items the file lists."""
    write(tmp_path / "d", rows(1), "tar-members")
    assert pq.read_metadata(tmp_path / "d").metadata[writer.ITEMS_KEY.encode()] == b"tar-members"


def test_a_failure_leaves_the_file_as_it_was(tmp_path):
    """A file is replaced when it is whole, and nothing else stays."""

    def fails():
        yield from rows(3)
        raise RuntimeError("in the middle")

    write(tmp_path / "d", rows(2), "objects")
    before = (tmp_path / "d").read_bytes()
    with pytest.raises(RuntimeError, match="in the middle"):
        write(tmp_path / "d", fails(), "objects")
    assert (tmp_path / "d").read_bytes() == before
    assert os.listdir(tmp_path) == ["d"]
