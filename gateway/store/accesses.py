"""The reads of one worker: recorded once, handed to consumers in batches.

``Accesses.record`` is on the path of every hit, so it only appends. Consumers get batches in the order of time, in the event
loop, and must not wait. ``Uses`` is what the index's eviction order is kept up to date with: it folds the reads of a blob into
one entry, so that a blob read a thousand times costs one row.

``ObservedReads.note`` is on the path of every S3 read, and only appends too: what a client asked of an object, for the
recognition of streams (``observation.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from gateway.model.access import Access, ObjectRead
from gateway.model.keys import ObjectKey

Consumer = Callable[[Sequence[Access]], None]
Peer = tuple[str, int] | None
Note = Callable[[ObjectKey, int, int, int, bool, float, str, Peer], None]
_Noted = tuple[ObjectKey, int, int, int, bool, float, str, Peer]

BATCH = 1024
"""Records that are handed out together at the latest."""
DISTINCT = 4096
"""Blobs whose uses are kept in memory before they are written to the index; and objects that were missed."""
MOST = 512
"""Reads of clients that a worker keeps until the next hand-over."""


class Accesses:
    """What was read and not handed out yet."""

    def __init__(self) -> None:
        self._records: list[Access] = []
        self._consumers: list[Consumer] = []

    def subscribe(self, consumer: Consumer) -> None:
        """Hand ``consumer`` every batch from now on."""
        self._consumers.append(consumer)

    def record(self, access: Access) -> None:
        """Record one read."""
        self._records.append(access)
        if len(self._records) >= BATCH:
            self.hand_out()

    def record_all(self, accesses: Iterable[Access]) -> None:
        """Record several reads."""
        self._records.extend(accesses)
        if len(self._records) >= BATCH:
            self.hand_out()

    def hand_out(self) -> None:
        """Give the consumers what was recorded since the last time."""
        if self._records:
            records, self._records = self._records, []
            for consumer in self._consumers:
                consumer(records)


class Use(NamedTuple):
    """Reads of a blob, folded: how many, and the last one.

    ``reads`` is 0 for a blob that a client has announced and not read yet.
    """

    reads: int
    last: Access


class Folded(NamedTuple):
    """Uses by digest, and misses by what was missed: the object, or the id of the dataset."""

    uses: dict[bytes, Use]
    misses: dict[ObjectKey | str, int]


class Uses:
    """Uses that the index does not know yet.

    Args:
        accesses: of this worker.
        when_many: called when it is time to write them to the index.
    """

    def __init__(self, accesses: Accesses, when_many: Callable[[], None]) -> None:
        self._accesses = accesses
        self._when_many = when_many
        self._reads: dict[bytes, int] = {}
        self._last: dict[bytes, Access] = {}
        self._missed: Counter[ObjectKey | str] = Counter()
        accesses.subscribe(self._fold)

    def _fold(self, accesses: Iterable[Access]) -> None:
        reads, last = self._reads, self._last
        for access in accesses:
            key, _, blob, hit, _, _ = access
            if blob:
                reads[blob] = reads.get(blob, 0) + 1
                last[blob] = access
            elif not hit:
                self._missed[key] += 1
        self._look()

    def expect(self, access: Access) -> None:
        """A client announced that it reads a blob next: what is fetched with it must not displace it before."""
        self._reads.setdefault(access.blob, 0)
        self._last[access.blob] = access
        self._look()

    def _look(self) -> None:
        if len(self._last) >= DISTINCT or len(self._missed) >= DISTINCT:
            self._when_many()

    def take(self) -> Folded | None:
        """What was read since the last call; ``None`` for nothing."""
        self._accesses.hand_out()
        uses = {blob: Use(self._reads[blob], access) for blob, access in self._last.items()}
        folded = Folded(uses, dict(self._missed))
        self._reads, self._last, self._missed = {}, {}, Counter()
        return folded if folded.uses or folded.misses else None


class ObservedReads:
    """The reads of one worker that were not handed over yet."""

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._dropped = 0

    def note(
        self, key: ObjectKey, start: int, stop: int, size: int, hit: bool, time: float, principal: str, peer: Peer
    ) -> None:
        """Note one read; ``peer`` is the address of the client's connection. The others are those of ``ObjectRead``."""
        if len(self._noted) < MOST:
            self._noted.append((key, start, stop, size, hit, time, principal, peer))
        else:
            self._dropped += 1

    def take(self) -> tuple[list[ObjectRead], int]:
        """What was noted since the last call, and how many reads were dropped."""
        noted, self._noted = self._noted, []
        dropped, self._dropped = self._dropped, 0
        return [ObjectRead(*read[:7], _client(read[6], read[7])) for read in noted], dropped


@lru_cache(maxsize=4096)
def _client(principal: str, peer: Peer) -> int:
    return crc32(f"{principal} {peer}".encode())
