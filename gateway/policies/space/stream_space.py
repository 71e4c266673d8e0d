"""The pools of access streams in the plan: order by pattern, target by marginal benefit, release when a stream has ended.

A stream whose pattern is known is a pool. Its order is what its pattern calls for. Its first target is what the cache holds of
it, so that recognition evicts nothing. Then space moves once a minute to where a byte saves most (``streams/benefit.py``).
Datasets are decided on before; streams share what those leave, but for a tenth, which stays with ``default``: reads that are no
streams yet.

A random stream that was idle for longer than its time-to-live has ended: its target is 0 until it is read again. Nodes evict it
at once if others need the room. One of another pattern that was idle for an hour is no pool any more. What must be remembered is
when a stream was read last, and its counters at the last round; a leader that takes over goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.policies.datasets import CachingMode
from gateway.policies.eviction.lru import LeastRecentlyUsed
from gateway.policies.pools import GHOSTS, STREAM
from gateway.policies.space.plan import PoolOrder, WhyCaching
from gateway.policies.streams.benefit import (
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
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import MOST_DEPTH
from gateway.policies.streams.zone import StreamReport, ZoneStream

SHARE = 0.9
"""Part of the space that datasets leave which streams may have."""
MOST_POOLS = 64
"""Streams that are pools, those with most reads."""
FORGOTTEN = 3600.0
"""Seconds without a read after which a stream that has no time-to-live is no pool any more."""
_GRAIN = 10.0
"""Seconds to which the time of the last read is remembered, so that the plan is not written anew for every read."""


@dataclass(frozen=True, slots=True)
class RememberedStream:
    """A stream: when it was read last, its time-to-live, and its counters at the last round. Times in seconds, -1 for none."""

    read_at: float
    lifetime: float = -1.0
    accesses: int = 0
    ghost_hits: int = 0

    def ended(self, now: float) -> bool:
        """Whether it is to be released."""
        return 0 <= self.lifetime < now - self.read_at - _GRAIN


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """Of all streams that are pools; ``round_at`` is the time of the last round."""

    round_at: float = 0.0
    streams: Mapping[str, RememberedStream] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        rows = {name: [one.read_at, one.lifetime, one.accesses, one.ghost_hits] for name, one in self.streams.items()}
        return {"round_at": self.round_at, "streams": rows}

    @classmethod
    def from_json(cls, document: object) -> StreamMemory:
        """What ``to_json`` wrote; nothing if it is something else."""
        try:
            assert isinstance(document, Mapping)
            rows = {
                str(name): RememberedStream(float(read), float(lifetime), int(accesses), int(ghosts))
                for name, (read, lifetime, accesses, ghosts) in document["streams"].items()
            }
            return cls(float(document["round_at"]), rows)
        except (AssertionError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


def stream_orders(
    before: Mapping[str, PoolOrder], zone: Mapping[str, ZoneStream], room: int, memory: StreamMemory, now: float
) -> tuple[dict[str, PoolOrder], StreamMemory]:
    """The pools of streams by their names, and what is to be remembered.

    Args:
        before: the pools of the last plan.
        zone: what the nodes say of streams, by name.
        room: bytes that datasets leave.
        memory: of the last decision.
        now: seconds of a clock that all leaders share.
    """
    known = _remembered(before, zone, memory, now)
    room = int(SHARE * room)
    needs, orders = [], {}
    for name, one in known.items():
        last, stream = before.get(f"{STREAM}{name}"), zone.get(name, ZoneStream(name))
        order = _order(last, stream.seen)
        if one.ended(now):
            if stream.pool.bytes:
                orders[f"{STREAM}{name}"] = replace(order, caching=CachingMode.NONE, target=0)
            continue
        orders[f"{STREAM}{name}"] = order
        needs.append(_need(stream, order, one, room, now - memory.round_at))
    due = now - memory.round_at >= ROUND
    targets = shifted(needs, room) if due else {need.name: need.target for need in needs}
    scale = min(1.0, room / max(1, sum(targets.values())))
    for name, target in targets.items():
        orders[f"{STREAM}{name}"] = replace(orders[f"{STREAM}{name}"], target=max(1, int(scale * target)))
    return orders, _round(known, zone, now) if due else StreamMemory(memory.round_at, known)


def _remembered(
    before: Mapping[str, PoolOrder], zone: Mapping[str, ZoneStream], memory: StreamMemory, now: float
) -> dict[str, RememberedStream]:
    """The streams that are pools, or become some."""
    found: dict[str, RememberedStream] = {}
    told = {name: one for name, one in zone.items() if one.seen.pattern is not None}
    held = {name for name in memory.streams if f"{STREAM}{name}" in before}
    for name in sorted(held | set(told)):
        one = memory.streams.get(name)
        if name in told:
            seen = told[name].seen
            read_at = (now - seen.idle) // _GRAIN * _GRAIN
            one = RememberedStream(read_at, accesses=seen.accesses) if one is None else replace(one, read_at=read_at)
            one = replace(one, lifetime=-1.0 if seen.lifetime is None else round(seen.lifetime, 1))
        assert one is not None
        if one.lifetime >= 0 or now - one.read_at <= FORGOTTEN:
            found[name] = one
    reads = {name: zone[name].seen.accesses if name in zone else 0 for name in found}
    busiest = sorted(found, key=lambda name: (found[name].ended(now), -reads[name], name))
    return {name: found[name] for name in sorted(busiest[:MOST_POOLS])}


def _round(known: Mapping[str, RememberedStream], zone: Mapping[str, ZoneStream], now: float) -> StreamMemory:
    """With the counters of a round that ends now."""
    return StreamMemory(
        now,
        {
            name: one
            if name not in zone
            else replace(one, accesses=zone[name].seen.accesses, ghost_hits=zone[name].pool.ghost_hits)
            for name, one in known.items()
        },
    )


def _order(last: PoolOrder | None, seen: StreamReport) -> PoolOrder:
    if last is None:
        last = PoolOrder(CachingMode.FULL, 1, 1, WhyCaching.BENEFIT)
    order = last.order if seen.pattern is None else eviction_order(seen.pattern, seen.repeated)
    return replace(last, caching=CachingMode.FULL, order=order or LeastRecentlyUsed.name)


def _need(stream: ZoneStream, order: PoolOrder, known: RememberedStream, room: int, seconds: float) -> StreamNeed:
    seen, minimum = stream.seen, step_size(room)
    size, items = item_size(seen), item_count(seen)
    most = room
    if seen.pattern is Pattern.SEQUENTIAL and not seen.repeated:
        most = min(room, max(minimum, int(2 * MOST_DEPTH * size)))
    elif items:
        most = min(room, max(minimum, int(1.1 * size * items)))
    target = order.target or first_target(stream.pool.bytes, minimum, most)
    return StreamNeed(stream.name, target, min(minimum, most), most, value_of(stream, known, seconds))


def value_of(stream: ZoneStream, known: RememberedStream, seconds: float) -> float:
    """Seconds of waiting that a byte more saves per second, if a miss costs a second more than a hit."""
    seen = stream.seen
    if seen.pattern is None:
        return 0.0
    use = StreamUse(
        seen.pattern,
        seconds,
        max(0, seen.accesses - known.accesses),
        item_count(seen),
        max(0, stream.pool.ghost_hits - known.ghost_hits),
        GHOSTS * max(1, stream.held_by),
        seen.repeated,
    )
    return seconds_saved(marginal_benefit(use), item_size(seen), 1.0, 0.0)


def item_size(seen: StreamReport) -> float:
    """Bytes of a read, on average."""
    return seen.bytes / max(1, seen.accesses)


def item_count(seen: StreamReport) -> int:
    """Objects or blocks of a stream, as far as they are known: children, times the reads of a child that is a folder."""
    if seen.evidence is None:
        return 0
    each = max(1.0, seen.accesses / seen.draws) if seen.draws else 1.0
    return int(max(seen.evidence.count, seen.evidence.population) * each)
