# /// script
# dependencies = ["daft==0.7.26"]
# ///
"""Daft: Parquet files by a pattern."""

import daft
from daft.io import IOConfig, S3Config
from place import ENDPOINT, KEY, REGION, SECRET, URL, numbers, run, version_of_numbers

COUNT = 500_000
CONFIG = IOConfig(s3=S3Config(endpoint_url=ENDPOINT, region_name=REGION, key_id=KEY, access_key=SECRET, use_ssl=False))


def write(version):
    """Overwrite the folder."""
    daft.from_pydict({"x": numbers(version, COUNT)}).write_parquet(URL, write_mode="overwrite", io_config=CONFIG)


def read():
    """Read all files."""
    rows = daft.read_parquet(f"{URL}/**/*.parquet", io_config=CONFIG).to_pydict()
    return version_of_numbers(sorted(rows["x"]), COUNT)


run(write, read)
