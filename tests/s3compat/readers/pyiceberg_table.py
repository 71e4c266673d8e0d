# /// script
# dependencies = ["pyiceberg[sql-sqlite]==0.12.0", "pyarrow==26.0.1"]
# ///
"""PyIceberg over pyarrow: the catalog is a file here, and an object names the table's present metadata."""

import pyarrow
from place import ENDPOINT, KEY, REGION, SCRATCH, SECRET, URL, numbers, run, version_of_numbers
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable

COUNT = 500_000
POINTER = f"{URL}/pointer"
ACCESS = {"s3.endpoint": ENDPOINT, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": REGION}


def write(version):
    """Overwrite the table, and name its metadata."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{SCRATCH}/catalog", warehouse=URL, **ACCESS)
    catalog.create_namespace("n")
    rows = pyarrow.table({"x": numbers(version, COUNT)})
    files = load_file_io(ACCESS, URL)
    if files.new_input(POINTER).exists():
        table = catalog.register_table("n.t", files.new_input(POINTER).open().read().decode())
    else:
        table = catalog.create_table("n.t", rows.schema)
    table.overwrite(rows)
    with files.new_output(POINTER).create(overwrite=True) as pointer:
        pointer.write(table.metadata_location.encode())


def read():
    """Scan the table."""
    location = load_file_io(ACCESS, URL).new_input(POINTER).open().read().decode()
    return version_of_numbers(StaticTable.from_metadata(location, ACCESS).scan().to_arrow()["x"].to_pylist(), COUNT)


run(write, read)
