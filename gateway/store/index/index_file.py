"""The index file: created if missing, rebuilt from its sound rows if damaged, by one process at a time."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault, disk_faults
from gateway.store.files.locks import exclusive
from gateway.store.index.database import PATIENCE
from gateway.store.index.migrations import migrate
from gateway.store.index.salvage import salvage
from gateway.store.index.schema import open_engine, prepare_connection

log = logging.getLogger("larder.store")

Identity = tuple[int, int]


def identity_of(path: Path) -> Identity | None:
    """Device and inode of a file, or ``None`` if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def ensure_index(path: Path, condemned: Identity | None) -> bool:
    """Ensure that ``path`` has a readable index. A ``condemned`` or unreadable index is replaced by one with its sound rows.

    Returns:
        Whether a new index was created, so that blob files without a row are orphans.

    Raises:
        DiskFault: the index cannot be read or written, and a new one would not help.
    """
    with disk_faults(), exclusive(path.with_name("index.lock")):
        _salvaged(path).unlink(missing_ok=True)
        if condemned is not None and identity_of(path) == condemned:
            _replace(path)
            _open_once(path)
            return True
        new = not path.exists()
        try:
            _open_once(path)
        except DiskFault as fault:
            if fault.kind is not FailureKind.CORRUPT:
                raise
            _replace(path)
            _open_once(path)
            return True
        return new


def _replace(path: Path) -> None:
    """Replace a damaged index by one with its sound rows, or remove it if that fails."""
    new = _salvaged(path)
    try:
        _open_once(new)
        rescued = salvage(path, new)
    except DiskFault as fault:
        if fault.kind is not FailureKind.CORRUPT:
            raise
        log.error("index.db is damaged, and none of it can be read: %(error)s", {"error": fault, "path": path})
        _remove(new)
        _remove(path)
        return
    _remove(path)
    os.rename(new, path)
    log.error(
        "index.db is damaged: a new one has %(held)s blobs and %(items)s objects of it; %(failed)s rows are lost, and "
        "read again from the origin when somebody needs them",
        {"path": path, "held": rescued.blobs, "items": rescued.objects, "failed": rescued.lost},
    )


def _salvaged(path: Path) -> Path:
    return path.with_name("salvaged.db")


def _open_once(path: Path) -> None:
    # Digests are secrets, and SQLite copies the file's mode to its logs. An existing file is not opened here: closing it
    # would release the locks of this process's connections (fcntl(2)), and another process would consider itself the last
    # user and remove the log that this one writes to.
    with disk_faults(), suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with disk_faults(), open_engine(path, patience=PATIENCE).connect() as connection:
        prepare_connection(connection)
        migrate(connection, time.time_ns())


def _remove(path: Path) -> None:
    # The log first: SQLite would apply an old log to a new index.
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
