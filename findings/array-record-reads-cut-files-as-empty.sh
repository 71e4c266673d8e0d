#!/usr/bin/env bash
# The ArrayRecordReader of array_record takes a file that is cut, or that is not there at all, for one without records: num_records() is
# 0 and nothing is raised, wherever the file of 100 records is cut, even one byte before its end. So it is with the file of a writer
# that was dropped without close(). A loop over range(reader.num_records()) ends at once, and the shard is missing without a word.
# Expected: an error, as ArrayRecordDataSource of the same package raises one. What helps: that class, or reader.ok(), which is False.
# Seen with array_record 0.8.6.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'array_record==0.8.6'
"$home/v/bin/python" - "$home" <<'END'
import os
import random
import sys
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

home = sys.argv[1]
numbers = random.Random(0)
whole = f"{home}/whole.array_record"
cut = f"{home}/cut.array_record"

def written(path, closed):
    writer = ArrayRecordWriter(path, "group_size:1")
    for _ in range(100):
        writer.write(numbers.randbytes(10_000))
    if closed:
        writer.close()

written(whole, closed=True)
reader = ArrayRecordReader(whole)
assert reader.num_records() == 100 and reader.ok()
size = os.path.getsize(whole)
assert size > 1_000_000
with open(whole, "rb") as file:
    content = file.read()
for length in (size - 1, size - 65536, size // 2, 65536):
    with open(cut, "wb") as file:
        file.write(content[:length])
    reader = ArrayRecordReader(cut)
    print(length, "of", size, reader.num_records(), reader.ok())
    assert reader.num_records() == 0 and not reader.ok()
    try:
        len(ArrayRecordDataSource([whole, cut]))
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError("the data source reads it")
written(cut, closed=False)
for path in (cut, f"{home}/missing.array_record"):
    reader = ArrayRecordReader(path)
    print(path, reader.num_records(), reader.ok())
    assert reader.num_records() == 0
END
