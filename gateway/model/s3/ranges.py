"""The Range header, for requests answered from the cache, and the arithmetic of blocks.

One well-formed byte range is supported. Anything else (several ranges, other units, last before first) is ``None``:
the origin answers those, so the client gets the answer that it would get without the gateway.

Source: RFC 9110, section 14.
"""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII | re.IGNORECASE)
"""Positions with more digits are beyond 64 bits, where servers disagree; the origin decides."""


class ByteRange(NamedTuple):
    """One ``bytes=`` range before the size is known (a tuple, because one is made for every ranged read).

    ``first`` to ``last`` inclusive; ``last`` is ``None`` for an open range; with ``first`` ``None``, ``last`` is the
    length of a suffix.
    """

    first: int | None
    last: int | None

    def __str__(self) -> str:
        first, last = ("" if end is None else end for end in (self.first, self.last))
        return f"bytes={first}-{last}"

    @property
    def longest(self) -> float:
        """The most bytes that the range can have; infinite for an open range."""
        if self.last is None:
            return inf
        return self.last if self.first is None else self.last + 1 - self.first

    def resolve(self, size: int) -> tuple[int, int] | None:
        """``(start, stop)``, stop exclusive, in an object of ``size`` bytes; ``None`` if unsatisfiable (416)."""
        if self.first is None:
            start, stop = max(0, size - (self.last or 0)), size
        else:
            start, stop = self.first, size if self.last is None else min(size, self.last + 1)
        return (start, stop) if start < stop else None


def parse_range(value: str | None) -> ByteRange | None:
    """The range of a header; ``None`` if there is none, or it is not a single well-formed byte range."""
    if value is None:
        return None
    spec = _RANGE.fullmatch(value.strip())
    if spec is None:
        return None
    first, last = spec.groups()
    if first and last:
        start, stop = int(first), int(last)
        return ByteRange(start, stop) if start <= stop else None
    if not (first or last):
        return None
    return ByteRange(int(first) if first else None, int(last) if last else None)


def content_range(start: int, stop: int, size: int) -> str:
    """The Content-Range value of a 206 answer; ``stop`` exclusive."""
    return f"bytes {start}-{stop - 1}/{size}"


def unsatisfied_range(size: int) -> str:
    """The Content-Range value of a 416 answer."""
    return f"bytes */{size}"


def block_span(start: int, stop: int, block_size: int) -> range:
    """The numbers of the blocks that contain bytes ``start`` to ``stop`` (exclusive); empty for an empty range."""
    return range(start // block_size, -(-stop // block_size)) if stop > start else range(0)
