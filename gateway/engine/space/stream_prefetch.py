"""Prefetch for access streams: their next reads are loaded before clients ask (gateway/policies/streams/prefetch.py decides).

It runs beside the tree, in the keeper. It loads the siblings after the last read of a sequential stream: the next blocks of a
large object, the next objects of a prefix, or the same names below the next prefixes. Where names below prefixes differ, such as
images in class folders, it loads the next objects of all prefixes. Siblings are listed a page at a time, as the reader advances.
If the origin refuses to list, or its listing does not advance, the names seen so far are used instead.

For an object with too few blocks to be a stream, the next four blocks are loaded after four reads in a row, unless those hit.

Loads wait for their turn in one bounded queue; a load that its reader has passed by then is skipped.

Listings and loads have the rights of the stream's reader: a load acts as that reader's read at the object's home, in the
background lane, behind readers. Nothing here fails a read. A failed listing or load is logged once per stream and counts as a
wasted load; a stream that wastes too much rests.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.base.tasks import Tasks
from gateway.engine.operations.warm_objects import Span, Warmed, WarmObjects
from gateway.model.access import ObjectRead
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, Principal
from gateway.origin.listing import ListingPage, Listings
from gateway.policies.lane import LoadClass
from gateway.policies.reads.rules import OFF, Rules
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import PREDECESSORS, AheadOf, BlockRuns, paths_below, read_whole
from gateway.policies.streams.stream import Segment, Stream
from gateway.policies.streams.tree import AccessStreamTree, Tail, has_blocks, levels
from gateway.policies.streams.zone import AheadReport

MOST_STREAMS = 64
"""Most streams with prefetching."""
MOST_NAMES = 2000
"""Siblings remembered per stream: a page ahead of its reader, and as many behind."""
MOST_PATHS = 64
"""Most objects and spans loaded below one sibling."""
MOST_CLIENTS = 64
"""Most clients of a stream whose last child is remembered."""
AT_ONCE = 16
"""Most loads in progress, of all streams."""
MOST_WAITING = 1024
"""Maximum waiting loads; above that, the oldest are dropped."""
LIST_AGAIN = 600.0
"""Seconds after which a listing that failed is tried again."""

_LOADED, _USED, _WASTED = map(STREAM_PREFETCHED.labels, ("loaded", "used", "wasted"))
_UNORDERED = (Pattern.RANDOM, Pattern.SKEWED)

log = logging.getLogger("larder.streams")


@dataclass(frozen=True, slots=True)
class PrefetchLinks:
    """The rest of the gateway, as used here.

    Attributes:
        objects: loads at the homes of objects.
        listings: of the origins.
        principal: finds the principal of an access key; ``None`` for a key that is no longer known.
        rules: in force.
        block_size: of new objects, in bytes.
        most_bytes: most unread bytes that may be loaded ahead of one stream.
    """

    objects: WarmObjects
    listings: Listings
    principal: Callable[[str], Principal | None]
    rules: Callable[[], Rules]
    block_size: int
    most_bytes: int

    def permits(self, principal: Principal, path: str, without: Collection[str] = (OFF,)) -> bool:
        """Whether a principal may read ``bucket/key`` and the rule permits loading it; ``without``: patterns that forbid it."""
        rule = self.rules().for_path(path)
        return principal.may_touch(path) and rule.cache and rule.pattern not in without

    def span(self, block: int) -> Span:
        """The range of bytes of a block."""
        return block * self.block_size, (block + 1) * self.block_size

    async def load(self, key: ObjectKey, principal: Principal, span: Span) -> Warmed:
        """Load an object, or a span of it, at its home, in the background lane."""
        return await self.objects.load(key, principal.tenant, principal.identity, span, LoadClass.STREAM)


@dataclass(slots=True)
class _Reader:
    """A reader of a stream, and its position: ``latest`` is the sibling it read last, named as in listings (``folder/``)."""

    key: ObjectKey
    access_key: str
    latest: Segment


@dataclass(slots=True)
class _Ahead:
    """The state of one sequential stream beside its policy.

    Attributes:
        deep: whether siblings are all objects below the stream's prefix, by the rest of their keys, rather than its children.
        listed: siblings after the reader, with the listing's names and order; ``True`` for objects.
        end: the very last sibling, once the listing has reached it.
        list_at: when the next page may be listed, in seconds of the loop's clock.
        seen: siblings that were read, in the order of a listing.
        loaded: bytes loaded, by sibling not read yet.
        last: the last sibling that each client read.
        gains: whether the last read missed, or hit data loaded ahead.
        logged: whether a failure was logged.
    """

    policy: AheadOf
    reader: _Reader | None = None
    reads: int = 0
    deep: bool = False
    listed: list[tuple[str, bool, int]] = field(default_factory=list)
    end: str | None = None
    listing: bool = False
    list_at: float = 0.0
    seen: list[str] = field(default_factory=list)
    loaded: dict[Segment, int] = field(default_factory=dict)
    last: dict[int, Segment] = field(default_factory=dict)
    gains: bool = False
    logged: bool = False

    def read(self, sibling: Segment, read: ObjectRead, *, folder: bool = False) -> None:
        """Record a read of a sibling, or below it (``folder``); consecutive reads of one sibling by one client count once."""
        if self.last.get(read.client) == sibling:
            return
        if len(self.last) >= MOST_CLIENTS:
            self.last.clear()
        self.last[read.client] = sibling
        latest = f"{sibling}/" if folder else sibling
        self.reader = _Reader(read.key, read.principal, latest)
        size = self.loaded.pop(sibling, 0)
        self.gains = not read.hit or size > 0
        if size:
            _USED.inc(size)
        self.policy.read(sibling, read.hit)
        if self.loaded:
            self.settle()
        if isinstance(latest, str):
            at = bisect_right(self.seen, latest)
            if not at or self.seen[at - 1] != latest:
                insort(self.seen, latest)
            if len(self.seen) > MOST_NAMES:
                del self.seen[0]

    def look(self, stream: Stream, reader: _Reader, *, deep: bool) -> None:
        """Switch between all objects below a prefix and its children; forgets the siblings listed so far."""
        if deep is not self.deep:
            segment, rest = _child(stream, reader.key.key)
            reader.latest = rest if deep or rest == segment else f"{segment}/"
            self.deep, self.listed, self.end, self.seen = deep, [], None, []
            self.last.clear()

    def siblings(self, names: Iterable[str]) -> list[Segment]:
        """The siblings with these names in a listing."""
        return list(names if self.deep else dict.fromkeys(name.removesuffix("/") for name in names))

    def passed(self, sibling: Segment, units: int) -> bool:
        """Whether readers have passed a sibling of ``units``; one of several readers may still be at the first unit."""
        return sibling not in self.policy and (units == 1 or sibling not in self.last.values())

    def settle(self) -> None:
        """Count loads that the policy no longer expects to be read: used by other readers in the meantime, or wasted."""
        for name in [name for name in self.loaded if name not in self.policy]:
            (_USED if self.policy.has_read(name) else _WASTED).inc(self.loaded.pop(name))

    def fail(self, stream: str, why: object) -> None:
        """Log the first failure."""
        if not self.logged:
            self.logged = True
            log.info(
                "what is read next of %(stream)s cannot be loaded ahead: %(error)s", {"stream": stream, "error": why}
            )


class StreamPrefetcher:
    """Loads ahead of the sequential streams of one node.

    Args:
        tree: of the node's streams.
        links: to the rest of the gateway.
    """

    def __init__(self, tree: AccessStreamTree, links: PrefetchLinks) -> None:
        self._tree = tree
        self._links = links
        self._ahead: dict[str, _Ahead] = {}
        self._runs = BlockRuns()
        self._wanted: dict[str, tuple[ObjectRead, range]] = {}
        self._blocks: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._latest: deque[tuple[str, ObjectRead, int]] = deque(maxlen=MOST_STREAMS)
        self._waiting: OrderedDict[tuple[str, Segment], Callable[[], Awaitable[None]]] = OrderedDict()
        self._loads = Tasks()
        self._tasks = Tasks()

    def seen(self, bucket: str, read: ObjectRead, block: int, blocks: int) -> None:
        """Record a read of a block; ``bucket`` is the first level of its streams."""
        self._latest.append((bucket, read, block))
        name, key = f"{bucket}/", read.key.key
        for segment in levels(key):
            if (ahead := self._ahead.get(name)) is not None:
                rest = key[len(name) - len(bucket) - 1 :]
                ahead.read(rest if ahead.deep else segment, read, folder=not ahead.deep and rest != segment)
            name = f"{name}{segment}/"
        if not has_blocks(key, blocks):
            return
        name = name[:-1]
        if (ahead := self._ahead.get(name)) is not None:
            ahead.read(block, read)
            return
        ahead_of = self._blocks.pop((name, block), None)
        _USED.inc(ahead_of or 0)
        # A read of many blocks itself loads the blocks before its last one.
        self._wanted.pop(name, None)
        size = self._links.block_size
        begins = block == read.start // size
        share = (min(read.stop, (block + 1) * size) - max(read.start, block * size)) / size
        following = self._runs.read(name, block, blocks, begins=begins, share=share)
        if following and (not read.hit or ahead_of is not None):
            self._wanted[name] = read, following

    def run_once(self) -> None:
        """Load the data that readers will want next."""
        wanted, self._wanted = self._wanted, {}
        for name, (read, blocks) in wanted.items():
            for number in blocks:
                if (name, number) not in self._blocks:
                    self._want(name, number, partial(self._load_block, name, read, number))
        latest = self._sequential()[:MOST_STREAMS]
        for name in self._ahead.keys() - {stream.name for stream in latest}:
            left = self._ahead.pop(name)
            _WASTED.inc(sum(left.loaded.values()))
            left.loaded.clear()
        for stream in latest:
            if (ahead := self._ahead.get(stream.name)) is None:
                ahead = self._ahead[stream.name] = self._begin(stream)
            if ahead.reads != stream.accesses and ahead.reader is not None:
                ahead.reads = stream.accesses
                self._advance(stream, ahead, ahead.reader)
        for _ in range(min(len(self._waiting), AT_ONCE - len(self._loads))):
            self._loads.start(self._load_waiting())

    def _sequential(self) -> list[Stream]:
        """The streams to load ahead of, the last read first, and then beginnings.

        A beginning is skipped while its reader hits, and below folders where a scan is followed across their ends: each folder
        would be listed.
        """
        rules = self._links.rules()
        deep = [name for name, ahead in self._ahead.items() if ahead.deep and not ahead.policy.resting]
        begun = [
            stream
            for stream in self._tree.beginnings()
            if stream.misses and not any(stream.name.startswith(name) and stream.name != name for name in deep)
        ]
        return [
            stream
            for known in (self._tree.streams(), begun)
            for stream in sorted(known, key=lambda stream: -stream.last_access)
            if pattern_of(stream, rules) is Pattern.SEQUENTIAL
        ]

    def report(self, stream: str) -> AheadReport:
        """The outcome of loading ahead, by children of a stream."""
        known = self._ahead.get(stream)
        return (
            AheadReport() if known is None else AheadReport(known.policy.loaded, known.policy.used, known.policy.wasted)
        )

    async def close(self) -> None:
        """Stop all loads."""
        await self._tasks.stop()
        await self._loads.stop()

    def _want(self, name: str, sibling: Segment, load: Callable[[], Awaitable[None]]) -> None:
        self._waiting[name, sibling] = load
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    async def _load_waiting(self) -> None:
        while self._waiting:
            await self._waiting.popitem(last=False)[1]()

    def _begin(self, stream: Stream) -> _Ahead:
        """Start loading ahead of a new stream at its latest read, because its client may have no other read in progress."""
        ahead = _Ahead(AheadOf(self._links.most_bytes))
        for bucket, read, block in reversed(self._latest):
            if bucket != stream.bucket or not read.key.key.startswith(stream.prefix):
                continue
            if not stream.blocks:
                segment, rest = _child(stream, read.key.key)
                ahead.read(segment, read, folder=rest != segment)
                break
            if read.key.key == stream.prefix:
                ahead.read(block, read)
                break
        return ahead

    def _advance(self, stream: Stream, ahead: _Ahead, reader: _Reader) -> None:
        principal = self._links.principal(reader.access_key)
        if principal is None or ahead.policy.resting:
            return
        if stream.blocks:
            if not read_whole(stream.bytes, stream.draws - stream.early, self._links.block_size):
                return
            first = int(reader.latest) + 1
            following: Sequence[Segment] = range(first, stream.blocks)[: ahead.policy.depth]
            size = self._links.block_size
            paths: tuple[Tail, ...] = ()
        else:
            predecessors = self._tree.below(stream, PREDECESSORS + 1)[1:]
            paths = paths_below(predecessors)
            ahead.look(stream, reader, deep=bool(predecessors) and not paths)
            kinds = {not path or isinstance(path[0], int) for path in paths or ((),)}
            following, size = self._siblings(stream, ahead, reader, principal, kinds)
        for sibling in ahead.policy.following(following, size):
            units = list(self._units(stream, ahead, reader, sibling, paths))[:MOST_PATHS]
            self._want(stream.name, sibling, partial(self._load, stream.name, ahead, sibling, principal, units))

    def _siblings(
        self, stream: Stream, ahead: _Ahead, reader: _Reader, principal: Principal, kinds: Collection[bool]
    ) -> tuple[list[Segment], int]:
        """The siblings after the reader (``kinds`` says which are objects), and the mean size of the objects."""
        latest = str(reader.latest)
        ahead.listed = [sibling for sibling in ahead.listed if sibling[0] > latest]
        now = asyncio.get_running_loop().time()
        few = len(ahead.listed) <= ahead.policy.depth
        # A reader that starts over is before the end.
        more = ahead.end is None or (not ahead.listed and latest < ahead.end)
        # Cached data needs no listing.
        if few and more and ahead.gains and not ahead.listing and now >= ahead.list_at:
            ahead.listing = True
            self._tasks.start(self._list(stream, ahead, reader, principal))
        mean = stream.bytes // max(stream.draws, 1)
        if not ahead.listed:
            at = len(ahead.seen) if ahead.listing or ahead.end is not None else bisect_right(ahead.seen, latest)
            return ahead.siblings(ahead.seen[at : at + ahead.policy.depth]), mean
        sizes = [size for _, is_object, size in ahead.listed if is_object]
        mean = sum(sizes) // len(sizes) if sizes else mean
        return ahead.siblings(name for name, is_object, _ in ahead.listed if is_object in kinds), mean

    async def _list(self, stream: Stream, ahead: _Ahead, reader: _Reader, principal: Principal) -> None:
        """List the next page of siblings; at the end of the known ones, list once more."""
        deep = ahead.deep
        after = ahead.listed[-1][0] if ahead.listed else str(reader.latest)
        try:
            page = await self._links.listings.list_page(
                principal.identity,
                reader.key.bucket,
                stream.prefix,
                delimiter="" if deep else "/",
                start_after=f"{stream.prefix}{after}",
            )
        except LarderError as failure:
            ahead.fail(stream.name, failure)
            ahead.list_at = asyncio.get_running_loop().time() + LIST_AGAIN
            return
        finally:
            ahead.listing = False
        if ahead.deep is not deep:
            return
        listed = [sibling for sibling in _names(page, len(stream.prefix)) if sibling[0] > after][:MOST_NAMES]
        ahead.listed += listed
        ahead.end = None if page.truncated else ahead.listed[-1][0] if ahead.listed else after
        if listed:
            ahead.reads = -1  # the next turn continues, without waiting for another read
        elif page.truncated:
            ahead.fail(stream.name, "its listing does not advance")
            ahead.list_at = asyncio.get_running_loop().time() + LIST_AGAIN

    def _units(
        self, stream: Stream, ahead: _Ahead, reader: _Reader, sibling: Segment, paths: Sequence[Tail]
    ) -> Iterator[tuple[ObjectKey, Span]]:
        """The parts to load of a sibling: objects, or spans of them."""
        if isinstance(sibling, int):
            yield reader.key, self._links.span(sibling)
            return
        if ahead.deep:
            at = bisect_left(ahead.listed, sibling, key=itemgetter(0))
            large = at < len(ahead.listed) and ahead.listed[at][2] > self._links.block_size
            yield reader.key._replace(key=f"{stream.prefix}{sibling}"), self._links.span(0) if large else None
            return
        for path in paths or ((),):
            names = [sibling, *(segment for segment in path if isinstance(segment, str))]
            key = reader.key._replace(key=stream.prefix + "/".join(names))
            number = path[-1] if path else ""
            yield key, self._links.span(number) if isinstance(number, int) else None

    async def _load(
        self,
        stream: str,
        ahead: _Ahead,
        sibling: Segment,
        principal: Principal,
        units: Sequence[tuple[ObjectKey, Span]],
    ) -> None:
        """Load a sibling, unless its reader has passed it or its stream is no longer loaded ahead."""
        if ahead.passed(sibling, len(units)) or self._ahead.get(stream) is not ahead:
            return
        there = True
        for key, span in units:
            if not self._links.permits(principal, key.path):
                continue
            done = await self._links.load(key, principal, span)
            if done.failure:
                ahead.fail(stream, done.failure)
                ahead.policy.dropped(sibling)
                break
            if not done.there:
                there = False
                _LOADED.inc(done.size)
                ahead.loaded[sibling] = ahead.loaded.get(sibling, 0) + done.size
        else:
            ahead.policy.arrived(there=there)
        ahead.settle()

    async def _load_block(self, name: str, read: ObjectRead, number: int) -> None:
        """Load a block of an object that is not a stream yet, unless its reader has passed it."""
        principal = self._links.principal(read.principal)
        if principal is None or not self._runs.wants(name, number):
            return
        if not self._links.permits(principal, read.key.path, _UNORDERED):
            return
        self._blocks[name, number] = 0
        while len(self._blocks) > MOST_NAMES:
            _WASTED.inc(self._blocks.popitem(last=False)[1])
        done = await self._links.load(read.key, principal, self._links.span(number))
        if done.there:
            self._blocks.pop((name, number), None)
        elif not done.failure:
            _LOADED.inc(done.size)
            # A reader may have reached it since.
            used = (name, number) not in self._blocks
            _USED.inc(done.size if used else 0)
            if not used:
                self._blocks[name, number] = done.size


def pattern_of(stream: Stream, rules: Rules) -> Pattern | None:
    """Pattern of a stream: set by the rule for its latest child, or else recognised."""
    bucket = stream.bucket.rpartition(":")[2]
    child = "" if stream.blocks else stream.latest
    wanted = rules.for_path(f"{bucket}/{stream.prefix}{child}").pattern
    return Pattern(wanted) if wanted in set(Pattern) else stream.pattern


def _child(stream: Stream, key: str) -> tuple[str, str]:
    """The child of a stream that is or contains an object; and the object's name below the stream."""
    return levels(key)[stream.level - 1], key[len(stream.prefix) :]


def _names(page: ListingPage, prefix: int) -> list[tuple[str, bool, int]]:
    """Names of objects and common prefixes in the listing's order, whether each is an object, and the objects' sizes."""
    objects = [(listed.key[prefix:], True, listed.size) for listed in page.objects if len(listed.key) > prefix]
    return sorted([*objects, *((name[prefix:], False, 0) for name in page.prefixes)])
