# /// script
# dependencies = ["tensorstore==0.1.86"]
#
# [tool.larder]
# name = "tensorstore (zarr3)"
# ///
"""TensorStore: a sharded array of Zarr 3; a shard's index is a range at its end."""

import numpy
import tensorstore
from place import BUCKET, ENDPOINT, PREFIX, REGION, numbers, run, version_of_numbers

COUNT = 1_600_000
STORE = {"driver": "s3", "bucket": BUCKET, "path": f"{PREFIX}/", "endpoint": ENDPOINT, "aws_region": REGION}
METADATA = {
    "shape": [COUNT],
    "data_type": "int64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [800_000]}},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [50_000]}}],
}


def write(version):
    """Write the array in place."""
    spec = {"driver": "zarr3", "kvstore": STORE, "metadata": METADATA}
    array = tensorstore.open(spec, create=True, delete_existing=True).result()
    array.write(numpy.array(numbers(version, COUNT))).result()


def read():
    """Read the array chunk by chunk."""
    array = tensorstore.open({"driver": "zarr3", "kvstore": STORE}).result()
    return version_of_numbers(
        (value for start in range(0, COUNT, 50_000) for value in array[start : start + 50_000].read().result()), COUNT
    )


run(write, read)
