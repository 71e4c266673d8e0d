"""The number of bytes to evict. Which blobs go is decided by pools and their eviction orders (``pools.py``).

Two limits bind the store: ``capacity``, the bytes of blobs that the operator allows, and ``reserve``, the bytes of the file
system that it never uses. Both have hysteresis, so that space is freed in long strides instead of one blob for each blob that
comes in: above ``high`` x capacity the keeper evicts down to ``low`` x capacity, and after a breach of the reserve it frees a
further (high - low) x capacity. Fills under way count as used: they are reserved when they begin, never inferred from the file
system's figures. The same watermarks hold for the file system's inodes: a file system without free inodes takes no more files,
however many bytes are free.

The keeper does nothing else during a stride, and fills that need room wait for its end. So a stride has at most ``STRIDE``
average blobs. In a cache with more than twenty times as many, it is shorter than the distance between the watermarks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

STRIDE = 2048
"""Blobs. An index of 25 million evicts 900 a second at first (lab/benchmarks/results/index_large.md), so fills wait 2.3 s."""


class EvictionReason(StrEnum):
    """Why bytes are freed, or none are."""

    WITHIN_LIMITS = "within-limits"
    """No limit is exceeded."""
    CAPACITY = "capacity"
    """The blobs are above the high watermark, or would be with the wanted bytes."""
    RESERVE = "reserve"
    """Less than the reserve is free in the file system, or would be with the wanted bytes."""
    INODES = "inodes"
    """The file system has used more of its inodes than the high watermark."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of the capacity: eviction starts above ``high`` and stops at ``low``."""

    high: float = 0.95
    low: float = 0.90


MARKS = Watermarks()
STEADY = Watermarks(high=0.995, low=0.99)
"""Marks of a cache full of items that replace each other one by one: they need no spare room."""
TURNING = 1 / (1 - STEADY.low + MARKS.low)
"""Dataset bytes displaced by one byte that turns over, as that byte also needs a part of the reserve."""
GRANTABLE = MARKS.low * TURNING
"""Share of the cache that datasets may be granted together: with this many steady bytes, the low watermark equals them."""


class Space(NamedTuple):
    """The space of the cache, all in bytes.

    ``used`` is the sum of all blobs, ``filling`` the bytes that fills under way may still write, ``free`` the
    space that the file system has left for us (``f_bavail`` of statvfs), ``reserve`` the part of it that must stay free.
    ``inodes`` of ``of_inodes`` are free (``f_favail``, ``f_files``; 0 where the file system does not count them), and ``blobs``
    is the number of our files. ``steady`` of ``used`` are items of datasets that have space: a dataset is fully cached, or its
    residents replace each other (``policies/items/demand.py``).
    """

    used: int
    capacity: int
    free: int
    reserve: int
    filling: int = 0
    inodes: int = 0
    of_inodes: int = 0
    blobs: int = 0
    steady: int = 0


def marks_of(space: Space) -> Watermarks:
    """The watermarks of a cache: only bytes that turn over need strides, steady ones do not."""
    if not space.steady or not space.capacity:
        return MARKS
    steady = min(1.0, max(0.0, space.steady / space.capacity))
    return Watermarks(
        MARKS.high + steady * (STEADY.high - MARKS.high),
        MARKS.low + steady * (STEADY.low - MARKS.low),
    )


def low_mark(capacity: int, steady: int) -> int:
    """The low watermark, in bytes, of a cache with ``steady`` bytes."""
    return int(marks_of(Space(steady, capacity, 0, 0, steady=steady)).low * capacity)


def turning(size: float) -> int:
    """How much of the datasets' room ``size`` bytes that turn over take."""
    return math.ceil(size * TURNING)


def turned(room: float) -> int:
    """How many bytes may turn over in ``room`` bytes of the datasets' room."""
    return max(0, int(room / TURNING))


@dataclass(frozen=True, slots=True)
class Eviction:
    """The decision: free ``size`` bytes of blobs, and ``files`` blobs at least; 0 when nothing has to go."""

    size: int
    reason: EvictionReason
    files: int = 0

    @property
    def needed(self) -> bool:
        """Whether anything has to go."""
        return self.size > 0 or self.files > 0


def admits(space: Space, wanted: int) -> bool:
    """Whether ``wanted`` more bytes stay within both limits."""
    return space.used + space.filling + wanted <= space.capacity and file_system_takes(space, wanted)


def file_system_takes(space: Space, wanted: int = 0) -> bool:
    """Whether the file system has room for what is reserved and ``wanted`` more bytes, whatever the capacity allows."""
    if space.of_inodes and not space.inodes:
        return False
    return space.free - space.filling - wanted >= space.reserve


def spare(space: Space, marks: Watermarks | None = None) -> int:
    """Number of further bytes within both limits and every watermark, so that nothing is evicted; below 0 if there are none."""
    marks = marks or marks_of(space)
    if space.of_inodes and (not space.inodes or (space.blobs and space.inodes < (1 - marks.high) * space.of_inodes)):
        return -1
    high = min(space.capacity, int(marks.high * space.capacity))
    return min(high - space.used, space.free - space.reserve) - space.filling


def admits_for_good(space: Space, wanted: int) -> bool:
    """Whether ``wanted`` more bytes fit below the low watermark, so that no eviction follows from them.

    The high watermark would be too much: fills of the node's other workers are not known here, and must fit between the two.
    """
    return admits(space, wanted) and wanted <= spare_for_good(space)


def spare_for_good(space: Space) -> int:
    """Number of further bytes below the low watermark; below 0 if there are none."""
    return int(marks_of(space).low * space.capacity) - space.used - space.filling


def room_for_blobs(space: Space) -> int:
    """The most bytes of blobs that the node can hold: the capacity, or less if the file system has less room."""
    return max(0, min(space.capacity, space.used + space.filling + space.free - space.reserve))


def falls_short(room: int, capacity: int) -> bool:
    """Whether the file system, rather than the capacity, decides when to evict; below the low watermark it always does."""
    return room < Watermarks().low * capacity


def decide_eviction(space: Space, wanted: int = 0, marks: Watermarks | None = None) -> Eviction:
    """Number of bytes to free so that ``wanted`` more bytes fit and the watermarks hold; never more than is used.

    A cache that is over its limits by more than a stride needs several decisions.
    """
    marks = marks or marks_of(space)
    taken = space.filling + wanted
    longest = space.used if space.blobs <= STRIDE else STRIDE * space.used // space.blobs
    stride = min(round((marks.high - marks.low) * space.capacity), longest)
    over_capacity = space.used + taken - int(marks.high * space.capacity)
    if over_capacity > 0:
        over_capacity = min(over_capacity + stride, space.used + taken - int(marks.low * space.capacity))
    over_reserve = space.reserve + taken - space.free
    if over_reserve > 0:
        over_reserve += stride
    size = max(0, min(space.used, taken + longest, max(over_capacity, over_reserve)))
    files = 0
    if space.inodes < (1 - marks.high) * space.of_inodes:
        files = min(space.blobs, STRIDE, round((1 - marks.low) * space.of_inodes) - space.inodes)
    if not size:
        return Eviction(0, EvictionReason.INODES if files else EvictionReason.WITHIN_LIMITS, files=files)
    reason = EvictionReason.CAPACITY if over_capacity >= over_reserve else EvictionReason.RESERVE
    return Eviction(size, reason, files=files)
