"""Loads random streams whole, within the space of their pools (gateway/policies/streams/prefetch.py decides how much).

It runs beside the tree, in the keeper. The objects of a prefix are listed twice, a page at a time. The first walk adds up their
sizes; once they exceed twice what the pool can hold, it pauses until the pool may hold more. The second walk loads them, from a
place that a reader chose at random to the end and then from the beginning, so that several gateways that see one stream begin at
different places. The blocks of a large object are loaded in order. An object that is a stream itself, or is below another
stream, is left to that stream.

Loads act as reads of the stream's latest reader at the objects' homes, in the background lane, a few at once. Rights and rules
are checked again before each. After a refused or endless listing, or failed loads, the stream rests. Loaded blocks are
remembered until they are read, to know whether loading helped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.base.tasks import Tasks
from gateway.engine.space.stream_prefetch import PrefetchLinks
from gateway.model.access import ObjectRead
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, Principal
from gateway.policies.pools import stream_bucket
from gateway.policies.streams.ahead import pattern_of
from gateway.policies.streams.names import SiblingNames
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import DEPTH, JUDGED, REST, PoolRoom, WholeLoad, read_whole, whole_stream
from gateway.policies.streams.scans import block_span
from gateway.policies.streams.stream import Stream
from gateway.policies.streams.tree import AccessStreamTree, levels
from gateway.policies.streams.zone import AheadReport

MOST_READERS = 64
"""Most streams whose latest reader is remembered."""
MOST_PAGES = 100
"""Pages of a listing, of a thousand names each, beyond which a prefix is not walked."""
BLOCKS_LISTED = 1000
"""Blocks of a large object per step of a walk."""
MOST_UNREAD = 20_000
"""Most objects and blocks of all streams remembered as loaded and unread."""
EPOCHS = 2
"""Reads of a stream, for each of its children, after which earlier loads count as wasted."""
_WHOLE = -1
"""Block number that means the whole object."""

log = logging.getLogger("larder.streams")


class _Unit(NamedTuple):
    """An object, or one block of it."""

    key: ObjectKey
    block: int
    size: int


@dataclass(slots=True)
class _Walk:
    """One walk through the children of a stream.

    Attributes:
        first: the key at which it began; empty for the beginning.
        after: the last key that was listed.
        token: continues the listing.
        pages: listed pages.
        wrapped: whether it reached the end and continued from the beginning.
        ended: whether nothing is left to find.
        units: listed units that are not loaded yet.
        block: the next block of a large object.
    """

    first: str = ""
    after: str = ""
    token: str = ""
    pages: int = 0
    wrapped: bool = False
    ended: bool = False
    units: deque[_Unit] = field(default_factory=deque)
    block: int = 0


@dataclass(slots=True)
class _Whole:
    """The state of one random stream beside its policy.

    Attributes:
        items, size: its objects or blocks, and their bytes, counted so far.
        before: items in the last complete count.
        blocks: those among the items, and those left to streams below it.
        counted: whether the count is complete.
        counted_at: reads of the stream before the count was completed.
        names: names of the stream's children among the items.
        since: bytes loaded since its room was last checked.
        logged: whether the reason why nothing is loaded was logged.
    """

    stream: Stream
    policy: WholeLoad = field(default_factory=WholeLoad)
    items: int = 0
    before: int = 0
    size: int = 0
    blocks: int = 0
    counted: bool = False
    counted_at: int = 0
    walk: _Walk = field(default_factory=_Walk)
    names: SiblingNames = field(default_factory=SiblingNames)
    since: int = 0
    running: bool = False
    logged: bool = False

    @property
    def population(self) -> int:
        """Items that clients choose from: those of the last count, until the next count exceeds it."""
        return max(self.items, self.before)

    def begin(self) -> None:
        """Walk through the stream next, to load all of it."""
        latest = "" if self.stream.blocks else f"{self.stream.prefix}{self.stream.latest}"
        self.counted, self.walk = True, _Walk(latest, latest)

    @property
    def patience(self) -> int:
        """Reads before the next count: as many as there are listed objects, so that listings are comparatively rare."""
        return max(REST, self.items)

    def rest(self, reads: int = REST) -> None:
        """Pause, then count again."""
        self.policy.rest(reads)
        self.count_anew()

    def count_anew(self) -> None:
        """Discard the count; the next walk counts again."""
        self.before = self.items if self.counted else self.before
        self.items, self.size, self.blocks, self.counted, self.walk = 0, 0, 0, False, _Walk()
        self.names = SiblingNames()

    def fail(self, why: object) -> None:
        """Count a failure, and log the first."""
        self.policy.failed()
        self.log_once(why)

    def log_once(self, why: object) -> None:
        """Log why nothing is loaded, once."""
        if not self.logged:
            self.logged = True
            log.info("%(stream)s cannot be loaded as a whole: %(error)s", {"stream": self.stream.name, "error": why})


class WholeStreams:
    """Loads the random streams that one node sees.

    Args:
        tree: of the node's streams.
        links: to the rest of the gateway.
    """

    def __init__(self, tree: AccessStreamTree, links: PrefetchLinks) -> None:
        self._tree = tree
        self._links = links
        self._rooms: Mapping[str, PoolRoom] = {}
        self._streams: dict[str, _Whole] = {}
        self._readers: OrderedDict[str, ObjectRead] = OrderedDict()
        self._unread: OrderedDict[tuple[ObjectKey, int], tuple[_Whole, int, int]] = OrderedDict()
        self._turns = asyncio.Semaphore(DEPTH)
        self._tasks = Tasks()

    def seen(self, stream: Stream | None, read: ObjectRead, block: int) -> None:
        """Record a read of a block; ``stream``: its deepest stream."""
        if self._unread:
            loaded = self._unread.pop((read.key, _WHOLE), None) or self._unread.pop((read.key, block), None)
            if loaded is not None and loaded[1]:
                whole, size, _ = loaded
                whole.policy.read(hit=read.hit)
                STREAM_PREFETCHED.labels("used" if read.hit else "wasted").inc(size)
        if stream is not None:
            name = stream.name
            self._readers[name] = read
            self._readers.move_to_end(name)
            if len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)

    def look(self, rooms: Mapping[str, PoolRoom]) -> None:
        """Set sizes and limits of the streams' pools, by the streams' names."""
        self._rooms = rooms
        for whole in self._streams.values():
            whole.since = 0

    def run_once(self) -> None:
        """Begin the loads that are possible now."""
        for name in self._rooms:
            stream = self._tree.named(name)
            if stream is None or pattern_of(stream, self._links.rights.rules()) is not Pattern.RANDOM:
                continue
            whole = self._streams.get(name)
            if whole is None or whole.stream is not stream:
                whole = self._streams[name] = _Whole(stream)
            whole.policy.advance(stream.draws, whole.population)
            if not whole.running and self._outdated(whole):
                whole.count_anew()
            if not whole.running and self._allowance(whole) > 0:
                whole.running = True
                self._tasks.start(self._run(whole))
        for name, whole in list(self._streams.items()):
            if self._tree.named(name) is not whole.stream:
                del self._streams[name]
        while self._unread:
            whole, _, draws = next(iter(self._unread.values()))
            gone = self._streams.get(whole.stream.name) is not whole
            late = whole.stream.draws > draws + EPOCHS * max(whole.population, JUDGED)
            if not gone and not late and len(self._unread) <= MOST_UNREAD:
                break
            _, (whole, size, _) = self._unread.popitem(last=False)
            if size:
                whole.policy.expired()
                STREAM_PREFETCHED.labels("wasted").inc(size)

    def report(self, stream: str) -> AheadReport:
        """The outcome of loading children of a stream."""
        whole = self._streams.get(stream)
        if whole is None:
            return AheadReport()
        return AheadReport(whole.policy.loaded, whole.policy.used, whole.policy.wasted)

    async def close(self) -> None:
        """Stop all loads."""
        await self._tasks.stop()

    def _outdated(self, whole: _Whole) -> bool:
        """Whether too little fitted when a stream was counted, long ago: its prefix may be smaller now."""
        fits = whole_stream(Pattern.RANDOM, self._rooms[whole.stream.name].target, max(1, whole.size))
        return not fits and whole.stream.draws >= whole.counted_at + whole.patience

    def _allowance(self, whole: _Whole) -> int:
        """Bytes of a stream that may be loaded now; until it is counted, positive if counting may go on."""
        stream, room = whole.stream, self._rooms.get(whole.stream.name)
        if room is None or self._tree.named(stream.name) is not stream or stream.name not in self._readers:
            return 0
        pattern = pattern_of(stream, self._links.rights.rules())
        if len(self._unread) >= MOST_UNREAD or not whole_stream(pattern, room.target, max(1, whole.size)):
            return 0
        if not whole.counted:
            return int(whole.policy.may_look(stream.misses))
        held = room.held + whole.since
        return whole.policy.allowance(stream.bytes, stream.misses, PoolRoom(room.target, held))

    async def _run(self, whole: _Whole) -> None:
        """Load a few children at a time while loads are possible."""
        try:
            while units := await self._next(whole):
                await asyncio.gather(*(self._load(whole, unit) for unit in units))
        finally:
            whole.running = False

    async def _next(self, whole: _Whole) -> list[_Unit]:
        """The children to load now; none if no more may be loaded, or all were considered."""
        chosen: list[_Unit] = []
        while len(chosen) < DEPTH and (allowed := self._allowance(whole) - sum(unit.size for unit in chosen)) > 0:
            units = whole.walk.units
            if not units and (chosen or not await self._advance(whole, whole.walk)):
                break
            if units and units[0].size > allowed:
                break
            if units:
                chosen.append(units.popleft())
        return chosen

    async def _advance(self, whole: _Whole, walk: _Walk) -> bool:
        """List more children; returns whether the walk continues."""
        stream, reader = whole.stream, self._readers[whole.stream.name]
        principal = self._links.rights.principal(reader.principal)
        if principal is None or walk.ended:
            whole.rest()
            return False
        if walk.pages >= MOST_PAGES:
            whole.log_once(f"its listing has more than {MOST_PAGES} pages")
            whole.rest(whole.patience)
            return False
        walk.pages += 1
        if stream.blocks:
            listed = self._blocks(stream, walk, reader)
        else:
            try:
                listed = await self._list(stream, walk, reader, principal)
            except LarderError as failure:
                whole.fail(failure)
                whole.rest()
                return False
            whole.policy.looked_up()
        own = [unit for unit in listed if stream.blocks or self._deepest(unit) is stream]
        if whole.counted:
            walk.units.extend(own)
        else:
            whole.blocks += sum(-(-unit.size // self._links.block_size) for unit in listed)
            if not stream.blocks:
                whole.names.list_page(levels(unit.key.key)[stream.level - 1] for unit in listed)
            self._count(whole, walk, own)
        return True

    def _count(self, whole: _Whole, walk: _Walk, listed: Sequence[_Unit]) -> None:
        """Add up. Once all is counted, load the stream, or leave it if readers read only parts of it.

        If too little fits, counting or loading continues once the pool may hold more (``_allowance``). The stream's reads
        include those of streams below it, so their objects count among its items. An empty listing does not tell their number:
        they were deleted, or are empty.
        """
        whole.items += len(listed)
        whole.size += sum(unit.size for unit in listed)
        whole.counted_at = whole.stream.draws
        if walk.ended and whole.blocks:
            whole.stream.listed, whole.stream.counted = whole.blocks, True
            whole.names.end_listing()
            self._tree.siblings(whole.stream.name, whole.names)
        whole.stream.listed = max(whole.stream.listed, whole.blocks)
        mean, draws = whole.size // max(1, whole.items), whole.stream.draws - whole.stream.early
        if not read_whole(whole.stream.bytes, draws, mean):
            whole.rest()
        elif walk.ended:
            whole.begin()

    def _deepest(self, unit: _Unit) -> Stream | None:
        return self._tree.stream_of(stream_bucket(unit.key), unit.key.key)

    def _blocks(self, stream: Stream, walk: _Walk, reader: ObjectRead) -> list[_Unit]:
        """The next blocks of a large object."""
        first, walk.block = walk.block, min(stream.blocks, walk.block + BLOCKS_LISTED)
        walk.ended = walk.block >= stream.blocks
        return [_Unit(reader.key, number, self._links.block_size) for number in range(first, walk.block)]

    async def _list(self, stream: Stream, walk: _Walk, reader: ObjectRead, principal: Principal) -> list[_Unit]:
        """The objects on the next page."""
        page = await self._links.listings.list_page(
            principal.identity, reader.key.bucket, stream.prefix, start_after=walk.after, token=walk.token
        )
        # Without a token, the next page is requested by name: a name that does not advance would be listed forever.
        by_name = not (walk.token or page.token)
        objects = [listed for listed in page.objects if not by_name or listed.key > walk.after]
        last = not page.truncated or not objects
        if objects:
            walk.after = objects[-1].key
        if walk.wrapped:
            # Not by comparison, because SeaweedFS does not list in the order of the keys' bytes.
            come_round = [at for at, listed in enumerate(objects) if f"{listed.key}/".startswith(f"{walk.first}/")]
            walk.ended = last or bool(come_round)
            objects = objects[: come_round[0] + 1] if come_round else objects
        walk.token = page.token
        if last and not walk.wrapped:
            walk.wrapped, walk.after, walk.token = True, "", ""
            walk.ended = not walk.first
        return [_Unit(reader.key._replace(key=listed.key), _WHOLE, listed.size) for listed in objects if listed.size]

    async def _load(self, whole: _Whole, unit: _Unit) -> None:
        """Load an object or block, if its reader may still read it."""
        async with self._turns:
            reader = self._readers.get(whole.stream.name)
            principal = None if reader is None else self._links.rights.principal(reader.principal)
            if principal is None or not self._links.rights.permit(principal, unit.key.path):
                return
            whole.policy.looked_up()
            place = unit.key, unit.block
            self._unread[place] = whole, 0, whole.stream.draws
            span = None if unit.block == _WHOLE else block_span(unit.block, self._links.block_size)
            done = await self._links.load(unit.key, principal, span)
        waiting = self._unread.pop(place, None) is not None
        if done.failure:
            whole.fail(done.failure)
            return
        whole.policy.arrived(0 if done.there else done.size)
        if done.there:
            return
        whole.since += done.size
        STREAM_PREFETCHED.labels("loaded").inc(done.size)
        if waiting:
            self._unread[place] = whole, done.size, whole.stream.draws
        else:  # its reader arrived while it was loaded
            whole.policy.read(hit=True)
            STREAM_PREFETCHED.labels("used").inc(done.size)
