"""The reads of one worker: recorded once, delivered to consumers in batches.

``Accesses.record`` is on the path of every hit, so it only appends. Consumers get batches in chronological order, in the event
loop, and must not block. ``Uses`` prepares updates of the eviction order in the index: it folds the reads of a blob into one
entry, so that a blob read a thousand times costs one row.

``ObservedReads.note`` is on the path of every S3 read, and only appends too: it records client requests for objects, from which
streams are recognised (``observation.py``).
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
Note = Callable[[ObjectKey, int, int, int, bool, float, str, Peer, float], None]
_Noted = tuple[ObjectKey, int, int, int, bool, float, str, Peer, float]

BATCH = 1024
"""The most records of one batch."""
DISTINCT = 4096
"""Blobs whose uses are kept in memory before they are written to the index; likewise missed objects."""
MOST = 512
"""Client reads that a worker keeps until the next hand-over."""


class Accesses:
    """Reads that have not been delivered yet."""

    def __init__(self) -> None:
        self._records: list[Access] = []
        self._consumers: list[Consumer] = []

    def subscribe(self, consumer: Consumer) -> None:
        """From now on, pass every batch to ``consumer``."""
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
        """Deliver the reads recorded since the last call to the consumers."""
        if self._records:
            records, self._records = self._records, []
            for consumer in self._consumers:
                consumer(records)


class Use(NamedTuple):
    """Folded reads of a blob: their number, and the last one.

    ``reads`` is 0 for a blob that a client has announced but not read yet.
    """

    reads: int
    last: Access


class Folded(NamedTuple):
    """Uses by digest, and misses by the missed object or the id of the missed dataset."""

    uses: dict[bytes, Use]
    misses: dict[ObjectKey | str, int]


class Uses:
    """Uses that are not in the index yet.

    Args:
        accesses: of this worker.
        when_many: called when the uses should be written to the index.
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
        """Record an announced read, so that items fetched with the blob do not displace it before it is read."""
        self._reads.setdefault(access.blob, 0)
        self._last[access.blob] = access
        self._look()

    def _look(self) -> None:
        if len(self._last) >= DISTINCT or len(self._missed) >= DISTINCT:
            self._when_many()

    def take_folded(self) -> Folded | None:
        """The uses since the last call; ``None`` if there are none."""
        self._accesses.hand_out()
        uses = {blob: Use(self._reads[blob], access) for blob, access in self._last.items()}
        folded = Folded(uses, dict(self._missed))
        self._reads, self._last, self._missed = {}, {}, Counter()
        return folded if folded.uses or folded.misses else None


class ObservedReads:
    """Client reads of one worker that were not handed over yet."""

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._dropped = 0

    def note(
        self,
        key: ObjectKey,
        start: int,
        stop: int,
        size: int,
        hit: bool,
        time: float,
        principal: str,
        peer: Peer,
        waited: float = 0.0,
    ) -> None:
        """Record one read; ``peer`` is the address of the client's connection. For the other arguments see ``ObjectRead``."""
        if len(self._noted) < MOST:
            self._noted.append((key, start, stop, size, hit, time, principal, peer, waited))
        else:
            self._dropped += 1

    def take_reads(self) -> tuple[list[ObjectRead], int]:
        """The reads recorded since the last call, and the number of dropped ones."""
        noted, self._noted = self._noted, []
        dropped, self._dropped = self._dropped, 0
        return [ObjectRead(*read[:7], _client(read[6], read[7]), read[8]) for read in noted], dropped


@lru_cache(maxsize=4096)
def _client(principal: str, peer: Peer) -> int:
    return crc32(f"{principal} {peer}".encode())
