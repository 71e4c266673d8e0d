# /// script
# dependencies = ["icechunk==1.1.21", "zarr==3.1.6"]
#
# [tool.larder]
# name = "icechunk 1"
# ///
"""Icechunk 1: commits to the branch main; chunks are objects, manifests and snapshots too."""

import icechunk
import numpy
import zarr
from place import BUCKET, ENDPOINT, KEY, PREFIX, REGION, SECRET, numbers, run, version_of_numbers

COUNT = 400_000


def storage():
    """The repository at the store."""
    return icechunk.s3_storage(
        bucket=BUCKET, prefix=PREFIX, region=REGION, endpoint_url=ENDPOINT, allow_http=True, force_path_style=True,
        access_key_id=KEY, secret_access_key=SECRET,
    )  # fmt: skip


def write(version):
    """Commit an array."""
    repository = icechunk.Repository.open_or_create(storage())
    session = repository.writable_session("main")
    array = zarr.group(session.store).create_array("x", shape=(COUNT,), chunks=(50_000,), dtype="i8", overwrite=True)
    array[:] = numpy.array(numbers(version, COUNT))
    session.commit(f"version {version}")


def read():
    """Read the array at main."""
    session = icechunk.Repository.open(storage()).readonly_session("main")
    return version_of_numbers(zarr.open_group(session.store, mode="r")["x"][:], COUNT)


run(write, read)
