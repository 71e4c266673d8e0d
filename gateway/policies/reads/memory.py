"""Decides which small blobs a worker also keeps in memory.

The memory is small beside the disk, and a training job reads all items equally often: once an epoch. With LRU such a scan evicts
each blob just before its next read. So a blob that is in memory stays until another one has been read clearly more often: by
``MARGIN`` reads. The counts of two blobs of a scan differ by one, and after halvings by less than ``MARGIN``. So a scan changes
nothing, and memory answers the share of its reads whose bytes fit.

``Copied`` counts the reads of a blob in memory. Reads of blobs outside memory are counted here, for the last ``MOST_WAITING`` of
them. All counts are halved from time to time, each at its next use, so that old reads lose weight.

The order in which victims are tried is a clock: a resident that wins against a candidate goes to the end. A candidate gives up
after a few that win, so a read of a blob that does not enter costs little; the next candidate tries others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

MARGIN = 2
"""How many more reads than a resident a blob needs to replace it."""
MOST_WAITING = 16_384
"""The most blobs outside the memory whose reads are counted."""
_DEFEATS = 3
"""Residents that win against a candidate before it gives up."""
_LIFE = 8
"""Counts are halved when each blob has been a candidate this many times, on average."""


@dataclass(slots=True)
class Copied:
    """A blob in memory: its bytes, empty once it has left; its reads, and the number of halvings applied to ``reads``."""

    body: bytes
    reads: float = 0.0
    era: int = 0


R = TypeVar("R", bound=Copied)


class MemoryOrder(Generic[R]):
    """The blobs in one worker's memory, by digest.

    Attributes:
        residents: the blobs in memory; the order is that of the clock.
        used: the bytes that they are charged.
        budget: the most that ``used`` may reach; 0 keeps nothing.

    Args:
        budget: see above.
        largest: bytes of the largest blob that may enter.
        overhead: bytes charged for each blob in addition to its data.
    """

    def __init__(self, budget: int, largest: int, overhead: int = 0) -> None:
        self.residents: dict[bytes, R] = {}
        self.used = 0
        self.budget = budget
        self._largest = largest
        self._overhead = overhead
        self._waiting: dict[bytes, tuple[float, int]] = {}
        self._era = 0
        self._candidates = 0

    def enters(self, digest: bytes, size: int) -> float:
        """Count a read of a blob that is not in memory, and make room for it if its reads suffice. An empty blob needs no memory.

        Returns:
            Its reads, if it is to be added now; else 0.
        """
        charged = size + self._overhead
        if not 0 < size <= self._largest or charged > self.budget:
            return 0
        self._candidates += 1
        if self._candidates >= _LIFE * (len(self.residents) + len(self._waiting) + 1):
            self._candidates, self._era = 0, self._era + 1
        reads, era = self._waiting.pop(digest, (0.0, self._era))
        reads = reads * 0.5 ** (self._era - era) + 1
        if self.used + charged <= self.budget or self._make_room(charged, reads):
            return reads
        self._waiting[digest] = reads, self._era
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return 0

    def add(self, digest: bytes, resident: R) -> None:
        """Keep a blob for which ``enters`` has made room."""
        self.discard(digest)
        resident.era = self._era
        self.residents[digest] = resident
        self.used += len(resident.body) + self._overhead

    def discard(self, digest: bytes) -> None:
        """Drop a blob."""
        resident = self.residents.pop(digest, None)
        if resident is not None:
            self.used -= len(resident.body) + self._overhead
            resident.body = b""  # a remaining reference to the blob must not keep its bytes

    def clear(self) -> None:
        """Drop everything."""
        for resident in self.residents.values():
            resident.body = b""
        self.residents.clear()
        self._waiting.clear()
        self.used = 0

    def _make_room(self, charged: int, reads: float) -> bool:
        """Drop residents with clearly fewer reads than a candidate; none if that would not free enough."""
        if reads <= MARGIN:
            return False
        victims, missing, defeats = [], self.used + charged - self.budget, 0
        for _ in range(len(self.residents)):
            digest = next(iter(self.residents))
            resident = self.residents.pop(digest)
            self.residents[digest] = resident  # at the end
            resident.reads *= 0.5 ** (self._era - resident.era)
            resident.era = self._era
            if resident.reads + MARGIN > reads:
                defeats += 1
                if defeats == _DEFEATS:
                    return False
                continue
            victims.append(digest)
            missing -= len(resident.body) + self._overhead
            if missing <= 0:
                for victim in victims:
                    self.discard(victim)
                return True
        return False
