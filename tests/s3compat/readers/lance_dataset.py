# /// script
# dependencies = ["pylance==14.0.2", "pyarrow==26.0.1"]
# ///
"""Lance: a dataset with versions; each write adds one, and a reader opens the latest."""

import lance
import pyarrow
from place import ENDPOINT, REGION, URL, numbers, run, version_of_numbers

COUNT = 500_000
OPTIONS = {"endpoint": ENDPOINT, "region": REGION, "allow_http": "true"}


def write(version):
    """Overwrite the dataset, in two fragments."""
    table = pyarrow.table({"x": numbers(version, COUNT)})
    lance.write_dataset(table, URL, mode="overwrite", storage_options=OPTIONS, max_rows_per_file=300_000)


def read():
    """Take rows by their numbers, then scan."""
    dataset = lance.dataset(URL, storage_options=OPTIONS)
    values = dataset.to_table()["x"].to_pylist()
    taken = dataset.take([7, 299_999, 300_001])["x"].to_pylist()
    assert taken == [values[7], values[299_999], values[300_001]]
    return version_of_numbers(values, COUNT)


run(write, read)
