"""Which adjacent items of an object are read by one request of the origin.

A store charges by the request and answers after tens of milliseconds, so a sample of a few KiB inside a shard costs less with its
neighbours. But bytes that nobody wants cost too. So a *run* has only items that are wanted and not cached, and bytes between
them only within ``WASTE``. A gap of up to ``FRAME`` bytes is free: the heads of a request and its answer take as many bytes, and
TAR members have such gaps between them.

The items of a run begin in one stretch of ``STRETCH`` bytes of the object. Stretches are fixed, so an object whose items are
wanted in random order is read by one request per stretch.

In an epoch, a run includes the edges of its object: the bytes between it and the previous item, and the end of the archive after
the last item. S3 readers of the object want them (docs/decisions/0063).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STRETCH = 4 * 1024**2
WASTE = 0.05
"""The most bytes between the items of a run, as a share of the items' bytes."""
FRAME = 1024
EDGE = 12 * 1024
"""Bytes after the last item of an object that are read with it: tar pads an archive to 10 KiB."""


class ByteSpan(NamedTuple):
    """The bytes [start, stop) of an object."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of items."""
        return self.stop - self.start


def stretch_of(start: int) -> ByteSpan:
    """The stretch in which an item begins."""
    first = start // STRETCH * STRETCH
    return ByteSpan(first, first + STRETCH)


def with_edges(span: ByteSpan, before: int, *, last: bool) -> ByteSpan:
    """A run with the edges of its object.

    Args:
        span: of its items.
        before: the end of the previous item in the object; 0 if the run has the first.
        last: whether it has the last item of the object.
    """
    start = before if 0 <= span.start - before <= FRAME else span.start
    return ByteSpan(start, span.stop + (min(EDGE, int(WASTE * span.stop)) if last else 0))


def runs_of(spans: Mapping[int, ByteSpan]) -> list[list[int]]:
    """Group items of one object, given by number, into runs: each item is in exactly one, ordered by place.

    Items that overlap are in different runs, and one of ``STRETCH`` bytes or more is alone.
    """
    runs: list[list[int]] = []
    size = gaps = end = stretch = 0
    for item, (start, stop) in sorted(spans.items(), key=lambda entry: entry[1]):
        gap, length, number = start - end, stop - start, start // STRETCH
        wasted = gaps + (gap if gap > FRAME else 0)
        joins = runs and number == stretch and gap >= 0 and max(length, size) < STRETCH
        if joins and wasted <= WASTE * (size + length):
            runs[-1].append(item)
            size, gaps = size + length, wasted
        else:
            runs.append([item])
            size, gaps, stretch = length, 0, number
        end = stop
    return runs
