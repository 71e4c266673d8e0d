#!/usr/bin/env bash
# Ray Data's write_parquet(path, mode="overwrite") deletes what is at the path before the first row of the new data is there: one
# row that cannot be read ends the write, and leaves neither the old table (1000 rows) nor the new one, but some files of the new one
# (750 rows or fewer), which read_parquet reads without an error. Expected: the old table stays until the new one is written, or no
# table that can be read. Seen with ray 2.60.0 and pyarrow 26.0.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'ray[data]==2.60.0' 'pyarrow==26.0.1'
export RAY_USAGE_STATS_ENABLED=0 RAY_DATA_DISABLE_PROGRESS_BARS=1
"$home/v/bin/python" - "$home" <<'END'
import os
import sys
import ray

home = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=home + "/r", log_to_driver=False)
table = home + "/table"

def rows():
    return ray.data.read_parquet(table).count() if os.listdir(table) else 0

def parsed(row):
    if row["id"] == 900:
        raise ValueError("a sample that cannot be read")
    return row

ray.data.range(1000, override_num_blocks=2).write_parquet(table)
before, files = rows(), set(os.listdir(table))
try:
    ray.data.range(1000, override_num_blocks=4).map(parsed).write_parquet(table, mode="overwrite")
    raise AssertionError("the write has not failed")
except ray.exceptions.RayTaskError as error:
    print(type(error).__name__)
print(before, rows(), len(files), len(files & set(os.listdir(table))))
assert before == 1000
assert not files & set(os.listdir(table))
assert rows() <= 750
ray.shutdown()
END
