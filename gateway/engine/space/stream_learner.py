"""The access streams of a node: every worker hands over its clients' reads, and the keeper learns from them.

The keeper receives the reads of all workers (store/shared/observation.py), folds them into the tree, and reports to the zone
which streams it sees and what the node's pools hold of them. A worker that becomes the keeper starts with an empty tree and
learns the streams again within a few hundred reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.base import metrics
from gateway.engine.space.held_results import report_of
from gateway.engine.space.stream_prefetch import PrefetchLinks, StreamPrefetcher
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.access import ObjectRead
from gateway.model.s3.ranges import block_span
from gateway.policies.pools import STREAM, stream_bucket, stream_place
from gateway.policies.reads.rules import OFF, Rules
from gateway.policies.streams.ahead import ReadAhead
from gateway.policies.streams.instructions import pattern_of
from gateway.policies.streams.pattern import WINDOW, Pattern
from gateway.policies.streams.prefetch import PoolRoom
from gateway.policies.streams.stream import Stream
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.wholes import WholeStreams
from gateway.policies.streams.zone import MOST_STREAMS, NodeStreams, StreamReport, stream_report
from gateway.store.index.pool_rows import PoolRow
from gateway.store.shared.accesses import ObservedReads
from gateway.store.shared.observation import ReadChannel
from gateway.store.store import Store

HAND_OVER = 0.25
"""Seconds between two hand-overs of a worker."""
_MOST = 4096
"""Reads that the keeper takes in one turn."""
_AT_ONCE = 100
"""Blocks folded before the event loop serves requests again: about half a millisecond."""
_LATEST_BLOCKS = 2 * WINDOW
"""Blocks folded of a single read, namely the last ones: enough to make the object a stream."""
_MOST_BLOCKS = 8192
"""Blocks folded in one turn: about 40 ms. Reads beyond them are dropped."""
_MOST_LOOKED_AT = 20_000
"""Maximum objects of a new stream whose cached bytes are summed: some 100 ms in a thread."""
_REPORT_EVERY = 4
"""Turns between two reports of the keeper."""


ReadListener = Callable[[Sequence[ObjectRead]], None]
"""Receives every read that reaches the keeper."""


@dataclass(frozen=True, slots=True)
class StreamLinks:
    """The rest of the gateway, as used here.

    ``rules`` are those in force, ``send`` sends the zone what this node sees, ``target`` gives the bytes that the plan grants a
    pool on all nodes, ``prefetch`` loads ahead of streams, ``None`` if nothing does. ``record`` receives every read that reaches
    the keeper.
    """

    rules: Callable[[], Rules]
    block_size: int
    send: Callable[[NodeStreams], Awaitable[None]]
    target: Callable[[str], int]
    prefetch: PrefetchLinks | None = None
    record: ReadListener | None = None


class StreamLearner:
    """Hands over one worker's reads or, in the keeper, learns streams from those of all workers.

    Args:
        store: of the node.
        observed: the reads of this worker.
        channel: to the other workers.
        links: to the rest of the gateway.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        observed: ObservedReads,
        channel: ReadChannel,
        links: StreamLinks,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.tree = AccessStreamTree()
        self.ahead = None if links.prefetch is None else ahead_of(self.tree, links.prefetch)
        self.whole = None if links.prefetch is None else whole_streams(self.tree, links.prefetch)
        self._store = store
        self._observed = observed
        self._channel = channel
        self._links = links
        self._now = now
        self._turns = 0
        self._reported = NodeStreams()
        self._held: dict[str, int] = {}
        self._without = -1
        """The definitions of pools as of which the node has no pool of a stream; -1: unknown."""
        for result in ("recorded", "dropped"):
            metrics.STREAM_ACCESSES.labels(result)

    async def run_once(self) -> None:
        """Hand over the reads of this worker's clients or, in the keeper, learn from those of all workers."""
        reads, dropped = self._observed.take_reads()
        if self._store.directory.locked:
            reads = self._gather(reads)
            folded = await self._fold(reads)
            dropped += len(reads) - folded
            if self.ahead is not None:
                self.ahead.run_once()
            if self.whole is not None:
                self.whole.run_once()
            if folded:
                metrics.STREAM_ACCESSES.labels("recorded").inc(folded)
            self._turns += 1
            if self._turns % _REPORT_EVERY == 0:
                await self._report()
        else:
            self._without = -1  # another worker may define pools
            self._channel.stop_receiving()
            dropped += len(reads) - self._channel.send(reads)
        if dropped:
            metrics.STREAM_ACCESSES.labels("dropped").inc(dropped)

    def _gather(self, reads: list[ObjectRead]) -> list[ObjectRead]:
        """Add the other workers' reads to those of this one, and record all in the profiles."""
        self._channel.open()
        reads += self._channel.receive(_MOST)
        if self._links.record is not None:
            self._links.record(reads)
        return reads

    async def close(self) -> None:
        """Hand over or record the reads since the last turn, and stop loading."""
        reads, _ = self._observed.take_reads()
        if self._store.directory.locked:
            self._gather(reads)
        else:
            self._channel.send(reads)
        for loader in (self.ahead, self.whole):
            if loader is not None:
                await loader.close()

    async def _fold(self, reads: list[ObjectRead]) -> int:
        """Learn from reads; returns how many could be processed in the available time."""
        since = 0
        for number, read in enumerate(reads):
            if since >= _MOST_BLOCKS:
                return number
            if self._links.rules().for_path(read.key.path).pattern == OFF:
                continue
            for arguments in _records(read, self._links.block_size):
                if self.ahead is not None:
                    self.ahead.machine.read(arguments[0], read, *arguments[2:4])
                stream = self.tree.record(*arguments)
                if self.whole is not None:
                    self.whole.machine.read(stream, read, arguments[2])
                since += 1
                if since % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return len(reads)

    async def _report(self) -> None:
        definitions, latest = self._store.pools.definitions, self._latest()
        if definitions == self._without and not latest and self._reported == NodeStreams():
            return
        pools = await self._store.pools.usage()
        # Without any rows the index could not be read.
        has = not pools or any(row.pool.name.startswith(STREAM) for row in pools)
        self._without = -1 if has or latest else definitions
        if self.whole is not None:
            self.whole.machine.look(self._rooms(pools))
        report = self.report(pools, await self._unpooled(pools))
        patterns = [stream.pattern for stream in report.streams.values()]
        for pattern in Pattern:
            metrics.STREAMS.labels(pattern.value).set(patterns.count(pattern))
        if report == self._reported == NodeStreams():
            return
        try:
            await self._links.send(report)
            self._reported = report
        except DOWN:
            return  # sent again with the next report

    async def _unpooled(self, pools: Iterable[PoolRow]) -> Mapping[str, int]:
        """Cached bytes of streams that have a pattern but no pool here; looked up once for each."""
        pooled = {row.pool.name.removeprefix(STREAM) for row in pools if not row.retired}
        waiting = [stream.name for stream in self._latest() if stream.pattern is not None and stream.name not in pooled]
        self._held = {name: self._held[name] for name in waiting if name in self._held}
        for name in waiting:
            if name not in self._held:
                self._held[name] = await self._store.pools.held_below(stream_place(name), _MOST_LOOKED_AT)
        return self._held

    def _latest(self) -> list[Stream]:
        """The streams in the node's report."""
        return sorted(self.tree.streams(), key=lambda stream: -stream.last_access)[:MOST_STREAMS]

    def report(self, pools: list[PoolRow], unpooled: Mapping[str, int]) -> NodeStreams:
        """This node's report on streams and their pools; ``unpooled``: bytes of streams without a pool."""
        held = {
            row.pool.name.removeprefix(STREAM): report_of(row)
            for row in pools
            if row.pool.name.startswith(STREAM) and not row.retired
        }
        seen = {stream.name: self._seen(stream, unpooled.get(stream.name, 0)) for stream in self._latest()}
        return NodeStreams(seen, held)

    def _rooms(self, pools: Iterable[PoolRow]) -> dict[str, PoolRoom]:
        """The room in the fleet's pools of streams; this node has a part of it."""
        return {
            row.pool.name.removeprefix(STREAM): PoolRoom(row.pool.target, row.ledger.size).spread_over(
                self._links.target(row.pool.name)
            )
            for row in pools
            if row.pool.name.startswith(STREAM) and not row.retired and row.pool.target
        }

    def _seen(self, stream: Stream, held: int) -> StreamReport:
        seen = replace(stream_report(stream, pattern_of(stream, self._links.rules()), self._now()), held=held)
        if self.ahead is None or self.whole is None:
            return seen
        return replace(seen, ahead=self.ahead.machine.report(stream.name).plus(self.whole.machine.report(stream.name)))


def ahead_of(tree: AccessStreamTree, links: PrefetchLinks) -> StreamPrefetcher[ReadAhead]:
    """Loads ahead of the scans that a tree sees."""
    return StreamPrefetcher(ReadAhead(tree, links.rights, links.block_size, links.most_bytes), links)


def whole_streams(tree: AccessStreamTree, links: PrefetchLinks) -> StreamPrefetcher[WholeStreams]:
    """Loads the random streams that a tree sees."""
    return StreamPrefetcher(WholeStreams(tree, links.rights, links.block_size), links)


def _records(read: ObjectRead, block_size: int) -> Iterator[tuple[str, str, int, int, float, int, bool, int, float]]:
    """The records of a read for the tree, block by block; each block is charged the same wait."""
    key, start, stop, size, hit, at, _, client, waited = read
    bucket, blocks = stream_bucket(key), max(1, -(-size // block_size))
    numbers = block_span(start, stop, block_size) or range(1)
    for number in numbers[-_LATEST_BLOCKS:]:
        count = min(stop, (number + 1) * block_size) - max(start, number * block_size)
        yield bucket, key.key, number, blocks, at, client, hit, count, waited / len(numbers)
