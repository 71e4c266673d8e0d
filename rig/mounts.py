"""Small file systems that fill up, turn read-only or hang, and a locked index."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[Path]:
    """A tmpfs at ``path``. Raises RuntimeError if mounting is not permitted."""
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
    """Fill a file system to the last byte with a foreign file, until the block ends."""
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


@contextmanager
def block_device(path: Path, size: str = "256M", *options: str) -> Iterator[Path]:
    """An ext4 file system on a loop device at ``path``; ``options`` are of mkfs. Raises RuntimeError if not permitted."""
    path.mkdir(parents=True, exist_ok=True)
    image = path.with_name(f"{path.name}.image")
    _do("truncate", "--size", size, str(image))
    _do("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", *options, str(image))
    _do("mount", "-o", "loop", str(image), str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def hung(path: Path) -> Iterator[None]:
    """A file system on which every write hangs: ``write``, ``open`` for creation and page faults wait until the end
    (FIFREEZE)."""
    _do("fsfreeze", "--freeze", str(path))
    try:
        yield
    finally:
        _do("fsfreeze", "--unfreeze", str(path))


@contextmanager
def locked_index(cache: Path) -> Iterator[None]:
    """Another process's transaction on ``index.db``, as a backup or an administrator's shell leaves one open."""
    with closing(sqlite3.connect(cache / "index.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"these tests make file systems, as root, and may not: {done.stderr.strip()}")
