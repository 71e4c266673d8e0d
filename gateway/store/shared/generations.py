"""The table of generations, by which the workers of a node learn of writes without a message.

The table holds 65,536 slots of eight bytes, mapped into every worker. A key hashes to one slot; writing or forgetting the key
stores a fresh random number there. An aligned eight-byte store is one machine instruction, so readers see the old number or the
new one. Two keys that share a slot cost each other a look-up in the index, nothing else.

A bucket also has a slot, that of ``rights_in(key)``, and the generation of a key is the sum of both numbers. So when a bucket's
rights change, one store invalidates everything that the workers hold of its objects, grants included.

A bump stores an odd number. Reading the generation of a key replaces an odd number by an even one, so no work happens under an
odd number. A write that finds its own odd number when it ends therefore knows that no worker has read its key since, and need
not forget it again (``unread``).

After the slots follow 65,536 bytes of distrust marks. Forgetting must take effect even while the index cannot be written: then
the slot is marked, every worker treats the rows of that slot as absent, and the first keeper that can write again
deletes those rows and clears the marks.

Then follow as many debt marks, for keys written through this node without the fleet's knowledge. Until the fleet is notified,
every worker of the node has reads of these keys checked with the origin, whichever node answers them. They are in the table, so
that a process started after a crash takes over the debts of its predecessor.

The table is a file in memory (``table_file.py``), named after the cache directory. The event loop writes it, and would block on
a page of a file on the cache disk; in memory, damage to the cache directory does not reach it either. It survives the processes
of a gateway, however they end. Its last bytes are the path of the cache directory, and every process that maps it holds a shared
lock on it: an unlocked table whose directory is gone is removed by the next start of any gateway.

The table does not survive a reboot, so marks may be lost. Therefore the table records the directory's start to which it belongs
(``boot``), and the directory records which file the table is. If a directory was not closed cleanly and the table does not
record its last start, the table does not vouch for it: every row confirmed before ``since`` is checked with the origin before it
is served. A worker whose table differs from that of the directory's other workers does not use the directory.

At the end are the workers' shared records of small ranges (policies/reads/granularity.py), evicted objects (evicted.py),
forgotten objects (forgotten.py) and requests of other nodes (seen.py), and the table's name, by which a worker knows that
another worker forgets on its behalf.

A new table is filled with one random number. So a number of an old table (lost at a reboot, or private to a worker that could not
attach one) is never mistaken for a number of the new one; and all pages exist, because touching a hole of a mapped file on a
full file system would kill the process.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from gateway.model.keys import ObjectKey
from gateway.store.shared.evicted import EvictedKeys
from gateway.store.shared.forgotten import ForgottenKeys
from gateway.store.shared.seen import SeenRequests
from gateway.store.shared.table_file import (
    BOOT_END,
    DEBTS_END,
    EVICTED_END,
    FORGOTTEN_END,
    MARKS_END,
    RANGES_END,
    SEEN_END,
    SLOT_BYTES,
    SLOTS,
    TABLE_BYTES,
    fresh_numbers,
    identity,
    identity_of,
    open_table,
)

Mark = tuple[int, int]
"""A slot, and the number that a bump stored there."""


class DirectoryStart(NamedTuple):
    """A directory's record of its start: a number, 0 for none; the table's identity; and whether the start ended cleanly."""

    boot: int = 0
    table: bytes = b""
    clean: bool = False


@lru_cache(maxsize=1024)
def slots_of(key: ObjectKey) -> tuple[int, int]:
    """The slots of a key and of its bucket.

    A slot is the low 16 bits of the CRC-32 of ``origin NUL bucket NUL key``, the same in every process.
    """
    text = f"{key.origin}\0{key.bucket}\0{key.key}".encode("utf-8", "surrogatepass")
    return crc32(text) & 0xFFFF, _rights_slot(key.origin, key.bucket)


@lru_cache(maxsize=1024)
def _rights_slot(origin: str, bucket: str) -> int:
    """The slot of ``rights_in(key)``, a key with an empty name."""
    return crc32(f"{origin}\0{bucket}\0".encode("utf-8", "surrogatepass")) & 0xFFFF


def _marked(marks: memoryview) -> list[int]:
    """The slots that have a mark. Usually there are none, and that must be cheap to find out."""
    copied = marks.tobytes()
    return [slot for slot, mark in enumerate(copied) if mark] if copied.count(0) < len(copied) else []


class Generations:
    """The mapped table. Until ``attach`` succeeds it is private to this process."""

    def __init__(self) -> None:
        self.since = 0.0
        """Rows confirmed before this moment, in seconds since the epoch, are not vouched for; 0 if all are. Only the start of a
        directory changes it, before this worker joins that start.
        """
        self.detach()

    def _use(self, table: mmap.mmap, identity: bytes) -> None:
        self._table = table
        self.identity = identity
        """Identifies the table's file; empty for a private table."""
        self.numbers = memoryview(table)[:SLOT_BYTES].cast("Q")
        """By slot; the generation of a key is the sum of the numbers of its slot and its bucket's slot."""
        self._marks = memoryview(table)[SLOT_BYTES:MARKS_END]
        self._debts = memoryview(table)[MARKS_END:DEBTS_END]
        self._boot = memoryview(table)[DEBTS_END : DEBTS_END + 8].cast("Q")
        self._since = memoryview(table)[DEBTS_END + 8 : BOOT_END].cast("d")
        self.ranges = memoryview(table)[BOOT_END:RANGES_END].cast("I")
        """See ``granularity.TouchTable``."""
        self.evicted = EvictedKeys(memoryview(table)[RANGES_END:EVICTED_END].cast("I"))
        self.forgotten = ForgottenKeys(memoryview(table)[EVICTED_END:FORGOTTEN_END].cast("I"))
        self.seen = SeenRequests(memoryview(table)[FORGOTTEN_END:SEEN_END].cast("I"))
        self.name = table[SEEN_END:].hex()
        """Unique to this table. Two workers with the same name share it: each forgets for both."""

    def vouches(self, boot: int, recorded: bytes) -> bool:
        """Whether the table is the one that the directory recorded at a start, and not another table or a copy.

        Args:
            boot: the number of the start.
            recorded: the identity of that start's table; empty if an earlier release, which had none, recorded the start.
        """
        return self._boot[0] == boot and recorded in (b"", self.identity)

    def begin(self, boot: int, previous: DirectoryStart, now: float) -> None:
        """Record a start of the directory, which no other worker has open.

        Args:
            boot: the number of the start.
            previous: the start before.
            now: seconds since the epoch.
        """
        if not self.vouches(previous.boot, previous.table):
            self.bump_all()
            if previous.boot and not previous.clean:
                self._since[0] = now
        self._boot[0] = boot

    def join(self, start: DirectoryStart) -> bool:
        """Whether this worker shares the table with all others of a start; if not, it distrusts what it has in memory."""
        if self._boot[0] == 0 and start.table == self.identity:
            self._boot[0] = start.boot  # the table was truncated, and completed
        if not self.vouches(start.boot, start.table):
            self.since = math.inf
            return False
        self.since = self._since[0]
        return True

    def of(self, key: ObjectKey) -> int:
        """The key's generation: it changes when the key, or the rights in its bucket, are bumped.

        Call it before reading data that must be valid under the generation: the key then counts as read since its last bump.
        """
        numbers, (slot, bucket) = self.numbers, slots_of(key)
        # Each number is read once. A second read could return a bump from in between, which would still count as unread.
        number, rights = numbers[slot], numbers[bucket]
        if number & 1:
            number = numbers[slot] = int.from_bytes(os.urandom(8), "little") & ~1
        if rights & 1:
            rights = numbers[bucket] = int.from_bytes(os.urandom(8), "little") & ~1
        return number + rights

    def settled(self, key: ObjectKey) -> int | None:
        """The key's generation, as ``of``; ``None`` if the index cannot be trusted for the key, or the fleet may not know of a
        write of it.
        """
        slot, bucket = slots_of(key)
        return None if self._marks[slot] or self._debts[slot] | self._debts[bucket] else self.of(key)

    def holds(self, key: ObjectKey, generation: int) -> bool:
        """Whether the key's generation is unchanged, and the index can be trusted for the key."""
        slot, bucket = slots_of(key)
        return self.numbers[slot] + self.numbers[bucket] == generation and not self._marks[slot]

    def at(self, slot: int, bucket: int) -> int:
        """The value to compare with the result of ``of`` for a key with these slots (``slots_of``)."""
        return self.numbers[slot] + self.numbers[bucket]

    def bump(self, key: ObjectKey) -> Mark:
        """Invalidate the key in every worker's memory, and fence fills of it that are in progress.

        With ``rights_in(key)``, do so for all keys of the bucket.

        Returns:
            The mark to pass to ``unread``.
        """
        slot = slots_of(key)[0]
        self.numbers[slot] = number = int.from_bytes(os.urandom(8), "little") | 1
        return slot, number

    def unread(self, marks: Iterable[Mark]) -> bool:
        """Whether nobody has read or bumped these keys' generations since the bumps that gave these marks.

        If so, no worker has, or can record, anything read after those bumps.
        """
        for slot, number in marks:  # noqa: SIM110  # in Python 3.11 a generator is two calls
            if self.numbers[slot] != number:
                return False
        return True

    def bump_all(self) -> None:
        """Bump every key."""
        for slot, number in enumerate(memoryview(fresh_numbers()).cast("Q")):
            self.numbers[slot] = number

    def trusts(self, key: ObjectKey) -> bool:
        """Whether the index can be trusted for this key."""
        return not self._marks[slots_of(key)[0]]

    def distrust(self, key: ObjectKey) -> None:
        """Hide the key's row from every worker until a keeper has deleted it."""
        self._marks[slots_of(key)[0]] = 1

    def distrust_all(self) -> None:
        """Distrust every key."""
        self._marks[:] = b"\1" * SLOTS

    def distrusted(self) -> list[int]:
        """The marked slots. Every sweep asks for them."""
        return _marked(self._marks)

    def clear(self, slots: list[int]) -> None:
        """Trust the index again for these slots."""
        for slot in slots:
            self._marks[slot] = 0

    def owe(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that writes to these keys were not announced; ``None`` means any key."""
        if keys is None:
            self._debts[:] = b"\1" * SLOTS
            return
        for key in keys:
            self._debts[slots_of(key)[0]] = 1

    def owes(self, key: ObjectKey) -> bool:
        """Whether the fleet may not know of a write of a key, or of a change of the rights in its bucket."""
        slot, bucket = slots_of(key)
        return bool(self._debts[slot] | self._debts[bucket])

    def owes_at(self, slots: tuple[int, int]) -> bool:
        """Like ``owes``, for the slots of a key, from ``slots_of``."""
        return bool(self._debts[slots[0]] | self._debts[slots[1]])

    @property
    def in_debt(self) -> bool:
        """Whether any debt is recorded."""
        return any(self._debts)

    def paid(self, keys: Iterable[ObjectKey] | None) -> None:
        """Record that writes to these keys were announced; ``None`` means all keys."""
        if keys is None:
            self._debts[:] = bytes(SLOTS)
            return
        for key in keys:
            self._debts[slots_of(key)[0]] = 0

    def detach(self) -> None:
        """Replace the shared table by a private one."""
        table = mmap.mmap(-1, TABLE_BYTES)
        table[:SLOT_BYTES] = fresh_numbers()
        table[SEEN_END:] = os.urandom(TABLE_BYTES - SEEN_END)
        self._use(table, b"")

    def unlink(self, path: Path) -> None:
        """Remove the table at ``path`` if this process maps that table; its last user calls this.

        Raises:
            OSError: the file cannot be removed.
        """
        if self.is_at(path):
            path.unlink()

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` is the name of the mapped table. Raises ``OSError``."""
        try:
            return identity_of(path.stat()) == self.identity
        except FileNotFoundError:
            return False

    def attach(self, path: Path, root: Path | None = None) -> bool:
        """Map the table at ``path``, creating it if missing; ``False`` if it is mapped already.

        Marks and forgotten keys of the previously mapped table are carried over; other workers then look up everything again.

        Args:
            path: of the table.
            root: the table's cache directory; ``None``: the directory of the table.

        Raises:
            OSError: the file cannot be created or mapped.
        """
        if identity(path) == self.identity:
            return False
        table, which = open_table(path, root or path.parent)
        whole = (
            not self.identity or self._table.size() >= TABLE_BYTES
        )  # touching truncated pages would kill the process
        marked = self.distrusted() if whole else list(range(SLOTS))
        owed = _marked(self._debts) if whole else []
        before = self.forgotten
        self._use(table, which)
        if not whole:
            self.forgotten.note_all()
            self.bump_all()
        elif self.forgotten.take_over(before):
            self.bump_all()
        for slot in marked:
            self._marks[slot] = 1
        for slot in owed:
            self._debts[slot] = 1
        return True
