# /// script
# dependencies = []
#
# [tool.larder]
# name = "restic"
# programs = ["restic"]
# version = ["restic", "version"]
# ///
"""restic: a backup, restored; locks are written at the store, and packs are read in ranges."""

import os
import subprocess

from place import BUCKET, ENDPOINT, PREFIX, SCRATCH, content, run, version_of_content

SIZES = {"small": 1000, "large": 20_000_000}
FOLDER = SCRATCH / "data"
VARIABLES = {**os.environ, "RESTIC_REPOSITORY": f"s3:{ENDPOINT}/{BUCKET}/{PREFIX}", "RESTIC_PASSWORD": "password"}


def restic(*arguments):
    """Run restic."""
    return subprocess.run(["restic", "-q", *arguments], env=VARIABLES, cwd=FOLDER, check=True)


def write(version):
    """Add a snapshot."""
    FOLDER.mkdir()
    if version == 1:
        restic("init")
    for name, size in SIZES.items():
        (FOLDER / name).write_bytes(content(version, size))
    restic("backup", "--host", "host", ".")


def read():
    """Restore the latest one."""
    FOLDER.mkdir()
    restic("restore", "latest", "--target", ".")
    (version,) = {version_of_content((FOLDER / name).read_bytes(), size) for name, size in SIZES.items()}
    return version


run(write, read)
