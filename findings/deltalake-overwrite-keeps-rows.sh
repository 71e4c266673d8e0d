#!/usr/bin/env bash
# An overwrite of a whole Delta table keeps the rows that another writer has appended since the overwriting one opened the table:
# it is committed without a conflict and the table is old and new at once. A delete or an overwrite in between is a conflict.
# Expected: one conflict more, as in PyIceberg 0.12, or the table as written. Seen with deltalake 1.6.6 and pyarrow 25.0.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'deltalake==1.6.6' 'pyarrow==25.0.1'
"$home/v/bin/python" - "$home" <<'END'
import sys
import pyarrow
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

def rows(*numbers):
    return pyarrow.table({"x": list(numbers)})

path = sys.argv[1] + "/table"
write_deltalake(path, rows(1, 2))
mine = DeltaTable(path)
write_deltalake(path, rows(3), mode="append")
write_deltalake(mine, rows(10), mode="overwrite")
after_append = sorted(DeltaTable(path).to_pyarrow_table()["x"].to_pylist())
mine = DeltaTable(path)
DeltaTable(path).delete("x = 10")
try:
    write_deltalake(mine, rows(20), mode="overwrite")
    after_delete = "committed"
except CommitFailedError:
    after_delete = "conflict"
print(after_append, after_delete)
assert after_append == [3, 10]
assert after_delete == "conflict"
END
