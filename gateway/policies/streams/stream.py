"""A stream: the statistics of the reads below one prefix, or of the blocks of one object.

The tree (``tree.py``) counts its reads and recognises its pattern. Its counters show whether its clients read it more than once,
and which names the positions of its children refer to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.policies.streams.groups import SCANS, Courses
from gateway.policies.streams.lifetime import ReadGaps
from gateway.policies.streams.names import DistinctItems, SiblingNames
from gateway.policies.streams.pattern import WINDOW, Evidence, Pattern, Recognition
from gateway.policies.streams.unevenness import RecentDraws

Segment = str | int
"""A level of a path; the blocks of an object are numbers."""
REREAD = 1.2
"""Reads per client and child at which a scan counts as repeated."""
MOST_APART = 10
"""A stream begins anew without scanning clients once they have read more than one in so many of its children."""
FEW = 0.02
"""Tolerated share of reads of new children where the same ones are read again and again, or of known children where each is read
once."""


@dataclass(slots=True)
class Stream:
    """The reads below one prefix, or of the blocks of one object.

    Attributes:
        bucket, prefix: ``prefix`` ends in ``/``, or is the object's key if ``blocks`` is not 0.
        level: segments of the path above the children, the bucket included.
        blocks: of the object; 0 for a prefix.
        recognition: the pattern with its hysteresis.
        evidence: of the last window, which may suggest another pattern.
        last_access: seconds, on the clock of the reads.
        accesses, hits, bytes: of reads below it.
        hit_seconds, miss_seconds: readers' waits for hits and for misses.
        draws: accesses, not counting those of a client that stays at one child, plus ``early`` ones from before it was a stream,
            which are not among the accesses.
        gaps: between its reads, of the last window.
        names: of its children that were read.
        listing: of all its children, once known.
        recent: the items of its latest draws.
        again: draws of children that were read before.
        settled: whether almost all draws are of known children, or almost all of new ones; decided when draws, names and
        ``again`` were as in ``judged``.
        clients: those that read it recently.
        latest: the child that was read last.
        courses: the orders of its clients, while they together have none.
        apart: draws of clients that turned out to scan.
        beginning: whether it is not a stream yet, but the first children of a prefix, read in order (``tree.py``).
        next_look: ``draws`` at which the pattern is recognised again, unless that was just done; ``looked_at`` is when, in
            seconds.
        items: objects, and blocks of large objects, that were read below it.
        population: their estimated number, from repeats.
        listed: how many items a listing has shown.
        counted: whether ``listed`` covers all of them.
    """

    bucket: str
    prefix: str
    level: int
    blocks: int
    names: SiblingNames = field(default_factory=SiblingNames)
    recognition: Recognition = field(default_factory=Recognition)
    evidence: Evidence | None = None
    last_access: float = 0.0
    accesses: int = 0
    hits: int = 0
    bytes: int = 0
    hit_seconds: float = 0.0
    miss_seconds: float = 0.0
    draws: int = 0
    early: int = 0
    clients: int = 1
    latest: Segment = ""
    next_look: int = 0
    looked_at: float = 0.0
    gaps: ReadGaps = field(default_factory=ReadGaps)
    items: DistinctItems = field(default_factory=DistinctItems)
    population: int = 0
    listed: int = 0
    counted: bool = False
    listing: SiblingNames | None = None
    recent: RecentDraws = field(default_factory=RecentDraws)
    again: int = 0
    settled: bool = False
    judged: tuple[int, int, int] = (0, 0, 0)
    beginning: bool = False
    courses: Courses = field(default_factory=Courses)
    apart: int = 0

    @property
    def name(self) -> str:
        """Bucket and prefix, or bucket and key."""
        return f"{self.bucket}/{self.prefix}"

    @property
    def pattern(self) -> Pattern | None:
        """The current pattern; a stream has one from its first window on."""
        return self.recognition.pattern

    @property
    def repeated(self) -> bool:
        """Whether its clients read all of it more than once: a repeated scan gains from what stays cached."""
        return self.draws > REREAD * max(self.clients, 1) * (self.blocks or self.names.seen)

    @property
    def reference(self) -> SiblingNames:
        """The names that positions refer to.

        A listing shows which items are not read. Names that were read cannot: reads of a few hot items look like random reads of
        a smaller prefix. But a client that reads a part of the prefix, each of its items once an epoch, is judged within that
        part: nothing there is hotter than the rest.
        """
        return self.names if self.listing is None or self.settled else self.listing

    def beside_scans(self, client: int, child: str) -> bool:
        """Note a client's next child; returns whether it scans while the clients together do not."""
        if self.pattern in (None, Pattern.SEQUENTIAL) or self.bucket.startswith(SCANS):
            return False
        return self.courses.in_order(client, child)

    @property
    def blurred(self) -> bool:
        """Whether its statistics are those of scanning clients too much for the clients that remain."""
        return MOST_APART * self.apart > self.draws

    def anew(self, children: Sequence[str]) -> Stream:
        """The stream as it would begin with reads of these children."""
        names, draws = SiblingNames(children), len(children)
        again = max(0, draws - names.seen)
        return Stream(
            self.bucket,
            self.prefix,
            self.level,
            0,
            names,
            last_access=self.last_access,
            draws=draws,
            early=draws,
            again=again,
            courses=self.courses,
        )

    def settle(self) -> None:
        """Judge whether clients read all children that they know equally often: each once per epoch."""
        draws, seen, again = self.judged
        span = self.draws - draws
        if span >= max(WINDOW, self.names.seen // 4):
            self.settled = min(self.names.seen - seen, self.again - again) < FEW * span
            self.judged = self.draws, self.names.seen, self.again

    def count(self, item: int, hit: bool, size: int, time: float, waited: float) -> None:
        """Count a read of an item, given its mark: ``size`` bytes, for which the reader ``waited``; ``time`` is the latest time
        of any read so far."""
        self.items.add(item)
        self.accesses += 1
        self.hits += hit
        self.bytes += size
        self.last_access = time
        if hit:
            self.hit_seconds += waited
        else:
            self.miss_seconds += waited

    @property
    def misses(self) -> int:
        """Misses."""
        return self.accesses - self.hits

    @property
    def seen(self) -> int:
        """Number of objects and blocks read below it."""
        return max(self.items.seen, self.names.seen)
