"""The cache directory: its layout, its locks and its plain file operations, without the index.

    blobs/ab/cdef…   the bytes whose SHA-256 is abcdef…
    tmp/             blobs being written; those that take several steps are locked by their writer, so an old unlocked file
                     is abandoned
    index.db         see ../index/schema.py
    boot             identifies this start of the node and its table of generations, and tells whether it ended cleanly; locked in
                     shared mode by every worker
    keeper.lock      locked by the worker that does the keeper's work

A *start* begins when a worker opens a directory that no other worker has open: it gets the exclusive lock on ``boot``, writes a
fresh random number, and continues with a shared lock. Later workers find the lock shared and read the number. The change from
exclusive to shared is not atomic (flock(2)), so the number is read only under the shared lock. The kernel releases the locks of
a killed process, so a crash leaves nothing to clean up. The table of generations (../shared/generations.py) is not part of the
directory; ``begin`` is called under the exclusive lock with this start and the previous one.

Everything here is accessible to the gateway's user only, whatever the umask: a digest is the right to read its content.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from stat import S_IMODE
from typing import NamedTuple

from gateway.model.errors import DiskUnavailable
from gateway.policies.health.breaker import FailureKind
from gateway.store.files.blobs import Contents, read_contents
from gateway.store.files.failures import DiskFault
from gateway.store.files.locks import is_locked, open_lock, try_exclusive
from gateway.store.shared.generations import DirectoryStart
from gateway.store.shared.table_file import leases_of, removals_of, table_of

Begin = Callable[[int, DirectoryStart], bytes]
"""Called when a start begins, with its number and the previous start; returns the identity of its table of generations."""

log = logging.getLogger("larder.store")

_BLOB_NAME = re.compile("[0-9a-f]{62}")
_IN_THE_WAY = frozenset({errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})
"""Errors that concern one path rather than the file system."""
_MOST_SKIPPED = 1000
_CLEAN = b"\1"
_TABLE_AT = 9
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OPENAT2, _AT_FDCWD, _RESOLVE_CACHED = 437, -100, 0x20
_how = (ctypes.c_uint64 * 3)(os.O_RDONLY | os.O_CLOEXEC, 0, _RESOLVE_CACHED)
_how_at, _HOW_BYTES = ctypes.addressof(_how), ctypes.sizeof(_how)
_call = ctypes.PyDLL(None).syscall
_call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]


class Free(NamedTuple):
    """The free space and the size of a file system, in bytes and in inodes; 0 inodes if it does not count them."""

    bytes: int
    of_bytes: int
    inodes: int
    of_inodes: int


class CacheDirectory:
    """One node's cache directory. Every method may raise ``OSError``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = root / "index.db"
        self.generations = table_of(root)
        self.leases = leases_of(self.generations)
        self.removals = removals_of(self.generations)
        shared = self.generations.parent != root
        self.reads = self.generations.with_name(f"{self.generations.name}-reads") if shared else None
        """The socket of observation.py, beside the table; ``None`` if that is on the cache disk."""
        self.start = DirectoryStart()
        """This start; its number is 0 before ``join``."""
        self.started_ns = 0
        """When this start began: an earlier start left older files without a row."""
        self.skipped: set[str] = set()
        """Paths that could not be removed, such as immutable files, and directories in place of blobs."""
        self.on_removed: Callable[[bytes], None] = lambda digest: None
        """Called in the same thread after a blob's file was unlinked, or found missing."""
        self._blobs = str(root / "blobs")
        self._tmp = str(root / "tmp")
        self._unique, self._serial = os.urandom(9).hex(), count()
        self._boot_path = str(root / "boot")
        self._boot_fd = -1
        self._identity = (0, 0)
        self._lock_fd = -1

    @property
    def boot(self) -> int:
        """The number of this start; 0 before ``join``."""
        return self.start.boot

    def join(self, begin: Begin = lambda boot, previous: b"") -> None:
        """Create missing parts and become a worker of this start; the first worker calls ``begin``."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._tmp, self._blobs):
            Path(folder).mkdir(mode=0o700, exist_ok=True)
        if self.joined():
            return
        self.leave()
        self._tighten()
        descriptor = open_lock(self._boot_path)
        try:
            if try_exclusive(descriptor):
                number = int.from_bytes(os.urandom(7), "little") + 1
                table = begin(number, _start_in(descriptor))
                os.pwrite(descriptor, number.to_bytes(8, "little") + bytes(1) + table, 0)
                os.ftruncate(descriptor, _TABLE_AT + len(table))
                # After a power failure the machine must not find the clean end of an earlier start.
                os.fsync(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self.start = _start_in(descriptor)
            status = os.fstat(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self.started_ns = status.st_mtime_ns
        self._identity = (status.st_dev, status.st_ino)
        self._boot_fd = descriptor

    def joined(self) -> bool:
        """Whether the path still leads to the joined directory: it may have been deleted or replaced since."""
        if self._boot_fd < 0:
            return False
        try:
            status = os.stat(self._boot_path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def require(self) -> None:
        """Raise ``DiskFault`` (GONE) unless ``joined``."""
        if not self.joined():
            raise DiskFault(FailureKind.GONE, f"{self.root} is not the directory that was opened")

    def end(self) -> bool:
        """Whether this is the last worker of the start; if so, marks the start's end as clean. Call it before ``leave``."""
        if not self.joined() or not try_exclusive(self._boot_fd):
            return False
        os.pwrite(self._boot_fd, _CLEAN, 8)
        return True

    def leave(self) -> None:
        """Release all locks."""
        for descriptor in (self._boot_fd, self._lock_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._boot_fd = self._lock_fd = -1

    def try_lock(self) -> bool:
        """Become or stay the worker that does the keeper's work on this directory."""
        path = self.root / "keeper.lock"
        if self._lock_fd >= 0:
            if path.exists() and os.path.samestat(path.stat(), os.fstat(self._lock_fd)):
                return True
            os.close(self._lock_fd)
            self._lock_fd = -1
        descriptor = open_lock(path)
        if not try_exclusive(descriptor):
            os.close(descriptor)
            return False
        self._lock_fd = descriptor
        return True

    @property
    def locked(self) -> bool:
        """Whether ``try_lock`` succeeded."""
        return self._lock_fd >= 0

    def blob_path(self, digest: bytes) -> str:
        """The path of the blob with this digest."""
        name = digest.hex()
        return f"{self._blobs}/{name[:2]}/{name[2:]}"

    def create_temporary(self, *, lasting: bool = False) -> tuple[int, str]:
        """A new file for a blob: descriptor and path; locked if ``lasting``, or others would consider it abandoned."""
        path = f"{self._tmp}/{self._unique}{next(self._serial):x}"
        descriptor = os.open(path, _NEW_FILE, 0o600)
        if lasting:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor, path

    def append(self, descriptor: int, data: memoryview) -> int:
        """Append to a temporary file; returns the number of bytes written."""
        return os.write(descriptor, data)

    def publish(self, path: str, digest: bytes) -> None:
        """Rename a complete temporary file to its blob's name, replacing an equal one.

        Raises:
            DiskUnavailable: the name is taken by something that cannot be replaced; not a failure of the disk.
        """
        target = self.blob_path(digest)
        try:
            os.rename(path, target)
        except FileNotFoundError:
            Path(self._blobs).mkdir(mode=0o700, exist_ok=True)
            Path(target).parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, target)
        except OSError as error:
            if error.errno not in _IN_THE_WAY or not os.path.lexists(target):
                raise
            self._skip(target, error)
            raise DiskUnavailable("disk", str(error)) from error

    def remove_blob(self, digest: bytes, condition: Callable[[os.stat_result], bool] = lambda status: True) -> bool:
        """Unlink a blob's file if it meets ``condition``; returns whether it is gone. Unremovable files are skipped."""
        path = self.blob_path(digest)
        try:
            gone = condition(os.stat(path)) and self._unlink(path)
        except FileNotFoundError:
            self.on_removed(digest)
            return False
        if gone:
            self.on_removed(digest)
        return gone

    def _unlink(self, path: str) -> bool:
        try:
            os.unlink(path)
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            self._skip(path, error)
            return False
        self.skipped.discard(path)
        return True

    def _skip(self, path: str, error: OSError) -> None:
        if path not in self.skipped and len(self.skipped) < _MOST_SKIPPED:
            self.skipped.add(path)
            log.warning(
                "cache file skipped: %(path)s cannot be removed (%(error)s); remove it by hand",
                {"path": path, "error": error.strerror},
            )

    def open_blob(self, digest: bytes) -> int:
        """Open a blob for reading; returns the descriptor."""
        return os.open(self.blob_path(digest), os.O_RDONLY | os.O_CLOEXEC)

    def open_at_once(self, digests: Iterable[bytes]) -> list[int]:
        """A descriptor for each blob whose path is in the kernel's cache; -1 for the others.

        Uses openat2(2) with RESOLVE_CACHED; with kernels before 5.12 all are -1.
        """
        root, opened = os.fsencode(self._blobs), []
        for digest in digests:
            name = digest.hex().encode()
            opened.append(_call(_OPENAT2, _AT_FDCWD, b"%b/%b/%b" % (root, name[:2], name[2:]), _how_at, _HOW_BYTES))
        return opened

    def contents(self, descriptor: int) -> Contents:
        """The digest, CRC-32 and size of an open file's content."""
        return read_contents(descriptor)

    def free(self) -> Free:
        """The free space of the file system, as available to this user."""
        status = os.statvfs(self.root)
        size = status.f_blocks * status.f_frsize
        return Free(status.f_bavail * status.f_frsize, size, status.f_favail, status.f_files)

    def probe(self) -> None:
        """Check that the disk accepts writes: write, sync and remove one small file."""
        descriptor, path = self.create_temporary()
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(path)

    def in_shards(self, shards: range) -> dict[bytes, int]:
        """Digests and sizes of the blob files whose first byte is in ``shards``; files with other names are removed."""
        sizes: dict[bytes, int] = {}
        for number in shards:
            sizes |= self._in_shard(number)
        return sizes

    def _in_shard(self, number: int) -> dict[bytes, int]:
        prefix = f"{number:02x}"
        sizes = {}
        try:
            entries = list(os.scandir(f"{self._blobs}/{prefix}"))
        except FileNotFoundError:
            return {}
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            if _BLOB_NAME.fullmatch(entry.name):
                try:
                    sizes[bytes.fromhex(prefix + entry.name)] = entry.stat().st_size
                except FileNotFoundError:
                    continue
            else:
                self._unlink(entry.path)
        return sizes

    def remove_leftovers(self, before_ns: int) -> int:
        """Remove temporary files last written before ``before_ns`` whose writers are gone; returns their number."""
        removed = 0
        for entry in os.scandir(self._tmp):
            try:
                if entry.stat().st_mtime_ns <= before_ns and not is_locked(entry.path):
                    removed += self._unlink(entry.path)
            except FileNotFoundError:
                continue
        for path in self.root.glob("generations*"):
            # Earlier releases kept the table here, and it still is here if there is no other place.
            if path not in (self.generations, self.leases, self.removals) and path.stat().st_mtime_ns <= before_ns:
                removed += self._unlink(str(path))
        return removed

    def _tighten(self) -> None:
        """Revoke other users' access, left by an earlier release or the creator of the directory."""
        _for_owner_only(self.root)
        for folder in (self.root, Path(self._blobs)):
            for entry in os.scandir(folder):
                if not entry.is_symlink():
                    _for_owner_only(Path(entry.path))


def _start_in(descriptor: int) -> DirectoryStart:
    """The record of a start: the number in 8 bytes, a byte for the clean end, and the table's identity."""
    recorded = os.pread(descriptor, 64, 0)
    return DirectoryStart(int.from_bytes(recorded[:8], "little"), recorded[_TABLE_AT:], recorded[8:_TABLE_AT] == _CLEAN)


def _for_owner_only(path: Path) -> None:
    # Leave directories of other users unchanged; and serve even if the mode cannot be changed.
    with suppress(OSError):
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077:
            path.chmod(S_IMODE(status.st_mode) & ~0o077)
