# /// script
# dependencies = ["rasterio==1.4.4", "obstore==0.12.1"]
# ///
"""Rasterio (GDAL's /vsis3): windows of a tiled GeoTIFF."""

import numpy
import obstore
import rasterio
from obstore.store import S3Store
from place import BUCKET, ENDPOINT, PREFIX, URL, numbers, run, version_of_numbers
from rasterio.io import MemoryFile
from rasterio.windows import Window

SIDE = 1024


def write(version):
    """Write the file."""
    pixels = numpy.array(numbers(version, SIDE * SIDE), dtype="int32").reshape(SIDE, SIDE)
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", height=SIDE, width=SIDE, count=1, dtype="int32", tiled=True, blockxsize=256,
                         blockysize=256) as file:  # fmt: skip
            file.write(pixels, 1)
        store = S3Store(BUCKET, prefix=PREFIX, endpoint=ENDPOINT, client_options={"allow_http": True})
        obstore.put(store, "image.tif", bytes(memory.getbuffer()))


def read():
    """Read row by row of tiles."""
    address = ENDPOINT.removeprefix("http://")
    with (
        rasterio.Env(AWS_S3_ENDPOINT=address, AWS_HTTPS="NO", AWS_VIRTUAL_HOSTING="FALSE"),
        rasterio.open(f"{URL}/image.tif") as file,
    ):
        rows = [file.read(1, window=Window(0, top, SIDE, 256)) for top in range(0, SIDE, 256)]
    return version_of_numbers(numpy.concatenate(rows).ravel(), SIDE * SIDE)


run(write, read)
