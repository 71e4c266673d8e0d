# /// script
# dependencies = ["deltalake==1.6.6", "pyarrow==26.0.1"]
# ///
"""Delta Lake (delta-rs): a log of commits, each created on condition that there is none of its number."""

import pyarrow
from deltalake import DeltaTable, write_deltalake
from place import ENDPOINT, REGION, URL, numbers, run, version_of_numbers

COUNT = 500_000
OPTIONS = {"AWS_ENDPOINT_URL": ENDPOINT, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}


def write(version):
    """Overwrite the table."""
    write_deltalake(URL, pyarrow.table({"x": numbers(version, COUNT)}), mode="overwrite", storage_options=OPTIONS)


def read():
    """Read the latest version."""
    table = DeltaTable(URL, storage_options=OPTIONS).to_pyarrow_table()
    return version_of_numbers(sorted(table["x"].to_pylist()), COUNT)


run(write, read)
