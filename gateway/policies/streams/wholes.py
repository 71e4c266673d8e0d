"""Loads random streams whole, within the space of their pools: a machine (``prefetch.py`` decides how much).

The objects of a prefix are listed twice, a page at a time. The first walk adds up their sizes; once they exceed twice what the
pool can hold, it pauses until the pool may hold more. The second walk loads them, from a place that a reader chose at random to
the end and then from the beginning, so that several gateways that see one stream begin at different places. The blocks of a
large object are loaded in order. An object that is a stream itself, or is below another stream, is left to that stream.

Loads act as reads of the stream's latest reader, a few at once. After a refused or endless listing, or failed loads, the stream
rests. Loaded blocks are remembered until they are read, to know whether loading helped.

Events interleave as follows; the code that handles a case repeats its number:

1. A reader arrives while its object is in flight: the load is used.
2. The stream ends, or another of its name begins: what is listed or loaded for it ends, and nothing follows.
3. A key is withdrawn, or a rule changed, while a load waits: rights are looked up before each load.
4. A loaded object is evicted before it is read: its reader misses, and it was wasted.
5. The pool shrinks or goes: the few loads that were chosen continue, and nothing follows them until it has room.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey
from gateway.policies.pools import stream_bucket
from gateway.policies.streams.instructions import (
    AheadBytes,
    Instruction,
    ListedPage,
    ListPage,
    Load,
    LoadRights,
    LogFailure,
    block_span,
    pattern_of,
)
from gateway.policies.streams.names import SiblingNames
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import DEPTH, JUDGED, REST, PoolRoom, WholeLoad, read_whole, whole_stream
from gateway.policies.streams.stream import Stream
from gateway.policies.streams.tree import AccessStreamTree, levels
from gateway.policies.streams.zone import AheadReport

MOST_READERS = 64
"""The most streams whose latest reader is remembered."""
MOST_PAGES = 100
"""Pages of a listing, of a thousand names each, beyond which a prefix is not walked."""
BLOCKS_LISTED = 1000
"""Blocks of a large object per step of a walk."""
MOST_UNREAD = 20_000
"""The most objects and blocks of all streams remembered as loaded and unread."""
EPOCHS = 2
"""Reads of a stream, for each of its children, after which earlier loads count as wasted."""
_WHOLE = -1
"""Block number that means the whole object."""


class _Unit(NamedTuple):
    """An object, or one block of it."""

    key: ObjectKey
    block: int
    size: int


@dataclass(slots=True)
class _Walk:
    """One walk through the children of a stream.

    Attributes:
        first: the name at which it began; empty for the beginning.
        after: the last name that was listed.
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

    def take_page(self, page: ListedPage) -> list[tuple[str, int]]:
        """Take over the next page; returns the names of its objects that belong to the walk, with their bytes."""
        # Without a token, the next page is requested by name: a name that does not advance would be listed forever.
        by_name = not (self.token or page.token)
        objects = [(name, size) for name, is_object, size in page.siblings if is_object]
        objects = [(name, size) for name, size in objects if not by_name or name > self.after]
        last = not page.truncated or not objects
        if objects:
            self.after = objects[-1][0]
        if self.wrapped:
            # Not by comparison, because SeaweedFS does not list in the order of the keys' bytes.
            come_round = [at for at, (name, _) in enumerate(objects) if f"{name}/".startswith(f"{self.first}/")]
            self.ended = last or bool(come_round)
            objects = objects[: come_round[0] + 1] if come_round else objects
        self.token = page.token
        if last and not self.wrapped:
            self.wrapped, self.after, self.token = True, "", ""
            self.ended = not self.first
        return [(name, size) for name, size in objects if size]


@dataclass(slots=True, eq=False)
class _Whole:
    """The state of one random stream, apart from its policy.

    Attributes:
        items, size: its objects or blocks, and their bytes, counted so far.
        before: items in the last complete count.
        blocks: those among the items, and those left to streams below it.
        counted: whether the count is complete.
        counted_at: reads of the stream before the count was completed.
        names: names of the stream's children among the items.
        since: bytes loaded since its room was last checked.
        running: pages and loads that it waits for.
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
    running: int = 0
    logged: bool = False

    @property
    def population(self) -> int:
        """Items that clients choose from: those of the last count, until the next count exceeds it."""
        return max(self.items, self.before)

    def begin(self) -> None:
        """Walk through the stream next, to load all of it."""
        latest = "" if self.stream.blocks else str(self.stream.latest)
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

    def fail(self, why: str) -> list[Instruction]:
        """Count a failure, and log the first."""
        self.policy.failed()
        return self.log_once(why)

    def log_once(self, why: str) -> list[Instruction]:
        """Log why nothing is loaded, once."""
        first, self.logged = not self.logged, True
        return [LogFailure(self.stream.name, why, whole=True)] if first else []


class WholeStreams:
    """The machine that loads the random streams of one node.

    Args:
        tree: of the node's streams. A read is recorded there first, and then here.
        rights: of readers.
        block_size: of objects, in bytes.

    Attributes:
        bytes: loaded, used and wasted so far.
    """

    def __init__(self, tree: AccessStreamTree, rights: LoadRights, block_size: int) -> None:
        self.bytes = AheadBytes()
        self._tree = tree
        self._rights = rights
        self._block_size = block_size
        self._rooms: Mapping[str, PoolRoom] = {}
        self._streams: dict[str, _Whole] = {}
        self._readers: OrderedDict[str, ObjectRead] = OrderedDict()
        self._unread: OrderedDict[tuple[ObjectKey, int], tuple[_Whole, int, int]] = OrderedDict()
        """Units loaded and not read: their streams, their bytes (0 while in flight), and the reads of the stream before."""
        self._ready: deque[_Whole] = deque()
        self._waiting: deque[tuple[_Whole, _Unit]] = deque()
        self._in_flight = 0

    # --- events

    def read(self, stream: Stream | None, read: ObjectRead, block: int) -> None:
        """A block was read; ``stream``: its deepest stream."""
        if self._unread:
            loaded = self._unread.pop((read.key, _WHOLE), None) or self._unread.pop((read.key, block), None)
            if loaded is not None and loaded[1]:  # else (1)
                whole, size, _ = loaded
                self._judge(whole, size, hit=read.hit)  # (4)
        if stream is not None:
            name = stream.name
            self._readers[name] = read
            self._readers.move_to_end(name)
            if len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)

    def look(self, rooms: Mapping[str, PoolRoom]) -> None:
        """Sizes and limits of the streams' pools are known, by the streams' names."""
        self._rooms = rooms
        for whole in self._streams.values():
            whole.since = 0

    def turn(self, now: float) -> list[Instruction]:
        """Begin the loads that are possible now."""
        for name in self._rooms:
            stream = self._tree.named(name)
            if stream is None or pattern_of(stream, self._rights.rules()) is not Pattern.RANDOM:
                continue
            whole = self._streams.get(name)
            if whole is None or whole.stream is not stream:  # (2)
                whole = self._streams[name] = _Whole(stream)
            whole.policy.advance(stream.draws, whole.population)
            if not whole.running and self._outdated(whole):
                whole.count_anew()
            if not whole.running and self._allowance(whole) > 0:
                self._ready.append(whole)
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
                self.bytes.wasted += size
        return self._proceed()

    def listed(self, asked: ListPage[tuple[_Whole, ObjectKey]], page: ListedPage) -> list[Instruction]:
        """A page was listed."""
        whole, key = asked.asker
        objects = whole.walk.take_page(page)
        whole.policy.looked_up()
        self._take(whole, [_Unit(key._replace(key=f"{asked.prefix}{name}"), _WHOLE, size) for name, size in objects])
        self._ended(whole)
        return self._proceed()

    def refused(self, asked: ListPage[tuple[_Whole, ObjectKey]], why: str) -> list[Instruction]:
        """A page could not be listed: the stream rests."""
        whole, _ = asked.asker
        log = whole.fail(why)
        whole.rest()
        whole.running -= 1
        return [*log, *self._proceed()]

    def ended(
        self, load: Load[tuple[_Whole, _Unit]], size: int, *, there: bool, failure: str = ""
    ) -> list[Instruction]:
        """A load ended: ``size`` bytes are cached now, and were before if ``there``; or ``failure`` says why not."""
        self._in_flight -= 1
        whole, unit = load.asker
        place = unit.key, unit.block
        waiting = self._unread.pop(place, None) is not None
        log: list[Instruction] = []
        if failure:
            log = whole.fail(failure)
        else:
            whole.policy.arrived(0 if there else size)
        if not (failure or there):
            whole.since += size
            self.bytes.loaded += size
            if waiting:
                self._unread[place] = whole, size, whole.stream.draws
            else:  # (1)
                self._judge(whole, size, hit=True)
        self._ended(whole)
        return [*log, *self._proceed()]

    # --- queries

    def report(self, stream: str) -> AheadReport:
        """The outcome of loading children of a stream."""
        whole = self._streams.get(stream)
        return AheadReport() if whole is None else whole.policy.report()

    # --- loads

    def _judge(self, whole: _Whole, size: int, *, hit: bool) -> None:
        whole.policy.read(hit=hit)
        if hit:
            self.bytes.used += size
        else:
            self.bytes.wasted += size

    def _ended(self, whole: _Whole) -> None:
        """A page or a load of a stream has ended; after the last one the stream continues."""
        whole.running -= 1
        if not whole.running:
            self._ready.append(whole)

    def _proceed(self) -> list[Instruction]:
        """What streams list and load next, ``DEPTH`` loads at once."""
        instructions: list[Instruction] = []
        while True:
            if self._waiting and self._in_flight < DEPTH:
                instructions += self._load(*self._waiting.popleft())
            elif self._ready:
                instructions += self._next(self._ready.popleft())
            else:
                return instructions

    def _next(self, whole: _Whole) -> list[Instruction]:
        """Choose the children to load next, or list more if none is known."""
        chosen: list[_Unit] = []
        while len(chosen) < DEPTH and (allowed := self._allowance(whole) - sum(unit.size for unit in chosen)) > 0:
            units = whole.walk.units
            if not units and chosen:
                break
            if not units:
                instructions = self._advance(whole, whole.walk)
                if instructions is not None:
                    return instructions
            elif units[0].size > allowed:
                break
            else:
                chosen.append(units.popleft())
        whole.running += len(chosen)
        self._waiting.extend((whole, unit) for unit in chosen)
        return []

    def _load(self, whole: _Whole, unit: _Unit) -> list[Instruction]:
        """Load an object or block, if its reader may still read it (3)."""
        reader = self._readers.get(whole.stream.name)
        principal = None if reader is None else self._rights.principal(reader.principal)
        if principal is None or not self._rights.permit(principal, unit.key.path):
            self._ended(whole)
            return []
        self._in_flight += 1
        whole.policy.looked_up()
        self._unread[unit.key, unit.block] = whole, 0, whole.stream.draws
        span = None if unit.block == _WHOLE else block_span(unit.block, self._block_size)
        return [Load(principal, unit.key, span, (whole, unit))]

    # --- room

    def _outdated(self, whole: _Whole) -> bool:
        """Whether a stream did not fit when it was counted, and that was long ago: its prefix may be smaller now."""
        fits = whole_stream(Pattern.RANDOM, self._rooms[whole.stream.name].target, max(1, whole.size))
        return not fits and whole.stream.draws >= whole.counted_at + whole.patience

    def _allowance(self, whole: _Whole) -> int:
        """Bytes of a stream that may be loaded now; until it is counted, positive if counting may continue (2, 5)."""
        stream, room = whole.stream, self._rooms.get(whole.stream.name)
        if room is None or self._tree.named(stream.name) is not stream or stream.name not in self._readers:
            return 0
        pattern = pattern_of(stream, self._rights.rules())
        if len(self._unread) >= MOST_UNREAD or not whole_stream(pattern, room.target, max(1, whole.size)):
            return 0
        if not whole.counted:
            return int(whole.policy.may_look(stream.misses))
        held = room.held + whole.since
        return whole.policy.allowance(stream.bytes, stream.misses, PoolRoom(room.target, held))

    # --- the walk

    def _advance(self, whole: _Whole, walk: _Walk) -> list[Instruction] | None:
        """List more children. Returns the instructions to carry out first, none if the walk ends; ``None`` if the children are
        known at once."""
        stream, reader = whole.stream, self._readers[whole.stream.name]
        principal = self._rights.principal(reader.principal)
        if principal is None or walk.ended:
            whole.rest()
            return []
        if walk.pages >= MOST_PAGES:
            log = whole.log_once(f"its listing has more than {MOST_PAGES} pages")
            whole.rest(whole.patience)
            return log
        walk.pages += 1
        if stream.blocks:
            first, walk.block = walk.block, min(stream.blocks, walk.block + BLOCKS_LISTED)
            walk.ended = walk.block >= stream.blocks
            blocks = range(first, walk.block)
            self._take(whole, [_Unit(reader.key, number, self._block_size) for number in blocks])
            return None
        whole.running += 1
        asker = whole, reader.key
        return [ListPage(principal, reader.key.bucket, stream.prefix, walk.after, True, asker, walk.token)]

    def _take(self, whole: _Whole, listed: Sequence[_Unit]) -> None:
        """Take over listed children: to load them, or to count them first."""
        stream = whole.stream
        own = [unit for unit in listed if stream.blocks or self._deepest(unit) is stream]
        if whole.counted:
            whole.walk.units.extend(own)
            return
        whole.blocks += sum(-(-unit.size // self._block_size) for unit in listed)
        if not stream.blocks:
            whole.names.list_page(levels(unit.key.key)[stream.level - 1] for unit in listed)
        self._count(whole, whole.walk, own)

    def _count(self, whole: _Whole, walk: _Walk, listed: Sequence[_Unit]) -> None:
        """Add up. Once all is counted, load the stream, or leave it if readers read only parts of it.

        If too little fits, counting or loading continues once the pool may hold more (``_allowance``). The stream's reads
        include those of streams below it, so their objects count among its items. An empty listing says nothing about their
            number: they were deleted, or are empty.
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
