#!/usr/bin/env bash
# The reader of the package tfrecord cuts the zero bytes off the end of each value of a list of bytes: two arrays of int32 that were
# stored in one feature come back as 1 and 9 bytes in place of 8 and 16, since a list becomes a NumPy array of fixed-width strings. A
# list of one value is read whole, so whether a sample is damaged depends on how many values it has.
# Expected: the bytes that were written. Seen with tfrecord 1.14.6.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'tfrecord==1.14.6' numpy
"$home/v/bin/python" - "$home" <<'END'
import sys
import numpy
from tfrecord import TFRecordWriter, tfrecord_loader
from tfrecord.example_pb2 import Example
from tfrecord.reader import tfrecord_iterator

path = sys.argv[1] + "/boxes.tfrecord"
boxes = [numpy.array([1, 0], "<i4").tobytes(), numpy.array([1, 0, 1, 0], "<i4").tobytes()]
writer = TFRecordWriter(path)
writer.write({"boxes": (boxes[:1], "byte")})
writer.write({"boxes": (boxes, "byte")})
writer.close()

stored = [list(Example.FromString(record).features.feature["boxes"].bytes_list.value) for record in tfrecord_iterator(path)]
alone, both = (record["boxes"] for record in tfrecord_loader(path, None, {"boxes": "byte"}))
print(len(alone), [len(value) for value in both])
assert stored == [boxes[:1], boxes]
assert alone == boxes[0]
assert [len(value) for value in both] == [1, 9]
END
