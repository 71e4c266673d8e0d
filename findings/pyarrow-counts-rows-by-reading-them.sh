#!/usr/bin/env bash
# count_rows() of a pyarrow dataset of Arrow IPC files (Feather) reads every byte of them, 16 times what reading one of 16 columns does.
# Expected: a count from the metadata of the batches, as for Parquet, which it counts by its footer. Seen with pyarrow 26.0.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pyarrow==26.0.1' 'fsspec==2026.9.0' 'numpy==2.4.6'
"$home/v/bin/python" - "$home" <<'END'
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.fs
import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem

class Counted:
    def __init__(self, file):
        self.file = file
    def read(self, count=-1):
        data = self.file.read(count)
        Counted.read_bytes += len(data)
        return data
    def __getattr__(self, name):
        return getattr(self.file, name)

class Counting(LocalFileSystem):
    def open(self, path, mode="rb", **options):
        return Counted(open(path, mode))

table = pa.table({f"c{number}": np.random.default_rng(number).random(200_000) for number in range(16)})
arrow, parquet = f"{sys.argv[1]}/t.arrow", f"{sys.argv[1]}/t.parquet"
pa.feather.write_feather(table, arrow, compression="uncompressed", chunksize=10_000)
pa.parquet.write_table(table, parquet)
files = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(Counting()))

def read(path, kind, action):
    Counted.read_bytes = 0
    action(ds.dataset(path, filesystem=files, format=kind))
    return Counted.read_bytes

count, column = read(arrow, "arrow", ds.Dataset.count_rows), read(arrow, "arrow", lambda data: data.to_table(columns=["c3"]))
by_footer = read(parquet, "parquet", ds.Dataset.count_rows)
print(f"pyarrow {pa.__version__}: {table.nbytes} bytes; count_rows of Arrow IPC reads {count}, one column {column}, count_rows of Parquet {by_footer}")
assert count > 0.99 * table.nbytes
assert column < 0.1 * table.nbytes and by_footer < 0.02 * table.nbytes
sys.stdout.flush()
os._exit(0)  # threads of pyarrow may still hold files of Python's
END
