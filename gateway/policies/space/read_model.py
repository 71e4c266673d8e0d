"""The time that a reader needs for one element from the cache: a line, latency plus time per byte (Cachew, ATC 2022, section
4.4).

The paper's g infers the read time of b bytes from its file system's throughput. Here the readers measure it: the workers of
pipelines report their time per element, from the request to the decoded element. So the line covers the network, the checksum and
the decoding as well as the gateway's time. A worker that is ahead of its trainer waits between two reads; that does not count.

Where the paper is silent:

- *Reading ahead.* A worker reads its next elements while it computes. Only the processor time of a read slows the computation
  down; waiting for network and gateway costs nothing unless the computation ends first. So readers also report how long their
  processors were busy.
- *Reports are summed* by tenant and by size of an element in powers of two. When a size has ``ENOUGH`` elements, its sums are
  halved before more are added, so that the last reads count most. Each tenant has its own sums: a report changes no other
  tenant's model.
- *Small elements count as much as large ones.* Errors of the line are weighted by the time of a typical read of that size.
- *Few sizes were read.* Reads of one size cannot tell latency from time per byte. So the fit begins with a typical line, which
  any read outweighs. Slow small elements raise the latency, slow large ones the time per byte. The typical line is fast: if
  stored results do not pay, their reads correct it; if none were stored, nothing would ever be measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

ENOUGH = 100_000
"""Elements of one size whose sums are kept at full weight."""


@dataclass(frozen=True, slots=True)
class ReadModel:
    """Seconds that reading one element from the cache takes: ``latency + bytes x per_byte``.

    Args:
        latency: seconds.
        per_byte: seconds.
        busy: processor seconds per second of reading; more than 1 if readers run in parallel.
    """

    latency: float
    per_byte: float
    busy: float = 1.0

    def seconds(self, size: float) -> float:
        """Seconds for an element of ``size`` bytes."""
        return self.latency + size * self.per_byte


TYPICAL = ReadModel(0.0002, 1e-9, 0.5)
"""A fifth of a millisecond and a gigabyte per second: a worker and a gateway on one idle machine."""
_EVEN_SIZE = 2**19
"""Bytes of an element whose time depends equally on latency and time per byte."""


class ReadSums(NamedTuple):
    """Elements of similar size that were read from the cache: their number, bytes, seconds, and processor seconds."""

    elements: float
    bytes: float
    seconds: float
    busy: float


_FEW = 0.1
"""The number of elements whose reads count as much as the typical line."""
_NOTHING = ReadSums(_FEW, 0, _FEW * TYPICAL.latency, _FEW * TYPICAL.busy * TYPICAL.latency)
"""Typical reads of elements without bytes, which take part in every fit."""
_TRUST = _FEW * (_EVEN_SIZE / TYPICAL.latency) ** 2
"""Weight of the typical time per byte in a fit."""


def size_class(reads: ReadSums) -> int:
    """The size class of at least one read: its elements have fewer than ``2**class`` bytes, and at least half as many."""
    return int(reads.bytes / reads.elements).bit_length()


def added(before: ReadSums | None, reads: ReadSums) -> ReadSums:
    """The sums of a class of sizes after more reads of it."""
    if before is None:
        return reads
    keep = 0.5 if before.elements >= ENOUGH else 1.0
    return ReadSums(*(keep * old + new for old, new in zip(before, reads, strict=True)))


def fit_reads(reads: Collection[ReadSums]) -> ReadModel:
    """The line that fits these reads best, by least squares over their means.

    Args:
        reads: sums over reads of similar sizes, or single reads; each of at least one element.

    Returns:
        A line whose latency and time per byte are not negative: a negative value is replaced by zero.
    """
    known = (*reads, _NOTHING)
    busy = sum(sums.busy for sums in known) / sum(sums.seconds for sums in known)
    means = [(sums.elements, sums.bytes / sums.elements, sums.seconds / sums.elements) for sums in known]
    samples = [(elements / TYPICAL.seconds(size) ** 2, size, seconds) for elements, size, seconds in means]
    count = sum(weight for weight, _, _ in samples)
    mean_size = sum(weight * size for weight, size, _ in samples) / count
    mean_seconds = sum(weight * seconds for weight, _, seconds in samples) / count
    spread = sum(weight * (size - mean_size) ** 2 for weight, size, _ in samples)
    common = sum(weight * (size - mean_size) * (seconds - mean_seconds) for weight, size, seconds in samples)
    per_byte = max(0.0, (common + _TRUST * TYPICAL.per_byte) / (spread + _TRUST))
    latency = mean_seconds - per_byte * mean_size
    if latency < 0:
        squares = sum(weight * size * size for weight, size, _ in samples)
        return ReadModel(0.0, sum(weight * size * seconds for weight, size, seconds in samples) / squares, busy)
    return ReadModel(latency, per_byte, busy)
