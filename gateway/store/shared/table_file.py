"""The file behind the table of generations (``generations.py``): its place, its creation, and the processes that hold it.

A gateway opens the file once, before it forks workers (``hold``), and every worker maps that open file. So the workers of a
gateway share one table whatever happens to its name: programs remove files in ``/dev/shm`` (RemoveIPC of systemd at logout, a
cleaner), replace them, or put a copy there, and a worker started later must get the same table. For the same reason a truncated
table is completed in place. Without room in ``/dev/shm``, or if another user has taken the name, the gateway's table is unnamed
memory, which works alike but ends with the gateway.

A process outside a gateway, or another gateway on the same cache directory, opens the file by its name. The directory records
whether that is the table of its other workers (``Generations.vouches``).
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gateway.policies.reads import granularity
from gateway.store.shared import evicted, forgotten, seen
from gateway.store.shared.own_files import is_own, open_own

SLOTS = 65_536
SLOT_BYTES = 8 * SLOTS
MARKS_END = SLOT_BYTES + SLOTS
DEBTS_END = MARKS_END + SLOTS
BOOT_END = DEBTS_END + 16
RANGES_END = BOOT_END + 4 * granularity.SLOTS
EVICTED_END = RANGES_END + 4 * evicted.SLOTS
FORGOTTEN_END = EVICTED_END + 4 * forgotten.WORDS
SEEN_END = FORGOTTEN_END + 4 * seen.WORDS
TABLE_BYTES = SEEN_END + 16
_PATH_BYTES = 4096
_FILE_BYTES = TABLE_BYTES + _PATH_BYTES
_DIGITS = 24
TWINS = "-states-"
"""The infix in the names of dataset states that are kept beside the table (datasets/content.py)."""
_SHARED = Path("/dev/shm")  # noqa: S108 - files there are opened without following links, and their owner is checked
_IDENTITY = struct.Struct("<QQ")
_held: dict[Path, int] = {}
"""Descriptors of the files that this process, and those forked from it, open under these paths."""

log = logging.getLogger("larder.store")


def table_of(root: Path) -> Path:
    """The path of a cache directory's table: in memory, or in the directory on a machine without ``/dev/shm``."""
    if not os.access(_SHARED, os.W_OK):
        return root / "generations"
    return _SHARED / f"{_prefix()}{sha256(os.fsencode(root)).hexdigest()[:_DIGITS]}"


def leases_of(table: Path) -> Path:
    """The path of the file that leases.py locks; beside the table, because opening a file may block too."""
    return table.with_name(f"{table.name}-fills")


def removals_of(table: Path) -> Path:
    """The path of the record of removed blobs (removed.py) of a table."""
    return table.with_name(f"{table.name}-removed")


def _prefix() -> str:
    return f"larder-{os.geteuid()}-"


def tables(shared: Path = _SHARED) -> list[Path]:
    """All tables of this user's gateways."""
    return [path for path in shared.glob(f"{_prefix()}*") if len(path.name) == len(_prefix()) + _DIGITS]


def root_of(table: Path) -> Path:
    """The cache directory that a table belongs to; raises ``OSError``."""
    descriptor = open_own(table, os.O_RDONLY)
    try:
        return Path(os.fsdecode(os.pread(descriptor, _PATH_BYTES, TABLE_BYTES).rstrip(b"\0")))
    finally:
        os.close(descriptor)


def remove_dead(shared: Path = _SHARED) -> None:
    """Remove the tables of deleted cache directories, and files named after a deleted table.

    Blocks if the file system of one of those directories hangs; raises ``OSError``.
    """
    length = len(_prefix()) + _DIGITS
    for path in tables(shared):
        _remove_if_dead(path)
    for path in shared.glob(f"{_prefix()}*"):
        nameless = path.name[length : length + 1] == "-" and not path.with_name(path.name[:length]).exists()
        if nameless and is_own(path):
            path.unlink(missing_ok=True)


def _remove_if_dead(path: Path) -> None:
    """Remove a table that no process maps and whose directory is gone."""
    with suppress(FileNotFoundError, BlockingIOError, PermissionError):
        descriptor = open_own(path, os.O_RDONLY)
        try:
            root = os.pread(descriptor, _PATH_BYTES, TABLE_BYTES).rstrip(b"\0")
            # Before taking the lock, for which attaching processes wait, because the disk may hang.
            if root and not os.path.lexists(root):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


def hold(path: Path, root: Path) -> None:
    """Open the table at ``path``, and the files of its leases and removals, for this process and all its forks.

    Args:
        path: of the table.
        root: the table's cache directory.
    """
    try:
        held = _open_named(path, root)
    except OSError as error:
        log.warning(
            "the table of %(target)s cannot be in %(path)s (%(error)s): the workers share memory without a name, and after "
            "the next start cached objects are checked with the origin once",
            {"target": str(root), "path": str(path), "error": str(error)},
        )
        held = _anonymous()
        _fill(held, root)
    _held[path] = held
    for beside in (leases_of(path), removals_of(path)):
        try:
            _held[beside] = open_own(beside, os.O_RDWR | os.O_CREAT)
        except OSError:
            _held[beside] = _anonymous()


def release(path: Path) -> None:
    """Undo ``hold`` in this process."""
    for file in (path, leases_of(path), removals_of(path)):
        if file in _held:
            os.close(_held.pop(file))


def held(path: Path) -> int | None:
    """The descriptor held for a path; the holder keeps it."""
    return _held.get(path)


def identity(path: Path) -> bytes | None:
    """Identifies the file that ``open_table`` would map; ``None`` without a complete file."""
    try:
        descriptor = _held.get(path)
        status = path.stat() if descriptor is None else os.fstat(descriptor)
    except FileNotFoundError:
        return None
    return identity_of(status) if status.st_size == _FILE_BYTES else None


def open_table(path: Path, root: Path) -> tuple[mmap.mmap, bytes]:
    """The mapped table and its identity; created if it is missing.

    Raises:
        OSError: the file cannot be created or mapped.
    """
    descriptor = _held.get(path)
    if descriptor is not None:
        _complete(descriptor, root)
        return _mapped(descriptor)
    descriptor = _open_named(path, root)
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def fresh_numbers() -> bytes:
    """A random number in every slot, even, so that it counts as read and its first read draws no other number.

    It is the same in all: a number is compared with earlier ones of its own slot only. Half a megabyte of random bytes would take
    more than a tenth of a start.
    """
    number = int.from_bytes(os.urandom(8), "little") & ~1
    return number.to_bytes(8, "little") * SLOTS


def _mapped(descriptor: int) -> tuple[mmap.mmap, bytes]:
    return mmap.mmap(descriptor, TABLE_BYTES), identity_of(os.fstat(descriptor))


def identity_of(status: os.stat_result) -> bytes:
    """Identifies a file."""
    return _IDENTITY.pack(status.st_dev, status.st_ino)


def _open_named(path: Path, root: Path) -> int:
    """The file at ``path``, locked for as long as it is open or mapped (flock(2): the lock belongs to the open file)."""
    while True:
        if not path.exists() or path.stat().st_size != _FILE_BYTES:
            _create(path, root)
        descriptor = open_own(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _create(path: Path, root: Path) -> None:
    """Create a complete table at ``path`` atomically; if several processes try, the first one wins."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _fill(descriptor, root)
        if path.exists() and path.stat().st_size != _FILE_BYTES:
            draft.replace(path)
            return
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def _fill(descriptor: int, root: Path) -> None:
    """Write a new table into an empty file. All of it is allocated, so that no page is a hole: touching one needs memory.

    Raises:
        OSError: there is no room.
    """
    os.posix_fallocate(descriptor, 0, _FILE_BYTES)
    os.pwrite(descriptor, fresh_numbers(), 0)
    os.pwrite(descriptor, os.urandom(TABLE_BYTES - SEEN_END) + _root_bytes(root), SEEN_END)


def _root_bytes(root: Path) -> bytes:
    return os.fsencode(root)[:_PATH_BYTES].ljust(_PATH_BYTES, b"\0")


def _anonymous() -> int:
    """Empty memory without a name, which no process can truncate."""
    descriptor = os.memfd_create("larder-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def _complete(descriptor: int, root: Path) -> None:
    """Rewrite the truncated part of a file that other processes may map; one process at a time does it.

    Marks may have been lost, so every key gets one: rows are deleted and read again, and no wrong bytes are served.
    """
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        size = os.fstat(descriptor).st_size
        if size >= _FILE_BYTES:
            os.ftruncate(descriptor, _FILE_BYTES)
            return
        log.error(
            "the table of %(target)s was cut off by another program: the cache starts anew", {"target": str(root)}
        )
        os.posix_fallocate(descriptor, 0, _FILE_BYTES)
        os.pwrite(descriptor, fresh_numbers() + b"\1" * (DEBTS_END - SLOT_BYTES), 0)
        if size < TABLE_BYTES:
            os.pwrite(descriptor, os.urandom(TABLE_BYTES - SEEN_END), SEEN_END)
        os.pwrite(descriptor, _root_bytes(root), TABLE_BYTES)
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
