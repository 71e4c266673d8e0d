# /// script
# dependencies = ["dvc[s3]==3.67.1"]
#
# [tool.larder]
# name = "dvc"
# ///
"""DVC: a tracked folder, pushed to a remote and pulled; its pointer file is an object beside it."""

import subprocess
import sys

import s3fs
from place import ENDPOINT, SCRATCH, URL, content, run, version_of_content

SIZES = {"small": 1000, "large": 20_000_000}


def dvc(*arguments):
    """Run DVC."""
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=SCRATCH, check=True)


def begin():
    """A repository with the remote."""
    dvc("init", "-q", "--no-scm")
    dvc("remote", "add", "-d", "store", f"{URL}/remote")
    dvc("remote", "modify", "store", "endpointurl", ENDPOINT)


def write(version):
    """Push the folder."""
    begin()
    (SCRATCH / "data").mkdir()
    for name, size in SIZES.items():
        (SCRATCH / "data" / name).write_bytes(content(version, size))
    dvc("add", "-q", "data")
    dvc("push", "-q")
    s3fs.S3FileSystem().put_file(str(SCRATCH / "data.dvc"), f"{URL}/data.dvc")


def read():
    """Pull it."""
    begin()
    s3fs.S3FileSystem().get_file(f"{URL}/data.dvc", str(SCRATCH / "data.dvc"))
    dvc("pull", "-q")
    (version,) = {version_of_content((SCRATCH / "data" / name).read_bytes(), size) for name, size in SIZES.items()}
    return version


run(write, read)
