"""Which prefixes cause requests to the origin, and why: reads that were not plain hits, by folder and reason.

A folder is the bucket with at most two folders of the key: ``imagenet/train/`` has a thousand classes below it, and an operator
warms, pins or writes rules for the folder, not for one class. Counts are of the last minutes: two windows follow each other, so
that a report always covers at least one whole window once the gateway has run for that long.

Reads that were revalidated or moved count too: their bytes came from a cache, and they waited for the origin or a peer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.model.outcomes import Reason
from gateway.policies.health.heaviest import Heaviest

WINDOW = 300.0
"""Seconds of one window."""
_KEPT = 256
"""The minimum number of pairs of folder and reason that a worker counts."""
_TOLD = 100
"""Rows of a report."""
_NO_READ = frozenset({Reason.NOT_A_READ, Reason.SUBRESOURCE, Reason.INVALID, Reason.RATE_LIMIT})
"""Reasons of requests that no cache could answer."""


class MissedPrefix(NamedTuple):
    """Reads below one folder that were not plain hits for one reason: how many, and their bytes."""

    bucket: str
    prefix: str
    reason: str
    requests: int
    bytes: int


class MissReport(NamedTuple):
    """The counts of a worker within the last ``seconds``, the most frequent first."""

    seconds: float
    rows: list[MissedPrefix]


def folder_of(key: str) -> str:
    """The first two folders of a key; empty if it is in none."""
    first = key.find("/")
    second = key.find("/", first + 1) if first >= 0 else -1
    return key[: max(first, second) + 1]


class MissTally:
    """Counts the misses of one worker. ``now``: when it begins, in seconds of any clock."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._before: Heaviest[tuple[str, str, str]] | None = None
        self._since: Heaviest[tuple[str, str, str]] = Heaviest(_KEPT)

    def add(self, bucket: str, key: str, reason: Reason, size: int) -> None:
        """Count a read that was not a plain hit, with the bytes that were sent."""
        if reason not in _NO_READ:
            self._since.add((bucket, folder_of(key), reason.value), size)

    def report(self, now: float) -> MissReport:
        """The counts of this window and the one before; begins a new window when it is due."""
        length = WINDOW if self._before is not None else 0.0
        report = MissReport(round(now - self._began + length, 3), self._rows())
        if now - self._began >= WINDOW:
            self._before, self._since, self._began = self._since, Heaviest(_KEPT), now
        return report

    def _rows(self) -> list[MissedPrefix]:
        parts = [window.top(_TOLD) for window in (self._since, self._before) if window is not None]
        return added(MissedPrefix(*heavy.key, heavy.seen, heavy.size) for part in parts for heavy in part)[:_TOLD]


def added(rows: Iterable[MissedPrefix]) -> list[MissedPrefix]:
    """Rows of several windows or workers, one for each folder and reason, the most frequent first."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for bucket, prefix, reason, requests, size in rows:
        known = sums.get((bucket, prefix, reason), (0, 0))
        sums[bucket, prefix, reason] = known[0] + requests, known[1] + size
    merged = [MissedPrefix(*key, *counts) for key, counts in sums.items()]
    return sorted(merged, key=lambda row: (-row.requests, row.bucket, row.prefix, row.reason))
