"""Decides which source is asked next for the bytes of an object or an item: one ladder of sources for both.

In a fleet a read goes to the *home* of the bytes, so that they are read from the origin once and kept once. If the home fails,
its successor takes its place, and finally this node. The node that reads joins a read of the same bytes in progress; otherwise it
asks the *former* homes and other holders of the bytes, then the origin.

``next_source`` is pure. Its callers look up the facts, carry out the answer, and add what failed to ``ReadFacts.tried``:
``api/s3/relayed.py`` for objects, ``engine/items/fetch.py`` for items, ``engine/objects/reads.py`` and ``cold.py`` for the node
that reads an object.

Anything may happen between two questions. These interleavings decide the order; the code refers to their numbers:

1. The read that is waited for fails. Its reader may have had other rights or another location, so the failure counts only for
   a reader with the same ones. Other readers continue on their own, unless a read with their rights is in progress by then.
2. The home dies after it was chosen. By the next question it is a suspect, and the ring names its successor. If the ring still
   names it, it is not asked twice in a row.
3. The home has lost the origin, and says so, perhaps with stale bytes. It remains the home of its cached data, so the caller
   looks for a successor without it. Stale bytes are used at once only if this node does not reach the origin either.
4. This node is home, and loses the origin while it reads. It gives up as soon as it knows, and others are asked. A node that took
   over after others failed does not ask them again.
5. Two nodes disagree about the ring. A node that is asked by another reads by itself; it reports no ``home``.
6. No other node helped, and the origin is slow. The client of an object depends on this node, so the node waits as long as the
   origin's time-outs allow. The reader of an item gets the failure at once: it can read the origin itself.
7. A write is accepted while homes move. A former home may have missed it, so it is passed over if the reader insists on the
   origin's word, or the key was forgotten here.
8. The origin fails, and stale bytes exist. Only now are they served.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Source(Enum):
    """Where the bytes of a read may come from."""

    FILL = auto()
    """A read of the same bytes by this node: join it."""
    HOME = auto()
    """The other node that the ring names: the home, or its successor."""
    HERE = auto()
    """This node: it becomes the one that reads."""
    FORMER = auto()
    """A node that was home before, or is known to have the bytes."""
    ORIGIN = auto()
    STALE = auto()
    """Stale bytes, of a home or cached here."""
    NONE = auto()
    """No source is left: the last outcome is final."""


class ReadKind(Enum):
    """What is read."""

    OBJECT = auto()
    ITEM = auto()
    LARGE = auto()
    """An item that is streamed past the cache."""


HOMES = {ReadKind.OBJECT: 2, ReadKind.ITEM: 3, ReadKind.LARGE: 1}
"""The most other nodes asked as homes, by kind of read."""


class InFlight(Enum):
    """The owner of a read of the same bytes that is in progress on this node."""

    NONE = auto()
    OTHERS = auto()
    OWN = auto()
    """A reader with the same rights and location."""


class NextSource(NamedTuple):
    """The next source, and why. Unless ``patient``, give up as soon as the origin is known to be lost."""

    source: Source
    why: str
    patient: bool = False


class ReadFacts(NamedTuple):
    """The facts about a read when its next source is chosen.

    Attributes:
        kind: what is read.
        tried: the sources that failed, in order; joined reads of others are not among them.
        home: whether the ring, without the nodes that failed, names another node.
        repeats: whether that is the node that was just asked.
        alone: whether no other node can serve this reader.
        fill: a read in progress here.
        waited: whether another reader's read was joined already.
        stale: whether there are stale bytes to fall back on.
        reached: whether this node reaches the origin, if it had to find out.
        reads: whether this node is the one that reads; the facts above, except ``fill`` and ``stale``, then concern other nodes.
        former: whether a former home or holder has not been asked yet.
        doubted: whether the former holders' copies may be out of date.
    """

    kind: ReadKind
    tried: tuple[Source, ...] = ()
    home: bool = False
    repeats: bool = False
    alone: bool = False
    fill: InFlight = InFlight.NONE
    waited: bool = False
    stale: bool = False
    reached: bool = True
    reads: bool = False
    former: bool = False
    doubted: bool = False


def next_source(facts: ReadFacts) -> NextSource:
    """The source to ask next. The numbers refer to the module's docstring."""
    kind, tried = facts.kind, facts.tried
    if facts.reads:
        if facts.fill is not InFlight.NONE:
            return NextSource(Source.FILL, "this node is reading the same bytes")
        if Source.ORIGIN not in tried:
            if facts.former and not facts.doubted:  # 7
                return NextSource(Source.FORMER, "another node has the bytes, or had them")
            return NextSource(Source.ORIGIN, "no other node has the bytes")
    else:
        waits = kind is ReadKind.LARGE or (kind is ReadKind.OBJECT and bool(tried) and not facts.stale)  # 6
        patient = waits or facts.alone
        if not tried and (facts.fill is InFlight.OWN or (facts.fill is InFlight.OTHERS and not facts.waited)):  # 1
            return NextSource(Source.FILL, "this node is reading the same bytes", patient)
        if facts.stale and not facts.reached:  # 3
            return NextSource(Source.STALE, "neither the home nor this node reaches the origin")
        here = tried.count(Source.HERE)
        goes_on = not here or (here == 1 and tried[0] is Source.HERE)  # 4
        may_ask = facts.home and not facts.alone  # 5
        if may_ask and goes_on and not facts.repeats and tried.count(Source.HOME) < HOMES[kind]:  # 2
            return NextSource(Source.HOME, "the nodes before it failed" if tried else "it is home of the bytes")
        if not here or (goes_on and kind is ReadKind.OBJECT):
            why = "no other node could serve the read" if tried else "no other node is home of the bytes"
            return NextSource(Source.HERE, why, patient)
    if facts.stale:  # 8
        return NextSource(Source.STALE, "the origin failed")
    return NextSource(Source.NONE, "every source was asked")
