# /// script
# dependencies = ["polars==2.1.0"]
# ///
"""Polars: Parquet files of a folder."""

import polars
from place import ENDPOINT, REGION, URL, numbers, run, version_of_numbers

COUNT = 500_000
OPTIONS = {"aws_endpoint_url": ENDPOINT, "aws_region": REGION, "aws_allow_http": "true"}


def write(version):
    """Write two files."""
    values = numbers(version, COUNT)
    for number, part in enumerate((values[: COUNT // 2], values[COUNT // 2 :])):
        polars.DataFrame({"x": part}).write_parquet(f"{URL}/{number}.parquet", storage_options=OPTIONS)


def read():
    """Scan them."""
    rows = polars.scan_parquet(f"{URL}/*.parquet", storage_options=OPTIONS).collect()
    return version_of_numbers(rows["x"], COUNT)


run(write, read)
