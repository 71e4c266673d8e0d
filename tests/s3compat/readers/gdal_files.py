# /// script
# dependencies = []
#
# [tool.larder]
# name = "GDAL /vsis3"
# programs = ["gdal_translate"]
# version = ["gdal_translate", "--version"]
# ///
"""GDAL's programs over /vsis3: a tiled GeoTIFF, written and read by gdal_translate."""

import array
import os
import subprocess

from place import BUCKET, ENDPOINT, PREFIX, SCRATCH, numbers, run, version_of_numbers

SIDE = 1024
ADDRESS = ENDPOINT.removeprefix("http://")
VARIABLES = {
    **os.environ,
    "CPL_VSIL_USE_TEMP_FILE_FOR_RANDOM_WRITE": "YES",
    "AWS_S3_ENDPOINT": ADDRESS,
    "AWS_HTTPS": "NO",
    "AWS_VIRTUAL_HOSTING": "FALSE",
}
REMOTE = f"/vsis3/{BUCKET}/{PREFIX}/image.tif"
HEADER = f"ENVI\nsamples = {SIDE}\nlines = {SIDE}\nbands = 1\ndata type = 3\ninterleave = bsq\nbyte order = 0\n"


def translate(*arguments):
    """Run gdal_translate."""
    subprocess.run(["gdal_translate", "-q", *arguments], env=VARIABLES, check=True)


def write(version):
    """Write the file as a stream."""
    (SCRATCH / "raw.hdr").write_text(HEADER)
    (SCRATCH / "raw.img").write_bytes(array.array("i", numbers(version, SIDE * SIDE)).tobytes())
    options = ("-of", "GTiff", "-co", "TILED=YES", "-co", "STREAMABLE_OUTPUT=YES")
    translate(*options, str(SCRATCH / "raw.img"), str(SCRATCH / "local.tif"))
    translate("-of", "COG", str(SCRATCH / "local.tif"), REMOTE)


def read():
    """Read it whole, by tiles."""
    translate("-of", "ENVI", REMOTE, str(SCRATCH / "raw.img"))
    return version_of_numbers(array.array("i", (SCRATCH / "raw.img").read_bytes()), SIDE * SIDE)


run(write, read)
