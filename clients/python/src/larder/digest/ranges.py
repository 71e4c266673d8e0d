"""Hashes parts of an object in one pass: ranges may touch, leave gaps, overlap and repeat."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from larder.http.stream import PIECE

_WORTH_READING = 1 << 18
"""The most bytes of a gap that cost less to read than another request: about what a store delivers in one round trip."""

ReadRange = Callable[[int, int], bytes]
"""``read(offset, length)``: bytes of the object in question."""
Read = Callable[[int], bytes | bytearray | memoryview]
"""Returns the next bytes of a stream, at least one and at most ``size``; none at its end."""


class Range(NamedTuple):
    """``length`` bytes from ``offset`` on."""

    offset: int
    length: int

    @property
    def stop(self) -> int:
        """The first byte after the range."""
        return self.offset + self.length


class Run(NamedTuple):
    """The bytes of one request: from ``start`` up to ``stop``, for the ranges of these numbers."""

    start: int
    stop: int
    numbers: tuple[int, ...]


def runs(ranges: Sequence[Range]) -> Iterator[Run]:
    """Combine ranges that are close enough to make one request cheaper."""
    numbers: list[int] = []
    start = stop = 0
    for number in sorted(range(len(ranges)), key=lambda number: ranges[number]):
        wanted = ranges[number]
        if numbers and wanted.offset > stop + _WORTH_READING:
            yield Run(start, stop, tuple(numbers))
            numbers = []
        if not numbers:
            start = stop = wanted.offset
        numbers.append(number)
        stop = max(stop, wanted.stop)
    if numbers:
        yield Run(start, stop, tuple(numbers))


def digests(read: Read, run: Run, ranges: Sequence[Range]) -> dict[int, bytes]:
    """The SHA-256 of each range of a run, by number, for ranges within the stream.

    Args:
        read: the object's bytes from ``run.start`` on.
        run: one of ``runs(ranges)``.
        ranges: those that were given to ``runs``.
    """
    waiting = sorted(run.numbers, key=lambda number: ranges[number].offset, reverse=True)
    hashes = {number: hashlib.sha256() for number in run.numbers}
    active: list[int] = []
    done: dict[int, bytes] = {}
    position = run.start
    while True:
        while waiting and ranges[waiting[-1]].offset <= position:
            active.append(waiting.pop())
        ended = [number for number in active if ranges[number].stop <= position]
        done |= {number: hashes.pop(number).digest() for number in ended}
        active = [number for number in active if number not in done]
        following = ranges[waiting[-1]].offset if waiting else run.stop
        nearest = min([following, *(ranges[number].stop for number in active)])
        if position >= run.stop or not (piece := read(min(nearest - position, PIECE))):
            return done
        for number in active:
            hashes[number].update(piece)
        position += len(piece)
