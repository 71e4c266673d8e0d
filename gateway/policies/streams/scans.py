"""What is read ahead: the scans of sequential streams, and runs of blocks in objects that are too short to be streams.

Each knows what was loaded and not read yet, and whether a load that waits is still wanted. The machine (``ahead.py``) has the
queue. The numbers are those of its interleavings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey
from gateway.policies.reads.rules import OFF
from gateway.policies.streams.instructions import AheadBytes, ListedPage, ListedSibling, Span, block_span
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import LATELY, AheadOf, BlockRuns
from gateway.policies.streams.stream import Segment, Stream
from gateway.policies.streams.tree import Tail, levels

MOST_NAMES = 2000
"""Siblings remembered per stream: a page ahead of its reader, and as many behind."""
MOST_CLIENTS = 64
"""The most clients of a stream whose last child is remembered."""
LIST_AGAIN = 600.0
"""Seconds after which a listing that failed is tried again."""
MOST_ASTRAY = 8
"""Reads in a row far from a scan's front after which the front moves there. Fewer may be stragglers, or another reader's."""

Unit = tuple[ObjectKey, Span]
"""What one load loads."""


@dataclass(slots=True)
class Want:
    """A sibling to load: objects, or spans of them, one after the other; ``there``: all so far were cached."""

    scan: Scan | ShortObjects
    name: str
    sibling: Segment
    reader: str
    units: deque[Unit]
    begun: bool = False
    there: bool = True


@dataclass(slots=True)
class ScanReader:
    """A reader of a stream, and its position: ``latest`` is the sibling it read last, named as in listings (``folder/``)."""

    key: ObjectKey
    access_key: str
    latest: Segment


@dataclass(slots=True)
class Scan:
    """The state of one sequential stream, apart from its policy.

    Siblings are listed after the *front*, the furthest one read since the scan began or started over. Reads far from it do not
    move it: several threads finish one lap while they begin the next, and other clients read elsewhere. The front moves once
    reads near it cease. It moves back only for a client that itself went back or began, so readers far apart do not list in turn.

    Attributes:
        name: of the stream.
        deep: whether siblings are all objects below the stream's prefix, by the rest of their keys, rather than its children.
        listed: siblings after the reader, with the listing's names and order.
        end: the very last sibling, once the listing has reached it.
        listing: whether a page is being listed.
        after: the name after which it is listed; ``None`` if the scan has started over since, so that it is dropped (9).
        list_at: when the next page may be listed, in seconds; 0 unless the last one was refused.
        seen: siblings that were read, in the order of a listing.
        start: the sibling at which the scan began or started over.
        front: the furthest sibling read since then.
        astray: reads in a row far from the front.
        lowest: the first of their siblings, in the order of a listing.
        back: whether a client has started over that the front has not followed yet.
        last: the last sibling that each client read.
        gains: whether the last read missed, or hit data loaded ahead.
        logged: whether a failure was logged.
        ended: whether the stream is no longer loaded ahead.
    """

    name: str
    policy: AheadOf
    reader: ScanReader | None = None
    reads: int = 0
    deep: bool = False
    listed: list[ListedSibling] = field(default_factory=list)
    end: str | None = None
    listing: bool = False
    after: str | None = None
    list_at: float = 0.0
    seen: list[str] = field(default_factory=list)
    start: str = ""
    front: str = ""
    astray: int = 0
    lowest: str = ""
    back: bool = False
    last: dict[int, Segment] = field(default_factory=dict)
    gains: bool = False
    logged: bool = False
    ended: bool = False

    @property
    def without(self) -> Collection[str]:
        """The patterns of rules under which nothing is loaded."""
        return (OFF,)

    # --- reads

    def read(self, sibling: Segment, read: ObjectRead, *, folder: bool = False) -> None:
        """Record a read of a sibling, or below it (``folder``); consecutive reads of one sibling by one client count once."""
        before = self.last.get(read.client)
        if before == sibling:
            return
        if len(self.last) >= MOST_CLIENTS:
            self.last.clear()
        self.last[read.client] = sibling
        latest = f"{sibling}/" if folder else sibling
        gains = self.policy.read(sibling, read.hit) or not read.hit
        if isinstance(latest, str):
            follows = self._follows(latest, before)
            self._see(latest)
            if not follows:
                return
        self.gains = gains
        self.reader = ScanReader(read.key, read.principal, latest)

    def _follows(self, latest: str, before: Segment | None) -> bool:
        """Move the front with a read of a client that read ``before`` last; returns whether the scan continues there.

        A far read moves it if it is one of many in a row; back only if a client has started over (9).
        """
        if not self.seen:
            self.start = self.front = latest
        if not self._far(latest, self.front):
            self.astray, self.front = 0, max(latest, self.front)
            return True
        self.astray += 1
        self.lowest = latest if self.astray == 1 else min(self.lowest, latest)
        behind = latest < self.front
        self.back = self.back or (behind and self._starts_over(latest, before))
        # At the end, or without listings, there is nothing to lose.
        ahead = not self.list_at and (self.end is None or self.front < self.end)
        if ahead and (self.astray < MOST_ASTRAY or (behind and not self.back)):
            return False
        if behind:
            self.start, self.listed, self.end, self.after = self.lowest, [], None, None
        self.front, self.astray, self.back = latest, 0, False
        return True

    def _starts_over(self, latest: str, before: Segment | None) -> bool:
        """Whether a client starts over; a client that has not read before does if it reads at the start, because a job may
        reconnect for each lap."""
        if before is None:
            return latest <= self.start
        return latest < str(before) and self._far(latest, str(before))

    def _far(self, name: str, other: str) -> bool:
        """Whether more siblings were read between two names than threads that read out of order would explain."""
        low, high = sorted((name, other))
        between = bisect_left(self.seen, high) - bisect_right(self.seen, low)
        return between > min(LATELY, len(self.seen) // 2)

    def _see(self, name: str) -> None:
        """Remember a sibling; of too many, the one at the far end is forgotten."""
        at = bisect_left(self.seen, name)
        if self.seen[at : at + 1] != [name]:
            self.seen.insert(at, name)
        if len(self.seen) > MOST_NAMES:
            del self.seen[0 if at > MOST_NAMES // 2 else -1]

    def look(self, stream: Stream, reader: ScanReader, *, deep: bool) -> None:
        """Switch between all objects below a prefix and its children; forgets the siblings listed so far."""
        if deep is not self.deep:
            segment, rest = child(stream, reader.key.key)
            reader.latest = rest if deep or rest == segment else f"{segment}/"
            self.deep, self.listed, self.end, self.after, self.seen = deep, [], None, None, []
            self.last.clear()

    # --- siblings

    def lists(self, latest: str, now: float) -> str | None:
        """The name after which a page is listed now; ``None`` for none. The reader is at ``latest``."""
        del self.listed[: bisect_right(self.listed, latest, key=itemgetter(0))]
        few = len(self.listed) <= self.policy.depth
        # Cached data needs no listing.
        if not (few and self.end is None and self.gains) or self.listing or now < self.list_at:
            return None
        self.listing, self.after = True, self.listed[-1].name if self.listed else latest
        return self.after

    def take_page(self, after: str, page: ListedPage) -> bool:
        """Take over a page; returns whether the listing advances."""
        self.list_at = 0.0
        listed = sorted(sibling for sibling in page.siblings if sibling.name > after)[:MOST_NAMES]
        self.listed += listed
        self.end = None if page.truncated else self.listed[-1].name if self.listed else after
        if listed:
            self.reads = -1  # the next turn continues, without waiting for another read
        return bool(listed) or not page.truncated

    def following(self, stream: Stream, latest: str, kinds: Collection[bool]) -> Sequence[Segment]:
        """The siblings to load now after the last one read; ``kinds`` says which of the listed ones are objects."""
        mean = stream.bytes // max(stream.draws, 1)
        if self.listed:
            sizes = [sibling.size for sibling in self.listed if sibling.is_object]
            mean = sum(sizes) // len(sizes) if sizes else mean
            names = [sibling.name for sibling in self.listed if sibling.is_object in kinds]
        else:
            at = len(self.seen) if self.listing or self.end is not None else bisect_right(self.seen, latest)
            names = self.seen[at : at + self.policy.depth]
        if not self.deep:
            names = list(dict.fromkeys(name.removesuffix("/") for name in names))
        return self.policy.following(names, mean)

    def units(
        self, stream: Stream, key: ObjectKey, name: str, paths: Sequence[Tail], block_size: int
    ) -> Iterator[Unit]:
        """The parts to load of a sibling: objects, or spans of them."""
        if self.deep:
            at = bisect_left(self.listed, name, key=itemgetter(0))
            large = at < len(self.listed) and self.listed[at].size > block_size
            yield key._replace(key=f"{stream.prefix}{name}"), (0, block_size) if large else None
            return
        for path in paths or ((),):
            names = [name, *(segment for segment in path if isinstance(segment, str))]
            number = path[-1] if path else ""
            span = block_span(number, block_size) if isinstance(number, int) else None
            yield key._replace(key=stream.prefix + "/".join(names)), span

    # --- loads

    def wants(self, want: Want) -> bool:
        """Whether a load is still wanted (3, 4). A waiting load no longer is once all readers have passed it (2); in a sibling of
        several objects, some reader may still be at the first."""
        if self.ended or want.begun:
            return not self.ended
        return want.sibling in self.policy or (len(want.units) > 1 and want.sibling in self.last.values())

    def begin(self, want: Want) -> None:
        """Record that the first load of a sibling is in flight."""

    def arrived(self, want: Want, size: int) -> None:
        """Record a load of ``size`` bytes from the store (1, 3)."""
        self.policy.received(want.sibling, size)

    def done(self, want: Want) -> None:
        """Record that a sibling is loaded."""
        self.policy.arrived(want.sibling, there=want.there)

    def failed(self, want: Want) -> bool:
        """Record a failed load; returns whether it is to be logged."""
        self.policy.dropped(want.sibling)
        return self.fail()

    def fail(self) -> bool:
        """Record a failure; returns whether it is the first, which is logged."""
        first, self.logged = not self.logged, True
        return first

    def close(self) -> None:
        """End the stream's read-ahead."""
        self.ended = True
        self.policy.close()


class ShortObjects:
    """Blocks ahead in objects that are not streams: the next four after four reads in a row, unless those hit.

    Attributes:
        without: the patterns of rules under which nothing is loaded.
    """

    def __init__(self, counts: AheadBytes) -> None:
        self.without = (OFF, Pattern.RANDOM, Pattern.SKEWED)
        self._bytes = counts
        self._runs = BlockRuns()
        self._wanted: dict[str, tuple[ObjectRead, range]] = {}
        self._loaded: OrderedDict[tuple[str, Segment], int] = OrderedDict()
        """Bytes of blocks loaded ahead and not read yet; 0 while in flight."""

    def read(self, name: str, read: ObjectRead, block: int, blocks: int, size: int) -> None:
        """Record a read of a block of ``size`` bytes."""
        ahead_of = self._loaded.pop((name, block), None)
        self._bytes.used += ahead_of or 0
        # A read of many blocks itself loads the blocks before its last one.
        self._wanted.pop(name, None)
        begins = block == read.start // size
        share = (min(read.stop, (block + 1) * size) - max(read.start, block * size)) / size
        following = self._runs.read(name, block, blocks, begins=begins, share=share)
        if following and (not read.hit or ahead_of is not None):
            self._wanted[name] = read, following

    def take_wants(self, size: int) -> Iterator[Want]:
        """The blocks of ``size`` bytes wanted since the last call."""
        wanted, self._wanted = self._wanted, {}
        for name, (read, blocks) in wanted.items():
            for number in blocks:
                if (name, number) not in self._loaded:
                    yield Want(self, name, number, read.principal, deque([(read.key, block_span(number, size))]))

    def wants(self, want: Want) -> bool:
        """Whether the reader has not passed a block yet (2)."""
        return want.begun or self._runs.wants(want.name, int(want.sibling))

    def begin(self, want: Want) -> None:
        """Record that a block is in flight."""
        self._loaded[want.name, want.sibling] = 0
        while len(self._loaded) > MOST_NAMES:
            self._bytes.wasted += self._loaded.popitem(last=False)[1]

    def arrived(self, want: Want, size: int) -> None:
        """Record a load of ``size`` bytes from the store."""
        self._bytes.loaded += size
        if (want.name, want.sibling) in self._loaded:
            self._loaded[want.name, want.sibling] = size
        else:  # (1)
            self._bytes.used += size

    def done(self, want: Want) -> None:
        """Forget a block that was cached already."""
        if want.there:
            self._loaded.pop((want.name, want.sibling), None)

    def failed(self, _want: Want) -> bool:
        """A failed load is not logged; its block is not wanted again until it is read."""
        return False


def child(stream: Stream, key: str) -> tuple[str, str]:
    """The child of a stream that is or contains an object; and the object's name below the stream."""
    return levels(key)[stream.level - 1], key[len(stream.prefix) :]
