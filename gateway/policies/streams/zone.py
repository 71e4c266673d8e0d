"""The streams of a zone: each node's report on the streams it sees and the pools it holds, and all reports combined.

A stream's reads may enter by several gateways, and its objects have homes on all nodes. So nodes that answer clients know the
pattern, and home nodes know the content, hits and misses of their pools. Thinned views give the same pattern (``pattern.py``);
the pattern with the most reads behind it, over all nodes, counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from gateway.policies.streams.lifetime import time_to_live
from gateway.policies.streams.pattern import Evidence, Pattern
from gateway.policies.streams.stream import Stream

MOST_STREAMS = 256
"""Streams in a node's report: the most recently read."""


@dataclass(frozen=True, slots=True)
class AheadReport:
    """Counts of a stream's children: loaded ahead, then read, and not read in time."""

    loaded: int = 0
    used: int = 0
    wasted: int = 0

    def plus(self, other: AheadReport) -> AheadReport:
        """The sum of both."""
        return AheadReport(self.loaded + other.loaded, self.used + other.used, self.wasted + other.wasted)


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A node's counts of one stream since it learned of it.

    ``draws`` are accesses, not counting those of a client that stays at one child. ``idle`` is in seconds, and so is
    ``lifetime``: how long the stream may be idle before it has ended; ``None`` for any time. ``repeated``: a scan that begins
    again and again. ``hit_seconds`` and ``miss_seconds``: waits of readers for hits and for misses. ``items``: the estimated
    number of its objects, and blocks of large ones; ``known_items``: how many were read or listed. ``held``: its bytes on the
    node, before it has a pool there.
    """

    pattern: Pattern | None = None
    evidence: Evidence | None = None
    accesses: int = 0
    hits: int = 0
    bytes: int = 0
    idle: float = 0.0
    draws: int = 0
    lifetime: float | None = None
    repeated: bool = False
    ahead: AheadReport = AheadReport()
    hit_seconds: float = 0.0
    miss_seconds: float = 0.0
    items: int = 0
    known_items: int = 0
    held: int = 0


UNREAD = 2
"""The assumed items of a stream per item read, unless a listing shows more: on average, half of a stream has been read during the
first epoch of a job, when nothing repeats."""


def stream_report(stream: Stream, pattern: Pattern | None, now: float) -> StreamReport:
    """The report on a stream whose ``pattern`` was recognised or set by a rule; ``now`` on its clock."""
    known = stream.listed if stream.counted else max(stream.listed, stream.seen, stream.blocks)
    probable = min(max(known, stream.population), UNREAD * stream.seen)
    return StreamReport(
        pattern,
        stream.evidence,
        stream.accesses,
        stream.hits,
        stream.bytes,
        max(0.0, now - stream.last_access),
        stream.draws,
        time_to_live(pattern, stream.gaps),
        stream.repeated,
        hit_seconds=stream.hit_seconds,
        miss_seconds=stream.miss_seconds,
        items=known if stream.counted or stream.blocks else max(known, probable),
        known_items=known,
    )


@dataclass(frozen=True, slots=True)
class PoolReport:
    """A node's pool of one stream, in bytes and blobs, with its counts of reads and blobs since it was made.

    ``ghost_hits`` are misses of recently evicted items.
    """

    bytes: int = 0
    blobs: int = 0
    target: int = 0
    hits: int = 0
    misses: int = 0
    evicted_bytes: int = 0
    ghost_hits: int = 0


@dataclass(frozen=True, slots=True)
class NodeStreams:
    """One node's report, by the streams' names (``bucket/prefix``)."""

    streams: Mapping[str, StreamReport] = field(default_factory=dict)
    pools: Mapping[str, PoolReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ZoneStream:
    """One stream in all reports. ``seen_by`` are the nodes that its clients use, ``held_by`` is the number of nodes with a pool
    of it."""

    name: str
    seen: StreamReport = field(default_factory=StreamReport)
    pool: PoolReport = field(default_factory=PoolReport)
    seen_by: tuple[str, ...] = ()
    held_by: int = 0


def zone_streams(nodes: Mapping[str, NodeStreams]) -> dict[str, ZoneStream]:
    """The streams that any node reports, by name."""
    seen: dict[str, dict[str, StreamReport]] = {}
    held: dict[str, list[PoolReport]] = {}
    for node in sorted(nodes):
        for name, report in nodes[node].streams.items():
            seen.setdefault(name, {})[node] = report
        for name, pool in nodes[node].pools.items():
            held.setdefault(name, []).append(pool)
    return {
        name: ZoneStream(name, _seen(seen.get(name, {}).values()), _held(pools), tuple(seen.get(name, ())), len(pools))
        for name in sorted({*seen, *held})
        for pools in [held.get(name, [])]
    }


def _seen(reports: Iterable[StreamReport]) -> StreamReport:
    known = sorted(reports, key=lambda report: report.accesses)
    if len(known) < 2:
        return known[0] if known else StreamReport()
    reads = {pattern: sum(report.accesses for report in known if report.pattern is pattern) for pattern in Pattern}
    pattern = max(reads, key=lambda pattern: reads[pattern]) if any(reads.values()) else None
    return StreamReport(
        pattern,
        [report for report in known if report.pattern is pattern][-1].evidence,
        sum(report.accesses for report in known),
        sum(report.hits for report in known),
        sum(report.bytes for report in known),
        min(report.idle for report in known),
        sum(report.draws for report in known),
        max((report.lifetime for report in known if report.lifetime is not None), default=None),
        any(report.repeated for report in known),
        AheadReport(*(sum(getattr(report.ahead, counter.name) for report in known) for counter in fields(AheadReport))),
        sum(report.hit_seconds for report in known),
        sum(report.miss_seconds for report in known),
        max(report.items for report in known),
        max(report.known_items for report in known),
        sum(report.held for report in known),
    )


def _held(pools: Sequence[PoolReport]) -> PoolReport:
    if len(pools) < 2:
        return pools[0] if pools else PoolReport()
    return PoolReport(*(sum(getattr(report, counter.name) for report in pools) for counter in fields(PoolReport)))
