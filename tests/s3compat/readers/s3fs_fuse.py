# /// script
# dependencies = []
#
# [tool.larder]
# name = "s3fs-fuse"
# programs = ["s3fs", "fusermount3"]
# version = ["s3fs", "--version"]
# ///
"""s3fs-fuse: files of a folder, read through FUSE."""

import os

from mounts import mounted
from place import BUCKET, ENDPOINT, KEY, PREFIX, SCRATCH, SECRET, content, run, version_of_content

SIZES = {"small": 1000, "medium": 3_000_000, "large": 30_000_000}
COMMAND = ["s3fs", BUCKET, SCRATCH / "mount", "-f", "-o", f"url={ENDPOINT},use_path_request_style,endpoint=us-east-1"]
VARIABLES = {**os.environ, "AWSACCESSKEYID": KEY, "AWSSECRETACCESSKEY": SECRET}


def write(version):
    """Overwrite the files."""
    with mounted(COMMAND, SCRATCH / "mount", VARIABLES) as mount:
        (mount / PREFIX).mkdir(parents=True, exist_ok=True)
        for name, size in SIZES.items():
            (mount / PREFIX / name).write_bytes(content(version, size))


def read():
    """Read them, and the middle of one."""
    with mounted(COMMAND, SCRATCH / "mount", VARIABLES) as mount:
        folder = mount / PREFIX
        with open(folder / "large", "rb") as file:
            file.seek(12_345_678)
            middle = file.read(1000)
        (version,) = {version_of_content((folder / name).read_bytes(), size) for name, size in SIZES.items()}
    assert middle == content(version, SIZES["large"])[12_345_678:][:1000]
    return version


run(write, read)
