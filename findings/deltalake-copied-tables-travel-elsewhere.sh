#!/usr/bin/env bash
# A Delta table that was copied, object by object, has the same history() with the same times, but load_as_version(time) returns
# another version of the copy: times are looked up by when the log's objects were written, not by the times in them. Expected: the
# version of that time, as in the table copied. Seen with deltalake 1.6.6 and pyarrow 25.0.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'deltalake==1.6.6' 'pyarrow==25.0.1'
"$home/v/bin/python" - "$home" <<'END'
import datetime
import shutil
import sys
import time
import pyarrow
from deltalake import DeltaTable, write_deltalake

first, copy = sys.argv[1] + "/first", sys.argv[1] + "/copy"
for number in range(3):
    write_deltalake(first, pyarrow.table({"x": [number]}), mode="append")
    time.sleep(1.2)
shutil.copytree(first, copy, copy_function=shutil.copyfile)
times = sorted(commit["timestamp"] for commit in DeltaTable(first).history())
between = datetime.datetime.fromtimestamp((times[1] + times[2]) / 2000, datetime.timezone.utc)
versions = []
for table in map(DeltaTable, (first, copy)):
    assert sorted(commit["timestamp"] for commit in table.history()) == times
    table.load_as_version(between)
    versions.append(table.version())
print(versions)
assert versions == [1, 0]
END
