#!/usr/bin/env bash
# expire_snapshots() of PyIceberg leaves every data and manifest file of the snapshots it expires, and adds a metadata file: the
# table's only way to them is gone, and nothing deletes them. Expected: that the files of no other snapshot are deleted, as by
# the procedure of this name in Spark. Seen with pyiceberg 0.12.0, sqlalchemy 2.1.9 and pyarrow 25.0.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'pyiceberg==0.12.0' 'sqlalchemy==2.1.9' 'pyarrow==25.0.1'
"$home/v/bin/python" - "$home" <<'END'
import pathlib
import sys
import pyarrow
from pyiceberg.catalog.sql import SqlCatalog

home = sys.argv[1]
catalog = SqlCatalog("catalog", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
catalog.create_namespace("sets")
table = catalog.create_table("sets.train", schema=pyarrow.schema([("x", pyarrow.int64())]))
for number in range(5):
    table.overwrite(pyarrow.table({"x": [number]}))

def files():
    return {path for path in pathlib.Path(home, "warehouse").rglob("*") if path.is_file()}

before = files()
table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:-1]]).commit()
after = files()
print(len(table.snapshots()), sum(path.suffix == ".parquet" for path in after), len(before), len(after))
assert len(table.snapshots()) == 1
assert before < after
assert sum(path.suffix == ".parquet" for path in after) == 5
END
