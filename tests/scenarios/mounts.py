"""Small file systems in memory, for disks that fill up or turn read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[Path]:
    """A tmpfs at ``path``. Raises RuntimeError where mounting is not permitted."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "larder-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"these tests mount small file systems, as root, and may not: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(path: Path) -> Iterator[None]:
    """A file system without one free byte, because somebody else wrote a large file."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    try:
        yield
    finally:
        ballast.unlink(missing_ok=True)
