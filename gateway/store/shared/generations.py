"""The table of generations, by which the workers of a node learn of writes without a message.

The table holds 65,536 slots of eight bytes, mapped into every worker. A key hashes to one slot; writing or forgetting the key
stores a fresh random number there. An aligned eight-byte store is one machine instruction, so readers see the old number or the
new one. Two keys that share a slot cost each other a look-up in the index, nothing else.

A bucket has a slot too, that of ``rights_in(key)``, and the generation of a key is the sum of both numbers. So one store
invalidates everything that the workers hold of a bucket's objects, grants included, when the bucket's rights change.

A bump stores an odd number. Whoever asks for the generation of a key replaces an odd number by an even one, so nobody works under
an odd one. A write that finds its own odd number when it ends therefore knows that no worker has read its key since: there is
nothing to forget again (``unread``).

After the slots follow 65,536 bytes of distrust marks. Forgetting must take effect even while the index cannot be written: then
the slot is marked, every worker treats the rows of that slot as absent, and the first keeper that can write again
deletes those rows and clears the marks.

Then follow as many debt marks: for keys written through this node without the fleet's knowledge. Until the fleet knows,
every worker of the node has reads of them checked with the origin, at whichever node they are answered. They are in the table,
so that a process started after a crash takes over the debts of its predecessor.

The table is a file in memory (``/dev/shm``), named after the cache directory. It is written in the event loop, and a page of a
file on the cache disk could make the loop wait for that disk; besides, damage to the cache directory does not reach it. It
survives the processes of a gateway, however they end. Its last bytes are the path of the cache directory, and every process that
maps it holds a shared lock on it: an unlocked table whose directory is gone is removed by the next start of any gateway.

The table does not survive a reboot, which may lose marks that never reached the disk. So the table records the start of the
directory that it belongs to (``boot``). If a directory was not closed cleanly and its last start is not the recorded one, it is
not vouched for: every row confirmed before ``since`` is checked with the origin before it is served.

At the end are the workers' shared records of small ranges (policies/reads/granularity.py), of evicted objects (evicted.py) and of
forgotten ones (forgotten.py), and the name of the table, by which a worker knows that another one forgets for it.

A new table is filled with random numbers. So a number of an old table (lost at a reboot, or private to a worker that could not
attach one) is never mistaken for a number of the new one; and all pages exist, for touching a hole of a mapped file on a full
file system would kill the process.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from gateway.model.keys import ObjectKey
from gateway.policies.reads import granularity
from gateway.store.shared import evicted, forgotten
from gateway.store.shared.evicted import EvictedKeys
from gateway.store.shared.forgotten import ForgottenKeys

SLOTS = 65_536
_SLOT_BYTES = 8 * SLOTS
_EVEN = bytes(byte & ~1 for byte in range(256))
_MARKS_END = _SLOT_BYTES + SLOTS
_DEBTS_END = _MARKS_END + SLOTS
_BOOT_END = _DEBTS_END + 16
_RANGES_END = _BOOT_END + 4 * granularity.SLOTS
_EVICTED_END = _RANGES_END + 4 * evicted.SLOTS
_FORGOTTEN_END = _EVICTED_END + 4 * forgotten.WORDS
_TABLE_BYTES = _FORGOTTEN_END + 16
_PATH_BYTES = 4096
_FILE_BYTES = _TABLE_BYTES + _PATH_BYTES
_DIGITS = 24
TWINS = "-states-"
"""The infix of the names of dataset states that are kept beside the table (datasets/content.py)."""
_SHARED = Path("/dev/shm")  # noqa: S108 - files there are opened without following links, and their owner is checked


Mark = tuple[int, int]
"""A slot, and the number that a bump stored there."""


@lru_cache(maxsize=1024)
def slots_of(key: ObjectKey) -> tuple[int, int]:
    """The slots of a key and of its bucket.

    A slot is the low 16 bits of the CRC-32 of ``origin NUL bucket NUL key``, the same in every process.
    """
    text = f"{key.origin}\0{key.bucket}\0{key.key}".encode("utf-8", "surrogatepass")
    return crc32(text) & 0xFFFF, _rights_slot(key.origin, key.bucket)


@lru_cache(maxsize=1024)
def _rights_slot(origin: str, bucket: str) -> int:
    """The slot of ``rights_in(key)``, whose key is empty."""
    return crc32(f"{origin}\0{bucket}\0".encode("utf-8", "surrogatepass")) & 0xFFFF


def table_of(root: Path) -> Path:
    """The path of a cache directory's table: in memory, or in the directory on a machine without ``/dev/shm``."""
    if not os.access(_SHARED, os.W_OK):
        return root / "generations"
    return _SHARED / f"{_prefix()}{sha256(os.fsencode(root)).hexdigest()[:_DIGITS]}"


def _prefix() -> str:
    return f"larder-{os.geteuid()}-"


def tables(shared: Path = _SHARED) -> list[Path]:
    """All tables of this user's gateways."""
    return [path for path in shared.glob(f"{_prefix()}*") if len(path.name) == len(_prefix()) + _DIGITS]


def root_of(table: Path) -> Path:
    """The cache directory that a table belongs to; raises ``OSError``."""
    with table.open("rb") as file:
        return Path(os.fsdecode(os.pread(file.fileno(), _PATH_BYTES, _TABLE_BYTES).rstrip(b"\0")))


def remove_dead(shared: Path = _SHARED) -> None:
    """Remove the tables of deleted cache directories, and files named after a deleted table.

    Blocks if the file system of one of those directories hangs; raises ``OSError``.
    """
    length = len(_prefix()) + _DIGITS
    for path in tables(shared):
        _remove_if_dead(path)
    for path in shared.glob(f"{_prefix()}*"):
        if path.name[length : length + 1] == "-" and not path.with_name(path.name[:length]).exists():
            path.unlink(missing_ok=True)


def _remove_if_dead(path: Path) -> None:
    """Remove a table that no process maps and whose directory is gone."""
    with suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            root = os.pread(descriptor, _PATH_BYTES, _TABLE_BYTES).rstrip(b"\0")
            # Before taking the lock, for which attaching processes wait: the disk may hang.
            if root and not os.path.lexists(root):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


class Generations:
    """The mapped table. Until ``attach`` succeeds it is private to this process."""

    def __init__(self) -> None:
        self.detach()

    def _use(self, table: mmap.mmap) -> None:
        self.numbers = memoryview(table)[:_SLOT_BYTES].cast("Q")
        """By slot; the generation of a key is the sum of the numbers of its slot and its bucket's slot."""
        self._marks = memoryview(table)[_SLOT_BYTES:_MARKS_END]
        self._debts = memoryview(table)[_MARKS_END:_DEBTS_END]
        self._boot = memoryview(table)[_DEBTS_END : _DEBTS_END + 8].cast("Q")
        self._since = memoryview(table)[_DEBTS_END + 8 : _BOOT_END].cast("d")
        self.ranges = memoryview(table)[_BOOT_END:_RANGES_END].cast("I")
        """See ``granularity.TouchTable``."""
        self.evicted = EvictedKeys(memoryview(table)[_RANGES_END:_EVICTED_END].cast("I"))
        self.forgotten = ForgottenKeys(memoryview(table)[_EVICTED_END:_FORGOTTEN_END].cast("I"))
        self.name = table[_FORGOTTEN_END:].hex()
        """No other table has it: of two workers with the same name, each forgets for both."""
        self._learn_since()

    def _learn_since(self) -> None:
        self.since = self._since[0]
        """Rows confirmed before this moment, in seconds since the epoch, are not vouched for; 0 when all are. Only the start of
        a directory changes it, before this worker has joined it."""

    def vouches(self, boot: int) -> bool:
        """Whether the table belongs to this start of the directory."""
        return self._boot[0] == boot

    def begin(self, boot: int, before: int, now: float, *, clean: bool) -> None:
        """Record a start of the directory, which no other worker has open.

        Args:
            boot: the number of the start.
            before: the number of the previous start, 0 for none.
            now: seconds since the epoch.
            clean: whether the previous start ended without marks.
        """
        if not self.vouches(before):
            self.bump_all()
            if before and not clean:
                self._since[0] = now
                self._learn_since()
        self._boot[0] = boot

    def of(self, key: ObjectKey) -> int:
        """The key's generation: it changes when the key, or the rights in its bucket, are bumped.

        Ask before reading what is to be valid under it: that makes the key count as read since its last bump.
        """
        numbers, (slot, bucket) = self.numbers, slots_of(key)
        # Each number is read once. A second look could find a bump that came in between, which would still count as unread.
        number, rights = numbers[slot], numbers[bucket]
        if number & 1:
            number = numbers[slot] = int.from_bytes(os.urandom(8), "little") & ~1
        if rights & 1:
            rights = numbers[bucket] = int.from_bytes(os.urandom(8), "little") & ~1
        return number + rights

    def holds(self, key: ObjectKey, generation: int) -> bool:
        """Whether the key's generation is unchanged, and the index can be trusted for the key."""
        slot, bucket = slots_of(key)
        return self.numbers[slot] + self.numbers[bucket] == generation and not self._marks[slot]

    def at(self, slot: int, bucket: int) -> int:
        """What to compare with the result of ``of`` for a key with these slots (``slots_of``)."""
        return self.numbers[slot] + self.numbers[bucket]

    def bump(self, key: ObjectKey) -> Mark:
        """Invalidate the key in every worker's memory, and fence fills of it that are in progress.

        With ``rights_in(key)``, do so for all keys of the bucket.

        Returns:
            For ``unread``.
        """
        slot = slots_of(key)[0]
        self.numbers[slot] = number = int.from_bytes(os.urandom(8), "little") | 1
        return slot, number

    def unread(self, marks: Iterable[Mark]) -> bool:
        """Whether nobody has asked for the generations of keys since they were bumped, nor bumped them again.

        Then no worker can hold, or record, anything of them that it read since.
        """
        return all(self.numbers[slot] == number for slot, number in marks)

    def bump_all(self) -> None:
        """``bump`` for every key."""
        for slot, number in enumerate(memoryview(_fresh_numbers()).cast("Q")):
            self.numbers[slot] = number

    def trusts(self, key: ObjectKey) -> bool:
        """Whether the index can be trusted for this key."""
        return not self._marks[slots_of(key)[0]]

    def distrust(self, key: ObjectKey) -> None:
        """Hide the key's row from every worker until a keeper has deleted it."""
        self._marks[slots_of(key)[0]] = 1

    def distrust_all(self) -> None:
        """``distrust`` for every key."""
        self._marks[:] = b"\1" * SLOTS

    def distrusted(self) -> list[int]:
        """The marked slots. Called in every sweep, so the usual result, none, must be cheap."""
        marks = self._marks.tobytes()
        return [slot for slot, mark in enumerate(marks) if mark] if marks.count(0) < len(marks) else []

    def clear(self, slots: list[int]) -> None:
        """Trust the index again for these slots."""
        for slot in slots:
            self._marks[slot] = 0

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that the fleet has not been told of writes to these keys, ``None``: to any keys."""
        if keys is None:
            self._debts[:] = b"\1" * SLOTS
            return
        for key in keys:
            self._debts[slots_of(key)[0]] = 1

    def owes(self, key: ObjectKey) -> bool:
        """Whether the fleet may not know of a write of a key, or of a change of the rights in its bucket."""
        return self.owes_at(slots_of(key))

    def owes_at(self, slots: tuple[int, int]) -> bool:
        """The same for the slots of a key, from ``slots_of``."""
        return bool(self._debts[slots[0]] | self._debts[slots[1]])

    @property
    def in_debt(self) -> bool:
        """Whether any debt is recorded."""
        return any(self._debts)

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that the fleet has been told of these keys, ``None``: of all."""
        if keys is None:
            self._debts[:] = bytes(SLOTS)
            return
        for key in keys:
            self._debts[slots_of(key)[0]] = 0

    def detach(self) -> None:
        """Replace the shared table by a private one."""
        table = mmap.mmap(-1, _TABLE_BYTES)
        table[:_SLOT_BYTES] = _fresh_numbers()
        table[_FORGOTTEN_END:] = os.urandom(_TABLE_BYTES - _FORGOTTEN_END)
        self._identity: tuple[int, int] | None = None
        self._use(table)

    def unlink(self, path: Path) -> None:
        """Remove the table at ``path`` if it is the one mapped; its last user calls this.

        Raises:
            OSError: the file cannot be removed.
        """
        status = path.stat()
        if (status.st_dev, status.st_ino) == self._identity:
            path.unlink()

    def attach(self, path: Path, root: Path | None = None) -> bool:
        """Map the table at ``path``, creating it if missing; ``False`` if it is mapped already.

        Marks of the previously mapped table, and what was forgotten under it, are carried over; other workers then look up again
        whatever they hold.

        Args:
            path: of the table.
            root: the table's cache directory; ``None``: the directory of the table.

        Raises:
            OSError: the file cannot be created or mapped.
        """
        try:
            found = path.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                self._learn_since()
                return False
        except FileNotFoundError:
            pass
        table, identity = _open_table(path, root or path.parent)
        marked, owed = self.distrusted(), [slot for slot, mark in enumerate(self._debts) if mark]
        before = self.forgotten
        self._use(table)
        if self.forgotten.take_over(before):
            self.bump_all()
        self._identity = identity
        for slot in marked:
            self._marks[slot] = 1
        for slot in owed:
            self._debts[slot] = 1
        return True


def _open_table(path: Path, root: Path) -> tuple[mmap.mmap, tuple[int, int]]:
    """The mapped table, locked for as long as it is mapped (flock(2): the lock belongs to the open file, which the map keeps)."""
    while True:
        if not path.exists() or path.stat().st_size != _FILE_BYTES:
            _create_table(path, root)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "belongs to another user", str(path))
            if status.st_nlink:
                return mmap.mmap(descriptor, _TABLE_BYTES), (status.st_dev, status.st_ino)
        finally:
            os.close(descriptor)


def _fresh_numbers() -> bytes:
    """A random number for each slot, which counts as read: an odd one would have the first read draw another number."""
    numbers = bytearray(os.urandom(_SLOT_BYTES))
    numbers[::8] = numbers[::8].translate(_EVEN)
    return bytes(numbers)


def _create_table(path: Path, root: Path) -> None:
    """Create a complete table at ``path`` atomically; of several processes that try, the first one wins."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(_fresh_numbers() + bytes(_FORGOTTEN_END - _SLOT_BYTES))
            file.write(os.urandom(_TABLE_BYTES - _FORGOTTEN_END))
            file.write(os.fsencode(root)[:_PATH_BYTES].ljust(_PATH_BYTES, b"\0"))
        if path.exists() and path.stat().st_size != _FILE_BYTES:
            draft.replace(path)
            return
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
    finally:
        draft.unlink(missing_ok=True)
