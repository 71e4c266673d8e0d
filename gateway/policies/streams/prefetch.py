"""Prefetch: decides what to load before it is read, by the pattern of its stream (IGTCache, section 3.3).

- *Sequential*: the next siblings, 4 at first and more while they are used. Below a sibling, only the paths that were read below
  at least 0.8 of its predecessors are loaded (Figure 7): for a job that reads one place of every month, the other places are not
  loaded.
- *Random*: the whole stream, if its pool may hold half of it. At first, no more bytes are loaded than clients have read; up to
  four times as many once loaded data is read. Each read that missed allows looking up at most four objects. So a few random reads
  of a large prefix load little, and nothing is looked up while readers hit.
- *Skewed*: nothing.
- Objects that are not streams yet: 4 blocks after 4 consecutive ones, as JuiceFS does.

Data loaded and not read is waste. An ``AheadOf`` that wastes too much stops, and tries again much later. One that finds
everything cached already also stops, until a reader misses. A ``WholeLoad`` is judged by the hits that random reads would have:
if its loads stay unread while other objects of the stream are read, it loads the wrong ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.policies.reads.granularity import IN_A_ROW
from gateway.policies.streams.instructions import AheadBytes
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.stream import Segment
from gateway.policies.streams.tree import Tail
from gateway.policies.streams.zone import AheadReport

DEPTH = 4
"""Siblings loaded ahead initially."""
MOST_DEPTH = 64
MOST_AHEAD = 256 * 1024**2
"""The most unread bytes loaded ahead of a sequential stream."""
PART_AHEAD = 32
"""The most unread bytes loaded ahead, as a share of the cache."""
LEAST_PROBABILITY = 0.8
"""A path is loaded below the next sibling if it was read below this share of the predecessors."""
PREDECESSORS = 10
"""The number of siblings from which reads below the next one are predicted."""
WHOLE_STREAM = 0.5
"""Share of a random stream that its pool must be able to hold for the stream to be loaded."""
JUDGED = 32
"""Loads after which accuracy is judged; as many loads in a row of cached items stop prefetching until a miss."""
LEAST_ACCURACY = 0.25
"""Share of judged loads that must be read. One of three gateways sees at most a third of the reads."""
PATIENCE = 32
"""Reads of a stream, per sibling of depth, after which earlier loads count as wasted."""
REST = 1000
"""Reads of a stream for which prefetching pauses after poor accuracy."""
LATELY = 32
"""Reads of a stream during which a sibling that was read is not loaded: several threads read a little out of order, so the next
siblings may have been read already."""
MOST_PACE = 4
"""The most bytes of a random stream loaded for each byte that clients have read, once loaded bytes are read."""
MOST_FAILURES = 8
"""Failed loads in a row after which a random stream rests: its prefix was deleted, or its reader's rights withdrawn."""
LEAST_READ = 0.5
"""The smallest mean share of an object read by its readers at which loading all of it pays."""


def most_ahead(capacity: int) -> int:
    """The most unread bytes loaded ahead of one sequential stream in a cache of ``capacity`` bytes."""
    return min(MOST_AHEAD, capacity // PART_AHEAD)


class _BlockRun(NamedTuple):
    """Consecutive blocks: the last one, their number, the reads of them, and the bytes of these reads in blocks."""

    last: int
    length: int
    reads: int
    read: float

    @property
    def goes_on(self) -> bool:
        """Whether most of the next blocks will probably be read."""
        return self.length >= DEPTH and self.reads >= IN_A_ROW and self.read >= LEAST_READ * self.length


_NO_RUN = _BlockRun(-2, 0, 0, 0.0)


class BlockRuns:
    """Runs of consecutive blocks in objects that are not streams yet: after 4 in a row the next 4 are loaded.

    A run needs three reads: one or two long ones, such as the column chunks of a row group, may not continue. It needs half of
    its bytes read: a rank that reads its rows of every tensor skips the rest.

    Args:
        most: objects that are remembered, the latest ones read.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._runs: OrderedDict[str, _BlockRun] = OrderedDict()

    def read(self, path: str, block: int, blocks: int, *, begins: bool = True, share: float = 1.0) -> range:
        """The blocks to load after a read of one of an object's ``blocks`` blocks.

        Args:
            path: of the object.
            block: number of the block.
            blocks: of the object.
            begins: whether it is the first block of its reader's request.
            share: the part of the block that was read.
        """
        last, length, reads, read = self._runs.pop(path, _NO_RUN)
        if block == last:
            self._runs[path] = _BlockRun(last, length, reads + begins, read + share)
            return range(0)
        goes_on = block == last + 1
        run = _BlockRun(block, length + 1, reads + begins, read + share) if goes_on else _BlockRun(block, 1, 1, share)
        self._runs[path] = run
        if len(self._runs) > self._most:
            self._runs.popitem(last=False)
        return range(block + 1, min(blocks, block + 1 + DEPTH)) if run.goes_on else range(0)

    def wants(self, path: str, block: int) -> bool:
        """Whether a block is among those to load after the last read."""
        run = self._runs.get(path, _NO_RUN)
        return run.goes_on and run.last < block <= run.last + DEPTH


def paths_below(predecessors: Sequence[Iterable[Tail]]) -> tuple[Tail, ...]:
    """The paths read below at least ``LEAST_PROBABILITY`` of the predecessors, in order; the empty path is the sibling itself."""
    counts: dict[Tail, int] = {}
    for paths in predecessors:
        for path in set(paths):
            counts[path] = counts.get(path, 0) + 1
    needed = LEAST_PROBABILITY * len(predecessors)
    return tuple(sorted((path for path, count in counts.items() if count >= needed), key=_order))


def _order(path: Tail) -> tuple[tuple[bool, Segment], ...]:
    return tuple((isinstance(segment, str), segment) for segment in path)


def whole_stream(pattern: Pattern | None, target: int, size: int) -> bool:
    """Whether a random stream of ``size`` bytes is worth loading into a pool of ``target`` bytes."""
    return pattern is Pattern.RANDOM and size > 0 and target >= WHOLE_STREAM * size


def read_whole(read: int, draws: int, size: int) -> bool:
    """Whether clients read the children of a stream rather than parts of them.

    Args:
        read: bytes that they have read.
        draws: children that they have read.
        size: bytes of a child, on average.
    """
    return read >= LEAST_READ * draws * size


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """The size and the limit of a stream's pool, in bytes."""

    target: int = 0
    held: int = 0

    def spread_over(self, target: int) -> PoolRoom:
        """The room on all nodes for a pool of ``target`` bytes, assuming that all nodes hold the same share of their parts."""
        return PoolRoom(target, self.held * target // max(1, self.target))


class WholeLoad:
    """The whole load of one random stream.

    Attributes:
        loaded, used, wasted: children that were loaded; of these, those that were read, and those that were not.
    """

    def __init__(self) -> None:
        self.loaded = 0
        self.used = 0
        self.wasted = 0
        self._bytes = 0
        self._looked = 0
        self._failed = 0
        self._draws = 0
        self._rests_until = 0
        self._expected = 0.0
        self._good = 0
        self._pace = 1

    @property
    def unread(self) -> int:
        """Loaded children that are still expected to be read."""
        return self.loaded - self.used - self.wasted

    @property
    def resting(self) -> bool:
        """Whether nothing is loaded for now."""
        return self._draws < self._rests_until

    def report(self) -> AheadReport:
        """The outcome so far."""
        return AheadReport(self.loaded, self.used, self.wasted)

    def advance(self, draws: int, items: int) -> None:
        """Judge earlier loads, now that clients have read ``draws`` children of ``items``."""
        if not self.resting:
            self._expected += max(0, draws - self._draws) * min(1.0, self.unread / max(items, 1))
        self._draws = draws
        if self._expected >= JUDGED:
            if self._good < LEAST_ACCURACY * self._expected:
                self.rest()
            elif self._good >= 2 * LEAST_ACCURACY * self._expected:
                self._pace = min(MOST_PACE, 2 * self._pace)
            self._expected, self._good = 0.0, 0

    def allowance(self, read: int, missed: int, room: PoolRoom) -> int:
        """Bytes that may be loaded now.

        Args:
            read: bytes that clients have read of the stream.
            missed: the clients' misses.
            room: of the stream's pool.
        """
        return max(0, min(room.target - room.held, self._pace * read - self._bytes)) if self.may_look(missed) else 0

    def may_look(self, missed: int) -> bool:
        """Whether a page may be listed, or a child looked up; ``missed``: misses so far."""
        return not self.resting and self._looked < DEPTH * missed

    def looked_up(self) -> None:
        """Record that a load of a child began, or that it was found in the cache."""
        self._looked += 1

    def arrived(self, size: int) -> None:
        """Record the end of a load: ``size`` bytes from the origin; 0: the child was cached."""
        if size:
            self._failed = 0
            self._bytes += size
            self.loaded += 1

    def failed(self) -> None:
        """Record a failed load."""
        self._failed += 1
        if self._failed >= MOST_FAILURES:
            self._failed = 0
            self.rest()

    def read(self, *, hit: bool) -> None:
        """Record the first read of a loaded child; without a ``hit`` it had been evicted."""
        self.used += hit
        self.wasted += not hit
        self._good += hit

    def expired(self) -> None:
        """Record that a loaded child is no longer expected to be read."""
        self.wasted += 1

    def rest(self, reads: int = REST) -> None:
        """Pause for the next reads, because everything was looked up or loading does not help."""
        self._pace = 1
        self._rests_until = self._draws + reads


class _Pending(NamedTuple):
    """A sibling that was loaded ahead: its bytes, and the reads of the stream before it."""

    size: int
    since: int


class AheadOf:
    """The read-ahead of one sequential stream.

    Args:
        most_bytes: the most bytes that may be loaded and not read yet.
        counts: bytes of all streams.
    """

    def __init__(self, most_bytes: int, counts: AheadBytes) -> None:
        self._most_bytes = most_bytes
        self._counts = counts
        self._pending: dict[Segment, _Pending] = {}
        self._arrived: dict[Segment, int] = {}
        """Bytes loaded of pending siblings."""
        self._bytes = 0
        self._reads = 0
        self._rests_until = 0
        self._good = 0
        self._judged = 0
        self._kept_up = 0
        self._there = 0
        self._lately: OrderedDict[Segment, int] = OrderedDict()
        """Siblings that were read, each with the number of its read."""
        self.depth = DEPTH
        self.loaded = 0
        self.used = 0
        self.wasted = 0

    def __contains__(self, name: Segment) -> bool:
        """Whether a sibling was loaded ahead and is still expected to be read."""
        return name in self._pending

    @property
    def unread(self) -> int:
        """Bytes loaded and still expected to be read."""
        return sum(self._arrived.values())

    @property
    def resting(self) -> bool:
        """Whether nothing is loaded ahead for now."""
        return self._reads < self._rests_until or self._there >= JUDGED

    @property
    def accuracy(self) -> float:
        """Share of the siblings loaded ahead that were read, among those with a known outcome; 1 before the first."""
        return self.used / (self.used + self.wasted) if self.used + self.wasted else 1.0

    def report(self) -> AheadReport:
        """The outcome so far."""
        return AheadReport(self.loaded, self.used, self.wasted)

    def read(self, name: Segment, hit: bool = False) -> bool:
        """Record a read of a child of the stream (``hit``: it was cached); returns whether bytes of it were loaded ahead."""
        ahead = name in self._arrived
        self._reads += 1
        if not hit:
            self._there = 0
        self._lately[name] = self._reads
        self._lately.move_to_end(name)
        while next(iter(self._lately.values())) <= self._reads - LATELY:
            self._lately.popitem(last=False)
        if name in self._pending:
            self._judge(name, good=True)
        while self._pending:
            oldest, pending = next(iter(self._pending.items()))
            if pending.since > self._reads - PATIENCE * self.depth:
                break
            self._judge(oldest, good=False)
        return ahead

    def following(self, siblings: Sequence[Segment], size: int) -> tuple[Segment, ...]:
        """The siblings to load now.

        Args:
            siblings: those after the last one read, in order.
            size: bytes of a sibling, if known.
        """
        if self.resting:
            return ()
        room = max(0, self._most_bytes - self._bytes) // max(size, 1)
        unknown = [name for name in siblings[: self.depth] if name not in self._pending and name not in self._lately]
        wanted = tuple(unknown[:room])
        for name in wanted:
            self._pending[name] = _Pending(size, self._reads)
        self._bytes += size * len(wanted)
        self.loaded += len(wanted)
        return wanted

    def received(self, name: Segment, size: int) -> None:
        """Record ``size`` bytes of a sibling from the store."""
        self._counts.loaded += size
        if name in self._pending:
            self._arrived[name] = self._arrived.get(name, 0) + size
        elif name in self._lately:  # its reader arrived while it was loaded
            self._counts.used += size
        else:
            self._counts.wasted += size

    def arrived(self, name: Segment, *, there: bool) -> None:
        """Record that a sibling is cached now; ``there``: it was cached before, and does not count against the bytes that may be
        loaded."""
        self._there = self._there + 1 if there else 0
        if there and name in self._pending:
            size, since = self._pending[name]
            self._bytes -= size
            self._pending[name] = _Pending(0, since)

    def dropped(self, name: Segment) -> None:
        """Record that a child loaded ahead was evicted, or could not be loaded."""
        if name in self._pending:
            self._judge(name, good=False)

    def close(self) -> None:
        """Expect nothing more to be read."""
        self.wasted += len(self._pending)
        self._pending.clear()
        self._counts.wasted += self.unread
        self._arrived.clear()
        self._bytes = 0

    def _judge(self, name: Segment, good: bool) -> None:
        self._bytes -= self._pending.pop(name).size
        size = self._arrived.pop(name, 0)
        if good:
            self._counts.used += size
        else:
            self._counts.wasted += size
        self.used += good
        self.wasted += not good
        self._good += good
        self._judged += 1
        self._kept_up = self._kept_up + 1 if good else 0
        if not good:
            self.depth = max(DEPTH, self.depth // 2)
        elif self._kept_up >= self.depth:
            self.depth = min(MOST_DEPTH, self.depth + DEPTH)
            self._kept_up = 0
        if self._judged >= JUDGED:
            if self._good < LEAST_ACCURACY * self._judged:
                self._rest()
            self._good = self._judged = 0

    def _rest(self) -> None:
        self._rests_until = self._reads + REST
        self.depth = DEPTH
        self.close()
