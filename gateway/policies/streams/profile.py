"""Profiles: a job's reads in order, recorded from one access key, replayed as a warm-up.

A profile is the order in which blocks were read for the first time. Reading a block again adds nothing, because a warm-up loads
it once. Neighbouring blocks become one read of the profile, so a scan of a large object by small ranges is one entry.

Each gateway records what its own clients read, and a restarted gateway begins with an empty record. ``merged`` puts such parts in
the order of time and drops repetitions; if the gateways' clocks differ, parts shift against each other, which affects only the
order of a warm-up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.model.keys import unpaid
from gateway.model.s3.ranges import block_span

MOST_BLOCKS = 100_000
"""Blocks of one profile; whole small objects count as one. With blocks of 4 MiB that is some 400 GB."""


class ProfileRead(NamedTuple):
    """Bytes ``start`` to ``stop`` (exclusive) of an object of ``size`` bytes, first read at ``at`` (seconds since the epoch)."""

    at: float
    bucket: str
    key: str
    start: int
    stop: int
    size: int

    @property
    def span(self) -> tuple[int, int] | None:
        """The bytes that a replay loads; ``None`` for all of the object."""
        return None if self.start == 0 and self.stop >= self.size else (self.start, self.stop)


@dataclass(frozen=True, slots=True)
class ProfileRecording:
    """A profile that is being recorded: reads by ``access_key_id`` below a prefix, until a time in seconds since the epoch."""

    id: str
    access_key_id: str
    bucket: str
    prefix: str
    until: float

    def wants(self, principal: str, bucket: str, key: str, at: float) -> bool:
        """Whether a read belongs to it."""
        mine = unpaid(principal) == self.access_key_id and bucket == self.bucket
        return mine and at < self.until and key.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile to replay; ``tenant`` and ``origin`` are those of the access key that it was recorded from."""

    name: str
    tenant: str
    origin: str
    recording: bool
    reads: tuple[ProfileRead, ...]


class FirstReads:
    """Keeps the first read of each block.

    Args:
        block_size: bytes of a block.
        most: blocks that are kept.
    """

    def __init__(self, block_size: int, most: int = MOST_BLOCKS) -> None:
        self.blocks = 0
        """Blocks seen."""
        self.full = False
        """Whether a block was dropped because the profile is full."""
        self._block_size = block_size
        self._most = most
        self._seen: dict[int, list[int]] = {}
        self._new: list[ProfileRead] = []

    def add(self, read: ProfileRead) -> None:
        """Add the new blocks of a read, whose bytes are widened to whole blocks."""
        wanted = block_span(read.start, read.stop, self._block_size) or range(1)
        # 64 bits: among 100,000 objects a collision has a chance of 3 in 10 billion, and costs a warm-up one object.
        seen = self._seen.setdefault(hash((read.bucket, read.key)), [])
        for first, last in _cover(seen, wanted.start, wanted.stop):
            room = min(last - first, self._most - self.blocks)
            self.full = self.full or room < last - first
            if room:
                self.blocks += room
                start, stop = first * self._block_size, (first + room) * self._block_size
                self._append(read._replace(start=start, stop=min(read.size, stop)))

    def take_reads(self) -> list[ProfileRead]:
        """The new reads since the last call, in order."""
        new, self._new = self._new, []
        return new

    def _append(self, read: ProfileRead) -> None:
        last = self._new[-1] if self._new else None
        if last is not None and (last.bucket, last.key, last.stop) == (read.bucket, read.key, read.start):
            self._new[-1] = last._replace(stop=read.stop)
        else:
            self._new.append(read)


def merged(parts: Iterable[Iterable[ProfileRead]], block_size: int, most: int = MOST_BLOCKS) -> list[ProfileRead]:
    """The parts of one profile in the order of time, each block once."""
    first = FirstReads(block_size, most)
    for read in sorted((read for part in parts for read in part), key=lambda read: read.at):
        first.add(read)
    return first.take_reads()


def _cover(bounds: list[int], start: int, stop: int) -> list[tuple[int, int]]:
    """Cover ``start`` to ``stop`` (exclusive); returns the parts that were not covered before.

    Args:
        bounds: the beginnings and ends of covered intervals, alternating and ascending; changed in place.
        start: of the interval.
        stop: of the interval.
    """
    left, right = bisect_left(bounds, start), bisect_right(bounds, stop)
    begins, ends = [start] if left % 2 == 0 else [], [stop] if right % 2 == 0 else []
    points = [*begins, *bounds[left:right], *ends]
    bounds[left:right] = [*begins, *ends]
    return [(first, last) for first, last in zip(points[::2], points[1::2], strict=True) if first < last]
