# /// script
# dependencies = ["zarr==3.1.6", "s3fs==2026.9.0"]
#
# [tool.larder]
# name = "zarr (s3fs)"
# ///
"""Zarr 3 over s3fs: an array of one object for each chunk."""

import numpy
import zarr
from place import URL, numbers, run, version_of_numbers

COUNT = 800_000


def write(version):
    """Write the array in place."""
    array = zarr.create_array(
        URL, name="x", shape=(COUNT,), chunks=(100_000,), dtype="i8", overwrite=True, storage_options={}
    )
    array[:] = numpy.array(numbers(version, COUNT))


def read():
    """Read the array."""
    return version_of_numbers(zarr.open_array(URL, path="x", mode="r", storage_options={})[:], COUNT)


run(write, read)
