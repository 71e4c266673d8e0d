"""Rows of row groups, where a gateway has no part in it."""

import datetime
import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import larder
from larder.base.tar import pack_sample
from larder.digest.parquet import row_groups
from larder.parquet import read_rows


def groups_of(table, **options):
    """The items of a file with this table, as a loader makes them."""
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    data = memoryview(stream.getvalue())
    *spans, (start, length) = row_groups("b", "k", len(data), lambda offset, length: bytes(data[offset:][:length]))
    footer = data[start : start + length]
    return [
        larder.Item(number, pack_sample({"0": data[at : at + size], "1": footer}), ("b", "k"), offset=at)
        for number, (at, size) in enumerate(spans)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "zstd", "write_page_index": True, "data_page_version": "2.0"},
        {"compression": "snappy", "use_dictionary": ["text"], "data_page_size": 64},
    ],
)
def test_every_row_of_every_group(options):
    """The columns are read as written, for any codec and page size."""
    texts = [f"text {n % 7}" if n % 5 else None for n in range(100)]
    table = pa.table({"number": range(100), "text": texts, "list": [[n] * (n % 3) for n in range(100)]})
    items = groups_of(table, row_group_size=30, **options)
    read = [read_rows(item) for item in items]
    assert [len(rows["number"]) for rows in read] == [30, 30, 30, 10]
    assert [n for rows in read for n in rows["number"].tolist()] == list(range(100))
    assert [text for rows in read for text in rows["text"]] == texts
    assert [list(values) for rows in read for values in rows["list"]] == table["list"].to_pylist()
    assert list(read_rows(items[1], ["text"])) == ["text"]


def test_items_that_are_no_row_groups():
    """A dataset whose items are not row groups is refused; the error explains how to get row groups."""
    with pytest.raises(larder.LarderError, match="--row-groups"):
        read_rows(larder.Item(0, memoryview(b"whole"), ("b", "k")))


def test_without_pyarrow(monkeypatch):
    """Without pyarrow, reading Parquet raises an error that names the package to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'larder\[digest\]'"):
        read_rows(larder.Item(0, memoryview(b""), ("b", "k"), offset=4))


MOMENT = datetime.datetime(2025, 1, 1, 12, 30, 0, 250000)
ZONED = MOMENT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
MICROSECONDS = 1_735_734_600_250_000
"""From 1970 to ``MOMENT`` in UTC."""


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        (pa.timestamp("ms"), MOMENT, MICROSECONDS // 1000),
        (pa.timestamp("us"), MOMENT, MICROSECONDS),
        (pa.timestamp("ns"), MOMENT, MICROSECONDS * 1000),
        (pa.timestamp("us", "Europe/Berlin"), ZONED, MICROSECONDS - 2 * 3600 * 10**6),
        (pa.date32(), MOMENT.date(), 20089),
        (pa.date64(), MOMENT.date(), 20089),
        (pa.time32("ms"), MOMENT.time(), 45_000_250),
        (pa.time64("us"), MOMENT.time(), 45_000_250_000),
        (pa.time64("ns"), MOMENT.time(), 45_000_250_000_000),
        (pa.duration("s"), datetime.timedelta(days=-1), -86_400),
        (pa.duration("us"), datetime.timedelta(seconds=1.5), 1_500_000),
    ],
    ids=str,
)
def test_times_are_whole_numbers_in_their_unit(kind, value, number):
    """Times have no type among tensors, so they come as numbers: those of Parquet's own encoding, of an instant in UTC. Parquet
    stores ``date64`` as days."""
    table = pa.table({"when": pa.array([value, value, None], kind), "nested": [[MOMENT]] * 3})
    first, second = map(read_rows, groups_of(table, row_group_size=2))
    assert first["when"].dtype == np.int64
    assert first["when"].tolist() == [number, number]
    assert np.isnan(second["when"]).tolist() == [True]
    assert first["nested"].dtype == object
