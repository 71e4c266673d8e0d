# /// script
# dependencies = ["virtualizarr[hdf]==2.5.1", "icechunk==1.1.21", "zarr==3.1.6", "obstore==0.12.1", "xarray==2026.9.0"]
#
# [tool.larder]
# name = "virtualizarr"
# ///
"""VirtualiZarr: an HDF5 file, read as Zarr through its manifest, without a copy."""

import h5py
import numpy
import obstore
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import S3Store
from place import BUCKET, ENDPOINT, PREFIX, SCRATCH, URL, numbers, run, version_of_numbers
from virtualizarr.parsers import HDFParser

COUNT = 800_000


def write(version):
    """Write the file."""
    local = SCRATCH / "local.h5"
    with h5py.File(local, "w") as file:
        file.create_dataset("x", data=numpy.array(numbers(version, COUNT)), chunks=(100_000,))
    store = S3Store(BUCKET, endpoint=ENDPOINT, client_options={"allow_http": True})
    obstore.put(store, f"{PREFIX}/data.h5", local.read_bytes())


def read():
    """Index the file, and read it through the index."""
    import xarray

    store = S3Store(BUCKET, endpoint=ENDPOINT, client_options={"allow_http": True})
    manifest = HDFParser()(url=f"{URL}/data.h5", registry=ObjectStoreRegistry({f"s3://{BUCKET}": store}))
    with xarray.open_zarr(manifest, consolidated=False, zarr_format=3) as dataset:
        return version_of_numbers(dataset["x"].values, COUNT)


run(write, read)
