# /// script
# dependencies = ["kerchunk==0.2.10", "h5py==3.16.0", "s3fs==2026.9.0", "zarr==3.1.6"]
# ///
"""Kerchunk: an HDF5 file that is read as Zarr, by a JSON file of the ranges of its chunks."""

import json

import h5py
import numpy
import s3fs
import zarr
from fsspec.implementations.reference import ReferenceFileSystem
from kerchunk.hdf import SingleHdf5ToZarr
from place import SCRATCH, URL, numbers, run, version_of_numbers

COUNT = 800_000


def write(version):
    """Write the file and the references."""
    local = SCRATCH / "local.h5"
    with h5py.File(local, "w") as file:
        file.create_dataset("x", data=numpy.array(numbers(version, COUNT)), chunks=(100_000,))
    files = s3fs.S3FileSystem()
    files.put_file(str(local), f"{URL}/data.h5")
    with files.open(f"{URL}/data.h5") as stream:
        references = SingleHdf5ToZarr(stream, f"{URL}/data.h5").translate()
    files.pipe_file(f"{URL}/references.json", json.dumps(references).encode())


def read():
    """Read through the references."""
    files = ReferenceFileSystem(
        f"{URL}/references.json", remote_protocol="s3", remote_options={"asynchronous": True}, asynchronous=True
    )
    group = zarr.open_group(zarr.storage.FsspecStore(files, read_only=True, path=""), mode="r", zarr_format=2)
    return version_of_numbers(group["x"][:], COUNT)


run(write, read)
