"""Columns of Parquet in PyTorch's DataLoader."""

import datetime
import decimal
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import default_convert

import larder
from larder.base.tar import pack_sample
from larder.digest.parquet import row_groups
from larder.parquet import concatenate, read_rows

MOMENT = datetime.datetime(2025, 1, 1, 12, 30, 0, 250000)
ZONED = MOMENT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


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


def test_every_column_goes_through_a_loader():
    """PyTorch's conversion makes tensors of numbers and times, and leaves objects as they are: no column of Parquet fails."""
    columns = {
        "when": pa.array([MOMENT] * 2),
        "zoned": pa.array([ZONED] * 2, pa.timestamp("ns", "UTC")),
        "lasted": pa.array([datetime.timedelta(1)] * 2),
        "day": pa.array([MOMENT.date()] * 2),
        "hour": pa.array([MOMENT.time()] * 2),
        "price": pa.array([decimal.Decimal("1.25")] * 2),
        "text": pa.array(["a", None]),
        "category": pa.array(["a", "b"]).dictionary_encode(),
        "raw": pa.array([b"a"] * 2),
        "half": pa.array(np.zeros(2, np.float16)),
        "unsigned": pa.array([1, 2], pa.uint64()),
        "maybe": pa.array([True, None]),
        "struct": pa.array([{"at": MOMENT}] * 2),
        "map": pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int32())),
        "nothing": pa.nulls(2),
    }
    rows = concatenate([read_rows(item) for item in groups_of(pa.table(columns), row_group_size=1)])
    converted = default_convert(rows)
    assert set(converted) == set(columns)
    tensors = {name for name, column in converted.items() if isinstance(column, torch.Tensor)}
    assert tensors == {"when", "zoned", "lasted", "day", "hour", "half", "unsigned"}
    assert converted["price"].tolist() == [decimal.Decimal("1.25")] * 2
