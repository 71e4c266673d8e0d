# /// script
# dependencies = ["ray[data]==2.60.0", "pyarrow==26.0.1"]
#
# [tool.larder]
# name = "ray.data"
# ///
"""Ray Data: Parquet files, written and read by tasks over pyarrow's file system."""

import os

import ray
from place import BUCKET, ENDPOINT, KEY, PREFIX, SCRATCH, SECRET, numbers, run, version_of_numbers
from pyarrow.fs import S3FileSystem

COUNT = 200_000
PATH = f"{BUCKET}/{PREFIX}"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def begin():
    """A cluster of this process, and the store."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000, _temp_dir=str(SCRATCH / "ray"))
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    return S3FileSystem(endpoint_override=ENDPOINT, access_key=KEY, secret_key=SECRET, region="us-east-1")


def write(version):
    """Write two files over those that are there."""
    store = begin()
    for path in store.get_file_info([PATH]):
        if path.type.name == "Directory":
            store.delete_dir_contents(PATH)
    rows = ray.data.from_items([{"x": value} for value in numbers(version, COUNT)], override_num_blocks=2)
    rows.write_parquet(PATH, filesystem=store, mode="overwrite")


def read():
    """Read the rows."""
    store = begin()
    return version_of_numbers((row["x"] for row in ray.data.read_parquet(PATH, filesystem=store).iter_rows()), COUNT)


run(write, read)
