# /// script
# dependencies = ["zarr==3.1.6", "obstore==0.12.1"]
#
# [tool.larder]
# name = "zarr (obstore)"
# ///
"""Zarr 3 over obstore: a sharded array, whose chunks are ranges of larger objects."""

import numpy
import zarr
from obstore.store import S3Store
from place import BUCKET, ENDPOINT, PREFIX, numbers, run, version_of_numbers
from zarr.storage import ObjectStore

COUNT = 1_600_000


def store(read_only):
    """The group at the store."""
    place = S3Store(BUCKET, prefix=PREFIX, endpoint=ENDPOINT, client_options={"allow_http": True},
                    virtual_hosted_style_request=False)  # fmt: skip
    return ObjectStore(place, read_only=read_only)


def write(version):
    """Write the array in place."""
    array = zarr.create_array(
        store(False),
        name="x",
        shape=(COUNT,),
        shards=(800_000,),
        chunks=(50_000,),
        dtype="i8",
        overwrite=True,
        compressors=None,
    )
    array[:] = numpy.array(numbers(version, COUNT))


def read():
    """Read the array chunk by chunk, as a loader does."""
    array = zarr.open_array(store(True), path="x", mode="r")
    return version_of_numbers(
        (value for start in range(0, COUNT, 50_000) for value in array[start : start + 50_000]), COUNT
    )


run(write, read)
