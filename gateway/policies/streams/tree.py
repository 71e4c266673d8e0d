"""The AccessStreamTree: recent reads by bucket, prefix, object and block (IGTCache, section 3.1).

Every level of a path is a node, down to the blocks of large objects. A node with more children than its window holds reads is
*non-trivial*: it is a stream. Its pattern is recognised from the latest reads of its children (``pattern.py``), again after each
window. Successive reads of one client below the same child are one read of that child: a scan of directories is sequential at the
level of directories too.

Before that, a prefix whose first children are read in order is a *beginning*: the following children are loaded ahead, and
nothing else differs. Otherwise a scan of a few hundred files, or of small folders, would be over before it is recognised.

Its bounds:

- Levels without branches are one node, whose label has several segments. A path read once is a tuple in its parent, not a node.
- A stream keeps its latest children; those with streams below stay longer than others.
- Above the bound the least recently used tenth is dropped, subtrees before the nodes above them.
- Names of siblings are sampled (``names.py``).
- A trivial node remembers about twice as many reads as it has children.
- A key has at most 33 levels; its last one may hold slashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter

from gateway.policies.streams.groups import JUDGED, SCANS, ScanningClients
from gateway.policies.streams.lifetime import gaps_of
from gateway.policies.streams.names import SiblingNames, mark_of
from gateway.policies.streams.pattern import (
    MOST_WINDOWS,
    SEQUENTIAL_RHO,
    WINDOW,
    Pattern,
    estimated_count,
    recognise,
    trend,
)
from gateway.policies.streams.stream import Segment, Stream
from gateway.policies.streams.unevenness import MOST_UNEVEN

Tail = tuple[Segment, ...]
"""The segments below a child, relative to it; empty for a small object."""

MOST_NODES = 10_000
MOST_LEVELS = 32
"""Levels of a key that can be prefixes; the rest below them is one name. A deep key would make each read of its path
expensive."""
MOST_TAILS = 256
"""The most paths below a child that ``below`` returns, the first ones read."""
LOOK_EVERY = 0.5
"""The fewest seconds between two recognitions of a stream's pattern; each takes up to a millisecond."""
_MOST_CLIENTS = 64
"""Clients of a node whose last child is remembered."""
_FEW = (16, 32, 64)
"""Numbers of children at which a prefix that is not a stream yet is tested for reads in order."""
_LOOKED_AT = 8
"""When a child must be dropped, the most children that are skipped because of streams below them."""


def levels(key: str) -> list[str]:
    """The levels of a key."""
    return key.split("/", MOST_LEVELS)


def has_blocks(key: str, blocks: int) -> bool:
    """Whether the blocks of an object are a level of the tree. True for large objects, unless the key ends in a slash: its stream
    would have the same name as the prefix's."""
    return blocks > 1 and not key.endswith("/")


def _path(bucket: str, key: str, block: int | None) -> list[Segment]:
    """The segments of the path of a key, or of one block of it."""
    return [bucket, *levels(key)] if block is None else [bucket, *levels(key), block]


class _Branch:
    """A node of several paths. ``label`` has the segments below its name in its parent."""

    __slots__ = ("children", "holds_streams", "label", "last", "last_time", "room", "stream", "trail", "window")

    def __init__(self, label: list[Segment]) -> None:
        self.label = label
        self.children: dict[Segment, _Branch | Tail] = {}
        """Children in the order of their last use. A tuple is the rest of a path on which nothing else was read."""
        self.window: list[tuple[Segment, float, int]] = []
        self.room = 0
        """Reads in the window at which it may be too long."""
        self.last: dict[int, Segment] = {}
        """The last child of each client."""
        self.last_time = 0.0
        self.holds_streams = False
        self.stream: Stream | None = None
        self.trail: _Place | None = None
        """The key under which ``AccessStreamTree`` keeps its path."""

    def record(self, name: Segment, time: float, client: int) -> None:
        """Record a read of a child by a client whose last read was another child."""
        last, window = self.last, self.window
        if len(last) >= _MOST_CLIENTS:
            last.clear()
        last[client] = name
        window.append((name, time, client))
        if len(window) > self.room:
            most = len(self.children) + 8
            if self.stream is not None:
                most *= min(len(last), MOST_WINDOWS)
            if len(window) > 2 * most:
                del window[:-most]
            self.room = 2 * most


_Step = tuple[_Branch, Segment]
"""A node, and its child on a path."""
_Place = tuple[str, str]
"""Bucket and prefix of a node, the prefix with a ``/`` at its end unless it is empty."""


class AccessStreamTree:
    """Folds reads into streams and recognises their patterns.

    Args:
        bound: maximum number of nodes.
        window: reads from which a pattern is recognised.
    """

    def __init__(self, bound: int = MOST_NODES, window: int = WINDOW) -> None:
        self._bound = bound
        self._window = window
        self._root = _Branch([])
        self._streams: dict[str, Stream] = {}
        self._beginnings: dict[str, Stream] = {}
        self.scanning = ScanningClients()
        self._trails: dict[_Place, tuple[tuple[_Step, ...], _Branch]] = {}
        """Each node with the steps down to it, so that a read below a known path need not descend name by name."""
        self.nodes = 0

    def record(
        self,
        bucket: str,
        key: str,
        block: int,
        blocks: int,
        time: float,
        client: int,
        hit: bool,
        size: int = 0,
        waited: float = 0.0,
    ) -> Stream | None:
        """Fold one read; returns the deepest stream that it belongs to.

        Args:
            block: the number of the block that was read.
            blocks: how many the object has; 1 for a small object, which is not a level by itself.
            time: seconds; reads may come a little out of order.
            client: who read. Order is judged within the reads of each.
            hit: whether it was a hit.
            size, waited: bytes that were read, and seconds until the answer.
        """
        if self.scanning.read(bucket, key, client):
            for above in self._above(bucket, key):
                above.count(mark_of(f"{key}/{block}"), hit, size, max(time, above.last_access), waited)
            bucket = f"{SCANS}{bucket}"
        way, rest = self._way(bucket, key, block if has_blocks(key, blocks) else None)
        deepest, mark = None, -1
        for node, name in way:
            if time > node.last_time:
                node.last_time = time
            fresh = node.last.get(client) != name
            if fresh:
                node.record(name, time, client)
            child = (children := node.children).pop(name, None)
            children[name] = rest if child is None else child
            if child is None:
                self._grown(node, bucket, key, block, blocks, len(rest))
            stream = node.stream
            if stream is not None:
                mark = mark if mark >= 0 else mark_of(f"{key}/{block}")
                stream.count(mark, hit, size, node.last_time, waited)
                if fresh:
                    stream.recent.add(mark)
                    self._drawn(node, stream, name, child is None, time)
                    if isinstance(name, str) and stream.beside_scans(client, name):
                        self._split_off(node, stream, client)
                if not stream.beginning:
                    deepest = stream
        if self.nodes > self._bound:
            self._sweep()
        return deepest

    def streams(self) -> list[Stream]:
        """All streams, by name."""
        return [self._streams[name] for name in sorted(self._streams)]

    def beginnings(self) -> list[Stream]:
        """Prefixes that are not streams yet, whose first children were read in order."""
        return list(self._beginnings.values())

    def named(self, name: str) -> Stream | None:
        """The stream of that name."""
        return self._streams.get(name)

    def stream_of(self, bucket: str, key: str) -> Stream | None:
        """The deepest stream above a key, or the stream of its blocks if it has one."""
        return next((stream for stream in reversed(self._above(bucket, key)) if not stream.beginning), None)

    def led_by(self, bucket: str, key: str) -> Stream | None:
        """The result of ``stream_of``, or the beginning of a stream if that is deeper."""
        return next(reversed(self._above(bucket, key)), None)

    def siblings(self, name: str, names: SiblingNames) -> None:
        """Take over a complete listing of a stream's children.

        Args:
            name: of the stream. An unknown name is ignored.
            names: of objects and prefixes, relative to the stream's prefix, without a ``/`` at their end.
        """
        stream = self._streams.get(name)
        if stream is not None and not stream.blocks:
            stream.listing = names

    def below(self, stream: Stream, children: int) -> list[list[Tail]]:
        """The reads below each of a stream's latest children, latest first; small objects have one empty path."""
        node = self._node_of(stream)
        if node is None:
            return []
        latest = islice(reversed(node.children.items()), children)
        return [[child] if isinstance(child, tuple) else [*islice(_tails(child), MOST_TAILS)] for _, child in latest]

    # --- one node

    def _above(self, bucket: str, key: str) -> list[Stream]:
        """Streams and beginnings above a key, the deepest last."""
        path = _path(bucket, key, None)
        node, at, end = self._root, 0, len(path)
        streams: list[Stream] = []
        while True:
            if node.stream is not None:
                streams.append(node.stream)
            child = node.children.get(path[at]) if at < end else None
            if child is None or isinstance(child, tuple):
                return streams
            at += 1
            if path[at : at + len(child.label)] != child.label:
                return streams
            at += len(child.label)
            node = child

    def _way(self, bucket: str, key: str, block: int | None) -> tuple[tuple[_Step, ...], Tail]:
        """The nodes on the path of a key, or of one block of it, each with its child on the path; and the rest of the path below
        the last child."""
        name: Segment
        if block is None:
            at = key.rfind("/") + 1
            place, name = (bucket, key[:at]), key[at:]
        else:
            place, name = (bucket, f"{key}/"), block
        known = self._trails.get(place)
        if known is None or known[1].children.get(name):
            return self._climb(place, _path(bucket, key, block))
        steps, node = known
        return (*steps, (node, name)), ()

    def _climb(self, place: _Place, path: list[Segment]) -> tuple[tuple[_Step, ...], Tail]:
        """The result of ``_way``, found name by name. A node is made where the path branches off one that was read alone so
        far."""
        way: list[_Step] = []
        node, at, end = self._root, 0, len(path)
        while at < end:
            name = path[at]
            at += 1
            way.append((node, name))
            if at == end <= MOST_LEVELS:
                self._trails[place] = tuple(way[:-1]), node
                node.trail = place
            child = node.children.get(name)
            if child is None:
                break
            if isinstance(child, tuple):
                if len(child) == end - at and (at == end or child == tuple(path[at:])):
                    break
                child = node.children[name] = self._fork(child, path[at:])
            elif child.label and path[at : at + len(child.label)] != child.label:
                child = node.children[name] = self._split(child, path[at:])
            at += len(child.label)
            node = child
        return tuple(way), tuple(path[at:])

    def _grown(self, node: _Branch, bucket: str, key: str, block: int, blocks: int, below: int) -> None:
        """Re-evaluate a node after a child entered, ``below`` segments above the end of a path: it may now be a stream, or the
        beginning of one, or exceed its child limit."""
        self.nodes += 1
        children = node.children
        full = len(children) > self._window
        known = node.stream is not None and not (full and node.stream.beginning)
        if not known and node is not self._root and (full or len(children) in _FEW):
            path = _path(bucket, key, block if has_blocks(key, blocks) else None)
            path = path[: len(path) - below]
            if full or (isinstance(path[-1], str) and _ordered(node.children, node.window)):
                self._begin(path, blocks, node, beginning=not full)
        if not full:
            return
        for passed, (name, child) in enumerate(children.items()):
            if isinstance(child, tuple) or not child.holds_streams:
                self._drop(node, name)
                return
            if passed >= _LOOKED_AT:
                return

    def _begin(self, path: list[Segment], blocks: int, node: _Branch, *, beginning: bool) -> None:
        """Turn a node into a stream, or into the beginning of one."""
        bucket, *prefix = map(str, path[:-1])
        of_blocks = isinstance(path[-1], int)
        names = SiblingNames(name for name in node.children if isinstance(name, str))
        stream = Stream(
            bucket,
            "/".join(prefix) if of_blocks else "".join(f"{part}/" for part in prefix),
            len(path) - 1,
            blocks if of_blocks else 0,
            names,
            beginning=beginning,
        )
        # The window includes the read that is counted after this, and lacks the first one, which made no node.
        stream.draws = stream.early = len(node.window)
        stream.again = max(0, stream.draws - names.seen)
        node.stream = stream
        if beginning:
            self._beginnings[stream.name] = stream
        else:
            self._beginnings.pop(stream.name, None)
            self._streams[stream.name] = stream
            self._mark(path)
        self._look(node, stream)

    def _mark(self, path: list[Segment]) -> None:
        """Keep nodes above a stream longer than others."""
        node, at = self._root, 0
        while at < len(path):
            node.holds_streams = True
            child = node.children.get(path[at])
            if child is None or isinstance(child, tuple):
                return
            at += 1 + len(child.label)
            node = child

    def _drawn(self, node: _Branch, stream: Stream, name: Segment, unknown: bool, time: float) -> None:
        stream.draws += 1
        stream.latest = name
        if not unknown:
            stream.again += 1
        elif isinstance(name, str):
            stream.again += stream.names.add(name)
            if stream.listing is not None:
                stream.listing.add(name)
        if stream.draws >= stream.next_look and abs(time - stream.looked_at) >= LOOK_EVERY:
            stream.looked_at = time
            self._look(node, stream)

    def _look(self, node: _Branch, stream: Stream) -> None:
        """Recognise the pattern of the last window. Drops a beginning whose reads are not in order."""
        stream.next_look = stream.draws + min(stream.draws, self._window)
        kind = int if stream.blocks else str
        reads = [read for read in node.window if isinstance(read[0], kind)]
        recent = _recent(reads, self._window)
        if stream.blocks:
            count, population = stream.blocks, None
            sightings = [(float(name), time, client) for name, time, client in recent]
        else:
            stream.settle()
            names = stream.reference
            count, population = names.seen, names.population(stream.draws)
            # The positions from a sample depend on all names passed in.
            places = names.positions(str(name) for name, _, _ in (recent if names.whole else reads))
            sightings = [(places[str(name)], time, client) for name, time, client in recent]
        seen, evidence = recognise(sightings, count, population, self._window)
        if seen is Pattern.RANDOM and population is not None:
            evidence = replace(evidence, unevenness=stream.recent.unevenness())
            seen = Pattern.SKEWED if evidence.unevenness > MOST_UNEVEN else seen
        stream.evidence = evidence
        stream.recognition = stream.recognition.after(seen)
        if stream.beginning and seen is not Pattern.SEQUENTIAL:
            del self._beginnings[stream.name]
            node.stream = None
        stream.clients = len(node.last)
        stream.population = stream.blocks or estimated_count(max(stream.accesses, stream.draws), stream.seen)
        stream.gaps = gaps_of((time for _, time, _ in node.window[-self._window - 1 :]), stream.gaps.longest)

    def _split_off(self, node: _Branch, stream: Stream, client: int) -> None:
        """Take a scanning client out of a stream that others read (``groups.py``)."""
        others = [read for read in node.window if read[2] != client]
        latest = others[-JUDGED:]
        if len(latest) < JUDGED or _ordered({name for name, _, _ in latest}, latest):
            return
        self.scanning.add(stream.bucket, stream.prefix, client)
        stream.apart += len(node.window) - len(others)
        node.window = others
        node.last.pop(client, None)
        if stream.blurred:
            anew = stream.anew([str(name) for name, _, _ in others])
            anew.next_look = max(anew.draws, self._window)
            self._streams[stream.name] = node.stream = anew

    # --- the shape

    def _fork(self, tail: Tail, path: list[Segment]) -> _Branch:
        """Make a node where ``path`` branches off a path that was read alone so far."""
        shared = _shared(tail, path)
        branch = _Branch(path[:shared])
        if shared < len(tail):
            branch.children[tail[shared]] = tail[shared + 1 :]
            self.nodes += 1
        return branch

    def _split(self, lower: _Branch, path: list[Segment]) -> _Branch:
        """Make a node where ``path`` branches off the label of another node."""
        shared = _shared(lower.label, path)
        self._trails.clear()
        upper = _Branch(path[:shared])
        upper.children[lower.label[shared]] = lower
        upper.holds_streams = lower.holds_streams
        upper.last_time = lower.last_time  # a late read must not make it older than its descendants
        lower.label = lower.label[shared + 1 :]
        self.nodes += 1
        return upper

    def _node_of(self, stream: Stream) -> _Branch | None:
        path = _path(stream.bucket, stream.prefix.removesuffix("/"), None)
        node, at = self._root, 0
        while node.stream is not stream:
            child = node.children.get(path[at]) if at < len(path) else None
            if child is None or isinstance(child, tuple):
                return None
            at += 1 + len(child.label)
            node = child
        return node

    def _drop(self, parent: _Branch, name: Segment) -> None:
        child = parent.children.pop(name)
        self.nodes -= 1
        if isinstance(child, _Branch):
            if child.trail is not None:
                self._trails.pop(child.trail, None)
            for below in list(child.children):
                self._drop(child, below)
            if child.stream is not None:
                del (self._beginnings if child.stream.beginning else self._streams)[child.stream.name]

    def _sweep(self) -> None:
        """Drop the least recently used nodes until a tenth of the bound is free."""
        branches = sorted(_branches(self._root), key=lambda branch: branch[2].last_time)
        for parent, name, _ in branches:
            if self.nodes <= self._bound * 9 // 10:
                break
            self._drop(parent, name)


def _recent(reads: list[tuple[Segment, float, int]], window: int) -> list[tuple[Segment, float, int]]:
    """The latest reads for recognising a pattern, in the order of time: a window per client, up to a limit."""
    ordered = sorted(reads, key=itemgetter(1))
    clients = len({client for _, _, client in ordered[-window:]})
    return ordered[-window * min(clients, MOST_WINDOWS) :]


def _ordered(children: Iterable[Segment], reads: list[tuple[Segment, float, int]]) -> bool:
    """Whether a few children were read in order."""
    ranks = {name: float(rank) for rank, name in enumerate(sorted(children, key=_in_listing))}
    sightings = [(ranks[name], time, client) for name, time, client in reads if name in ranks]
    return trend(sorted(sightings, key=itemgetter(1)), len(ranks)) > SEQUENTIAL_RHO


def _in_listing(name: Segment) -> tuple[bool, Segment]:
    """The key by which children are in listing order, blocks by their numbers."""
    return isinstance(name, str), name


def _shared(path: Sequence[Segment], other: Sequence[Segment]) -> int:
    """Number of segments that two paths have in common."""
    at = 0
    for first, second in zip(path, other, strict=False):
        if first != second:
            break
        at += 1
    return at


def _branches(node: _Branch) -> Iterator[tuple[_Branch, Segment, _Branch]]:
    """Parent, name and node of everything below a node; children come before their parent."""
    for name, child in node.children.items():
        if isinstance(child, _Branch):
            yield from _branches(child)
            yield node, name, child


def _tails(node: _Branch) -> Iterator[Tail]:
    for name, child in node.children.items():
        if isinstance(child, tuple):
            yield (*node.label, name, *child)
        else:
            yield from ((*node.label, name, *tail) for tail in _tails(child))
