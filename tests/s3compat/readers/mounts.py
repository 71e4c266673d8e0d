"""What the scripts of file systems share: a mount for the time of a block."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(command: Sequence[str | Path], point: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Run a program that mounts a file system in the foreground, until the block ends; what was written is flushed then."""
    point.mkdir()
    with subprocess.Popen(command, env=dict(variables)) as process:
        try:
            deadline = time.monotonic() + 60
            while not os.path.ismount(point):
                assert process.poll() is None, "the mount has ended"
                assert time.monotonic() < deadline, "the mount is not there"
                time.sleep(0.05)
            yield point
        finally:
            subprocess.run(["fusermount3", "-u", point], check=False)
            process.wait(60)
