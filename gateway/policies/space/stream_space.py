"""The pools of access streams in the plan: order by pattern, target by marginal benefit, release when a stream has ended.

A stream whose pattern is known is a pool. Its order follows from its pattern. Its first target is its present size in the cache,
so that recognition evicts nothing. Then space moves once a minute to where a byte saves most (``streams/benefit.py``). Datasets
are decided first, with the bids of streams in the same ledger (``allocation.py``). Streams share the space that datasets leave,
except a tenth, which stays with ``default`` for reads that are not streams yet.

A stream bids for the bytes that are known to exist: bytes that were read, listed or cached. Until a listing shows the stream's
size, its pool may be twice as large, which takes nothing from datasets. A stream that outgrows its pool gets more free space at
once.

Gateways measure what a byte saves: how many more hits a larger pool would have had, and how much longer a miss waits for its
answer than a hit. A stream without misses yet counts as the average of the others.

A random stream that was idle for longer than its time-to-live has ended: its target is 0 until it is read again, and other
streams get its space at once. Nodes evict it when other pools can use the room. A stream of another pattern pauses after nearly
as long: other pools take its space, blob by blob, before they replace their own blobs, and it starts again with the rest. After
an hour its pool is removed.

Nodes may disagree about a pattern, and zone reports change with the reporting nodes. So a pool keeps its pattern until the zone
has reported the same new one for a window of reads. For each stream, the memory has the time of its last read, its pattern, and
its counters and worth at the last round; a new leader continues from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.policies.eviction.loop import Loop
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import PAUSED, STREAM, ghost_window
from gateway.policies.space.allocation import Bid
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.prices import SECONDS, UnitPrices
from gateway.policies.streams.benefit import (
    MARGIN,
    ROUND,
    StreamNeed,
    StreamUse,
    eviction_order,
    first_target,
    marginal_benefit,
    seconds_saved,
    shifted,
    step_size,
)
from gateway.policies.streams.pattern import WINDOW, Pattern
from gateway.policies.streams.prefetch import MOST_DEPTH
from gateway.policies.streams.zone import StreamReport, ZoneStream

SHARE = 0.9
"""Streams' share of the space that datasets leave."""
SMALLEST_POOL = 100
"""Minimum of a pool, as a share of the space of all streams."""
ASSUMED_EXTRA = 0.1
"""Seconds that a miss is assumed to take longer than a hit, until a stream has missed."""
MOST_POOLS = 64
"""The most streams with pools; those with most reads are chosen."""
FORGOTTEN = 3600.0
"""Seconds without a read after which a stream that is not random loses its pool."""
_YOUNG = 10 * WINDOW
"""Up to this many reads, a stream that outgrows its pool gets an equal part like a new one: its savings are hardly known."""
_SLACK = 1.1
"""Factor on the useful size, which is an estimate: a mean size times a number."""
_GRAIN = 10.0
"""Seconds between two updates of a stream's last read, so that not every read rewrites the plan."""


class RememberedStream(NamedTuple):
    """A stream as of the last decision. Times in seconds, -1 for none.

    ``accesses`` and ``ghost_hits`` are counters at the last round, ``value`` is the worth of a byte then (``seconds_saved``).
    ``pattern`` is in force; the zone has reported ``other`` since the count of reads was ``since``. ``reads`` is the total when
    ``read_at`` was noted: reports age on their way, so idleness alone would revive an ended stream for a moment. A tuple, because
    streams are most of the memory, and JSON without names is half as long.
    """

    read_at: float
    lifetime: float = -1.0
    accesses: int = 0
    ghost_hits: int = 0
    value: float = 0.0
    pattern: str = ""
    other: str = ""
    since: int = 0
    reads: int = 0

    def ended(self, now: float) -> bool:
        """Whether its pool is released, or paused if it is not random."""
        return 0 <= self.lifetime < now - self.read_at


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """The memory of all streams with pools; ``round_at`` is the time of the last round."""

    round_at: float = 0.0
    streams: Mapping[str, RememberedStream] = field(default_factory=dict)


def stream_orders(
    before: Mapping[str, PoolOrder],
    zone: Mapping[str, ZoneStream],
    room: int,
    memory: StreamMemory,
    now: float,
    prices: UnitPrices = SECONDS,
) -> tuple[dict[str, PoolOrder], StreamMemory]:
    """The pools of streams by name, and the next memory.

    Args:
        before: the pools of the last plan.
        zone: the nodes' reports on streams, by name.
        room: bytes that datasets leave.
        memory: of the last decision.
        now: seconds of a clock that all leaders share.
        prices: of reads and waiting.
    """
    known, room = _remembered(before, zone, memory, now), int(SHARE * room)
    round_at = min(memory.round_at, now)
    due = now - round_at >= ROUND
    if due:
        known = _valued(known, zone, now - round_at, prices)
    needs, orders, changed = [], {}, due
    for name, remembered in known.items():
        last, stream = before.get(f"{STREAM}{name}"), zone.get(name, ZoneStream(name))
        changed = changed or remembered.ended(now) == bool(last is not None and last.target > PAUSED)
        order = _order(last, remembered, stream.seen)
        if remembered.ended(now):
            if remembered.pattern != Pattern.RANDOM:
                orders[f"{STREAM}{name}"] = replace(order, target=PAUSED)
            elif stream.pool.bytes:
                orders[f"{STREAM}{name}"] = replace(order, caching=CachingMode.NONE, target=0)
            continue
        orders[f"{STREAM}{name}"] = order
        again = last is not None and order.order == Loop.name != last.order
        new = last is None or last.target <= PAUSED or again
        changed = changed or new
        needs.append(replace(_need(stream, order, remembered, room), new=new))
    growing = _growing(needs, zone, room)
    changed = changed or bool(growing)
    needs = [replace(need, new=need.new or growing.get(need.name, False)) for need in needs]
    # A stream that begins or ends changes the free space, which is given at once; occupied space moves in rounds.
    step = step_size(room) if due else 0
    targets = shifted(needs, room, step) if changed else {need.name: need.target for need in needs}
    scale = min(1.0, room / max(1, sum(targets.values())))
    for name, target in targets.items():
        orders[f"{STREAM}{name}"] = replace(orders[f"{STREAM}{name}"], target=max(1, int(scale * target)))
    return orders, StreamMemory(now if due else round_at, known)


def stream_bids(zone: Mapping[str, ZoneStream], room: int, memory: StreamMemory, now: float) -> list[Bid]:
    """Bids of the streams for their known bytes: the savings as of the last round, minus a margin for change.

    Args:
        zone: the nodes' reports on streams, by name.
        room: bytes available.
        memory: of the last decision.
        now: seconds of the leaders' clock.
    """
    bids = []
    for name, remembered in memory.streams.items():
        if name in zone and remembered.value > 0 and not remembered.ended(now):
            most = min(_most(zone[name], remembered, room), known_bytes(zone[name]))
            bids.append(Bid(f"{STREAM}{name}", most, remembered.value * most / MARGIN))
    return bids


def _remembered(
    before: Mapping[str, PoolOrder], zone: Mapping[str, ZoneStream], memory: StreamMemory, now: float
) -> dict[str, RememberedStream]:
    """The streams that have pools, or get one now. Setting a clock back does not make a stream last longer."""
    kept: dict[str, RememberedStream] = {}
    reported = {name: stream for name, stream in zone.items() if stream.seen.pattern is not None}
    held = {name for name in memory.streams if f"{STREAM}{name}" in before}
    for name in sorted(held | set(reported)):
        remembered = memory.streams.get(name)
        if remembered is not None:
            remembered = remembered._replace(read_at=min(remembered.read_at, now // 1.0))
        if name in reported:
            seen = reported[name].seen
            if remembered is None:
                remembered = RememberedStream(_read_at(seen, now), accesses=seen.accesses, reads=seen.accesses)
            remembered = remembered._replace(lifetime=-1.0 if seen.lifetime is None else round(seen.lifetime, 1))
            remembered = _believing(_read_again(remembered, seen, now), seen)
        assert remembered is not None
        if (remembered.lifetime >= 0 and remembered.pattern == Pattern.RANDOM) or now - remembered.read_at <= FORGOTTEN:
            kept[name] = remembered
    reads = {name: zone[name].seen.accesses if name in zone else 0 for name in kept}
    busiest = sorted(kept, key=lambda name: (kept[name].ended(now), -reads[name], name))
    return {name: kept[name] for name in sorted(busiest[:MOST_POOLS])}


def _read_again(remembered: RememberedStream, seen: StreamReport, now: float) -> RememberedStream:
    """Update the time of its last read: occasionally while it is read, exactly once it is idle, and before an outdated time would
    end it."""
    read_at = _read_at(seen, now)
    due = seen.idle >= _GRAIN or read_at >= remembered.read_at + _GRAIN or remembered.ended(now)
    if seen.accesses == remembered.reads or read_at <= remembered.read_at or not due:
        return remembered
    return remembered._replace(read_at=read_at, reads=seen.accesses)


def _read_at(seen: StreamReport, now: float) -> float:
    """The time of the last read, in whole seconds, because the plan is text."""
    return (now - seen.idle) // 1.0


def _believing(remembered: RememberedStream, seen: StreamReport) -> RememberedStream:
    """Adopt another pattern only after a window of reads in which the zone reported nothing else."""
    said = "" if seen.pattern is None else seen.pattern.value
    if not remembered.pattern or said == remembered.pattern:
        return remembered._replace(pattern=said, other="", since=0)
    if said != remembered.other or seen.accesses < remembered.since:
        return remembered._replace(other=said, since=seen.accesses)
    if seen.accesses < remembered.since + WINDOW:
        return remembered
    return remembered._replace(pattern=said, other="", since=0)


def _valued(
    known: Mapping[str, RememberedStream], zone: Mapping[str, ZoneStream], seconds: float, prices: UnitPrices
) -> dict[str, RememberedStream]:
    """Update each pool's value per byte in the round of ``seconds`` that ends now, and its counters."""
    usual = _extra(zone[name].seen for name in known if name in zone)
    valued = dict(known)
    for name in known.keys() & zone.keys():
        remembered, stream = known[name], zone[name]
        valued[name] = remembered._replace(
            accesses=stream.seen.accesses,
            ghost_hits=stream.pool.ghost_hits,
            value=value_of(stream, remembered, seconds, usual, prices),
        )
    return {name: valued[name] for name in sorted(valued)}


def _extra(streams: Iterable[StreamReport]) -> float:
    """Seconds that a miss takes longer than a hit; ``ASSUMED_EXTRA`` before the first miss."""
    those = list(streams)
    misses, hits = sum(report.accesses - report.hits for report in those), sum(report.hits for report in those)
    waited = sum(report.miss_seconds for report in those)
    if not misses or not waited:
        return ASSUMED_EXTRA
    return max(0.0, waited / misses - sum(report.hit_seconds for report in those) / max(1, hits))


def _order(last: PoolOrder | None, remembered: RememberedStream, seen: StreamReport) -> PoolOrder:
    if last is None:
        last = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT)
    order = last.order if seen.pattern is None else eviction_order(Pattern(remembered.pattern), seen.repeated)
    return replace(last, caching=CachingMode.FULL, order=order or LeastRecentlyUsed.name)


def _need(stream: ZoneStream, order: PoolOrder, known: RememberedStream, room: int) -> StreamNeed:
    minimum, most = room // SMALLEST_POOL, _most(stream, known, room)
    target = (
        order.target if order.target > PAUSED else first_target(max(stream.pool.bytes, stream.seen.held), minimum, most)
    )
    return StreamNeed(stream.name, target, min(minimum, most), most, known.value)


def _growing(needs: Sequence[StreamNeed], zone: Mapping[str, ZoneStream], room: int) -> dict[str, bool]:
    """Outgrown pools to enlarge now, by name; true for those that get at least an equal part."""
    equal, spare = room // max(1, len(needs)), room - sum(need.target for need in needs)
    growing = {}
    for need in needs:
        if need.new or need.name not in zone or known_bytes(zone[need.name]) <= need.target:
            continue
        if need.most < _SLACK * need.target:
            continue  # a mean size that drifts is no reason for another plan
        young = zone[need.name].seen.accesses < _YOUNG and need.target < equal
        if young or spare >= room // SMALLEST_POOL:
            growing[need.name] = young
    return growing


def _most(stream: ZoneStream, known: RememberedStream, room: int) -> int:
    """Bytes that a stream can use. Until a listing shows the number of items, it is taken as twice the number read."""
    seen = stream.seen
    if known.pattern == Pattern.SEQUENTIAL and not seen.repeated:
        return min(room, int(2 * MOST_DEPTH * item_size(seen)))
    return min(room, max(known_bytes(stream), int(_SLACK * item_size(seen) * seen.items)))


def known_bytes(stream: ZoneStream) -> int:
    """Bytes of a stream that are known to exist: of the items that were read or listed, or those that the cache holds."""
    seen = stream.seen
    return max(int(item_size(seen) * seen.known_items), seen.held, stream.pool.bytes)


def value_of(
    stream: ZoneStream,
    known: RememberedStream,
    seconds: float,
    usual: float = ASSUMED_EXTRA,
    prices: UnitPrices = SECONDS,
) -> float:
    """Seconds of waiting that one more byte saves per second; with prices, money, counting a reader as one GPU.

    Args:
        stream: as all nodes see it now.
        known: the stream's memory, with counters from ``seconds`` ago.
        seconds: since then.
        usual: seconds that a miss takes longer than a hit, if this stream had no misses.
        prices: of reads and waiting.
    """
    seen = stream.seen
    if not known.pattern:
        return 0.0
    use = StreamUse(
        Pattern(known.pattern),
        seconds,
        max(0, seen.accesses - known.accesses),
        seen.items,
        max(0, stream.pool.ghost_hits - known.ghost_hits),
        _ghosts(stream),
        seen.repeated,
    )
    extra = _extra([seen]) if seen.miss_seconds else usual
    size = item_size(seen)
    return seconds_saved(marginal_benefit(use), size, prices.worth(extra, 1, size), 0.0)


def _ghosts(stream: ZoneStream) -> int:
    """Items in the window of evicted ones: at most the stream's items outside the pool."""
    nodes, items = max(1, stream.held_by), stream.seen.items
    window = nodes * ghost_window(stream.pool.blobs // nodes)
    return max(1, min(window, items - stream.pool.blobs)) if items else window


def item_size(seen: StreamReport) -> float:
    """Bytes of a read, on average."""
    return seen.bytes / max(1, seen.accesses)
