"""Read-ahead as a machine of events and instructions. The gateway and the simulator run it, and only carry out what it says.

Events are a read, a turn, a listed or refused page, and an ended load. Instructions are a page to list, a load to begin, and a
failure to log. ``prefetch.py`` decides how far to go.

It loads the siblings after the last read of a sequential stream: the next blocks of a large object, the next objects of a
prefix, or the same names below the next prefixes. Where names below prefixes differ, such as images in class folders, it loads
the next objects of all prefixes. Siblings are listed a page at a time, as the reader advances. If the store refuses to list, or
its listing does not advance, the names seen so far are used instead. Loads wait for their turn in one bounded queue.

Events interleave as follows; the code that handles a case repeats its number:

1. A reader arrives while its load is in flight: the load is used.
2. A reader passes a load that waits: the load is left out when its turn comes.
3. A stream ends while its loads wait, or between two objects of a sibling: the rest is left out, loads in flight are wasted.
4. A stream ends and begins again meanwhile: loads and pages belong to the scan that asked for them, not to its name.
5. A key is withdrawn, or a rule changed, while a load waits: rights are looked up before each load.
6. The siblings become those of another depth while a page is listed: the page is dropped.
7. More loads are wanted than may wait: the oldest are dropped, and count as wasted once nobody has read them.
8. A stream wants what another one has in flight, such as a folder's next object and that of all folders: it is left out.
9. A scan starts over while a page is listed: the page is dropped, and the next turn lists after the new position.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice

from gateway.model.access import ObjectRead
from gateway.policies.streams.groups import pool_of_scan
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
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.prefetch import PREDECESSORS, AheadOf, paths_below, read_whole
from gateway.policies.streams.scans import LIST_AGAIN, Scan, ScanReader, ShortObjects, Unit, Want, child
from gateway.policies.streams.stream import Segment, Stream
from gateway.policies.streams.tree import AccessStreamTree, has_blocks, levels
from gateway.policies.streams.zone import AheadReport

MOST_STREAMS = 64
"""The most streams with prefetching."""
MOST_PATHS = 64
"""The most objects and spans loaded below one sibling."""
AT_ONCE = 16
"""The most loads in flight, of all streams."""
MOST_WAITING = 1024
"""Maximum waiting loads; above that, the oldest are dropped."""


class ReadAhead:
    """The read-ahead of one node.

    Args:
        tree: of the node's streams. A read is recorded here first, and then in the tree.
        rights: of readers.
        block_size: of objects, in bytes.
        most_bytes: the most unread bytes that may be loaded ahead of one stream.

    Attributes:
        bytes: loaded, used and wasted so far.
    """

    def __init__(self, tree: AccessStreamTree, rights: LoadRights, block_size: int, most_bytes: int) -> None:
        self.bytes = AheadBytes()
        self._tree = tree
        self._rights = rights
        self._block_size = block_size
        self._most_bytes = most_bytes
        self._scans: dict[str, Scan] = {}
        self._short = ShortObjects(self.bytes)
        self._latest: deque[tuple[str, ObjectRead, int]] = deque(maxlen=MOST_STREAMS)
        self._waiting: OrderedDict[tuple[str, Segment], Want] = OrderedDict()
        self._in_flight: set[Unit] = set()
        self._now = 0.0

    # --- events

    def read(self, bucket: str, read: ObjectRead, block: int, blocks: int) -> None:
        """A block of an object of ``blocks`` blocks was read; ``bucket`` is the first level of its streams."""
        key = read.key.key
        bucket = self._tree.scanning.bucket_of(bucket, key, read.client)
        self._latest.append((bucket, read, block))
        name = f"{bucket}/"
        for segment in levels(key):
            if (scan := self._scans.get(name)) is not None:
                rest = key[len(name) - len(bucket) - 1 :]
                scan.read(rest if scan.deep else segment, read, folder=not scan.deep and rest != segment)
            name = f"{name}{segment}/"
        if not has_blocks(key, blocks):
            return
        name = name[:-1]
        if (scan := self._scans.get(name)) is not None:
            scan.read(block, read)
        else:
            self._short.read(name, read, block, blocks, self._block_size)

    def turn(self, now: float) -> list[Instruction]:
        """Continue with the reads and listings since the last turn; ``now`` in seconds."""
        self._now = now
        for want in self._short.take_wants(self._block_size):
            self._wait(want)
        latest = self._sequential()[:MOST_STREAMS]
        for name in self._scans.keys() - {stream.name for stream in latest}:
            self._scans.pop(name).close()
        pages: list[Instruction] = []
        for stream in latest:
            if (scan := self._scans.get(stream.name)) is None:
                scan = self._scans[stream.name] = self._begin(stream)
            if scan.reads != stream.accesses and scan.reader is not None:
                scan.reads = stream.accesses
                pages += self._advance(stream, scan, scan.reader)
        return [*pages, *self._loads()]

    def listed(self, asked: ListPage[Scan], page: ListedPage) -> list[Instruction]:
        """A page was listed. The next turn continues with it."""
        scan = asked.asker
        scan.listing = False
        if scan.after != asked.after:  # (6, 9)
            scan.reads = -1
            return []
        if scan.take_page(asked.after, page):
            return []
        return self.refused(asked, "its listing does not advance")

    def refused(self, asked: ListPage[Scan], why: str) -> list[Instruction]:
        """A page could not be listed."""
        scan = asked.asker
        scan.listing, scan.list_at = False, self._now + LIST_AGAIN
        return [LogFailure(scan.name, why)] if scan.fail() else []

    def ended(self, load: Load[Want], size: int, *, there: bool, failure: str = "") -> list[Instruction]:
        """A load ended: ``size`` bytes are cached now, and were before if ``there``; or ``failure`` says why not."""
        self._in_flight.remove((load.key, load.span))
        want = load.asker
        if failure:
            log = [LogFailure(want.name, failure)] if want.scan.failed(want) else []
            return [*log, *self._loads()]
        if not there:
            want.there = False
            want.scan.arrived(want, size)
        return [*self._next(want), *self._loads()]

    # --- queries

    def report(self, stream: str) -> AheadReport:
        """The outcome of loading ahead, by children of a stream."""
        scan = self._scans.get(stream)
        return AheadReport() if scan is None else scan.policy.report()

    # --- loads

    def _wait(self, want: Want) -> None:
        self._waiting[want.name, want.sibling] = want
        if len(self._waiting) > MOST_WAITING:  # (7)
            self._waiting.popitem(last=False)

    def _loads(self) -> Iterator[Load[Want]]:
        """The loads to begin now, the longest waiting first."""
        while self._waiting and len(self._in_flight) < AT_ONCE:
            yield from self._next(self._waiting.popitem(last=False)[1])

    def _next(self, want: Want) -> Iterator[Load[Want]]:
        """The next load of a sibling, if it is wanted and permitted (5)."""
        scan = want.scan
        if not scan.wants(want):
            return
        if not want.begun:
            want.begun = True
            scan.begin(want)
        principal = self._rights.principal(want.reader)
        while want.units:
            unit = want.units.popleft()
            if unit in self._in_flight:  # (8)
                continue
            if principal is not None and self._rights.permit(principal, unit[0].path, scan.without):
                self._in_flight.add(unit)
                yield Load(principal, *unit, want, pool_of_scan(want.name))
                return
        scan.done(want)

    # --- streams

    def _sequential(self) -> list[Stream]:
        """The streams to load ahead of, the last read first, and then beginnings.

        A beginning is skipped while its reader hits, and below a stream whose scan already continues from folder to folder: each
            folder would be listed once more.
        """
        rules = self._rights.rules()
        deep = [name for name, scan in self._scans.items() if scan.deep and not scan.policy.resting]
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

    def _begin(self, stream: Stream) -> Scan:
        """Start loading ahead of a new stream at its latest read, because its client may have no other read in progress."""
        scan = Scan(stream.name, AheadOf(self._most_bytes, self.bytes))
        for bucket, read, block in reversed(self._latest):
            if bucket != stream.bucket or not read.key.key.startswith(stream.prefix):
                continue
            if not stream.blocks:
                segment, rest = child(stream, read.key.key)
                scan.read(segment, read, folder=rest != segment)
                break
            if read.key.key == stream.prefix:
                scan.read(block, read)
                break
        return scan

    def _advance(self, stream: Stream, scan: Scan, reader: ScanReader) -> Iterator[ListPage[Scan]]:
        """Request the siblings after a reader; yields the page to list for the siblings beyond them."""
        principal = self._rights.principal(reader.access_key)
        if principal is None or scan.policy.resting:
            return
        if stream.blocks:
            if read_whole(stream.bytes, stream.draws - stream.early, self._block_size):
                first = int(reader.latest) + 1
                blocks = range(first, stream.blocks)[: scan.policy.depth]
                for block in scan.policy.following(blocks, self._block_size):
                    unit = reader.key, block_span(int(block), self._block_size)
                    self._wait(Want(scan, stream.name, block, reader.access_key, deque([unit])))
            return
        predecessors = self._tree.below(stream, PREDECESSORS + 1)[1:]
        paths = paths_below(predecessors)
        scan.look(stream, reader, deep=bool(predecessors) and not paths)
        latest = str(reader.latest)
        if (after := scan.lists(latest, self._now)) is not None:
            yield ListPage(principal, reader.key.bucket, stream.prefix, after, scan.deep, scan)
        kinds = {not path or isinstance(path[0], int) for path in paths or ((),)}
        for sibling in scan.following(stream, latest, kinds):
            units: Iterator[Unit] = scan.units(stream, reader.key, str(sibling), paths, self._block_size)
            wanted = deque(islice(units, MOST_PATHS))
            self._wait(Want(scan, stream.name, sibling, reader.access_key, wanted))
