"""The order in which objects and items are looked for in a fleet, as the code that ``next_source`` replaced decided it.

Written down as it was, so that tests can hold the ladder and its callers to it, in every world that there is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.worlds import World, worlds

ME = "me"
OTHERS = (None, "a", "b", "c")
"""What the ring may say: this node, or one of the others."""
GOOD, SILENT, LOST, STALE = "good", "silent", "lost", "stale"
"""Outcomes of a question to a home: it answers, cannot be reached, has lost the origin, and has stale bytes besides."""
READERS = ("client", "node", "uncached")
"""Who wants an item: a client, another node for one, or a client of a dataset that is not cached."""
STORED, LARGE, MISSING, FAILED = "stored", "large", "missing", "failed"
"""Outcomes of an item; only with the last one another node may succeed."""


@dataclass
class Course:
    """What one read asks and hears."""

    world: World
    trace: list[tuple[object, ...]] = field(default_factory=list)

    def now(self, what: str, options: Sequence[object], *more: object) -> object:
        """What is the case at this moment, which lasts until the next source was asked."""
        return self.world.choose((len(self.trace), what, more), options)

    def ask(self, *source: object, options: Sequence[object]) -> object:
        """What a source answers."""
        moment = len(self.trace)
        self.trace.append(source)
        return self.world.choose((moment, source), options)

    def home(self, without: Sequence[str]) -> object:
        """The ring's word; it may change whenever something was waited for."""
        left: list[str | None] = [name for name in OTHERS if (name or ME) not in without]
        return self.now("home", left or [None], *sorted({*without}))

    def any_home(self, without: Sequence[str]) -> object:
        """The ring's word on an item: any other node, or this one. It makes no difference while a fill is joined."""
        node = next((name for name in OTHERS if name and name not in without), None)
        moment = sum(step[0] != "fill" for step in self.trace)
        return self.world.choose((moment, "home", *sorted({*without})), [None] if node is None else [node, None])


def same(before: Callable[[Course], object], ladder: Callable[[Course], object]) -> int:
    """In how many worlds both were tried; in each they ask and answer the same."""
    count = 0
    for world in worlds():
        old, new = Course(world), Course(world)
        assert (before(old), old.trace) == (ladder(new), new.trace)
        count += 1
    return count


def run(work: Awaitable[Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


# --- objects: the read of a client at one gateway


class Unreached(Exception):
    """The origin cannot be reached."""


def object_here(course: Course, *, patient: bool) -> str:
    """Read an object on this node.

    Raises:
        Unreached: the origin is lost.
    """
    if course.ask("here", patient, options=[GOOD, FAILED]) == FAILED:
        raise Unreached
    return "here"


def object_before(course: Course) -> object:
    """As relayed.py decided."""
    try:
        if course.now("alone", [False, True]):
            return object_here(course, patient=True)
        home = course.home([])
        return _object_at_me(course) if home is None else _object_at(course, home)
    except Unreached:
        return FAILED


def _object_at_me(course: Course) -> object:
    try:
        return object_here(course, patient=False)
    except Unreached:
        successor = course.home([ME])
        if successor is None:
            return object_here(course, patient=True)
        return _object_at(course, successor)


def _object_at(course: Course, home: object) -> object:
    if not course.now("shared", [True, False]):
        return object_here(course, patient=True)
    stale: list[object] = []
    lost: list[str] = []
    node: object = home
    try:
        for _ in range(2):
            if node is None:
                break
            answer = course.ask("home", node, options=[GOOD, SILENT, LOST, STALE])
            if answer == GOOD:
                return node
            if answer == STALE:
                stale.append(node)
                if not course.now("reached", [True, False]):
                    return "stale", stale.pop()
            lost += [] if answer == SILENT else [str(node)]
            before, node = node, course.home([*lost, ME] if course.now("lost", [False, True]) else lost)
            node = None if node == before else node
        return object_here(course, patient=not stale)
    except Unreached:
        if not stale:
            raise
        return "stale", stale.pop()


# --- items: the read of a batch at one gateway


def item_here(course: Course, *, patient: bool) -> object:
    """Read an item on this node."""
    return course.ask("here", patient, options=[STORED, LARGE, MISSING, FAILED])


def is_patient(course: Course) -> bool:
    """Whether no other node could read the item: neither the one that asks, nor one that is asked."""
    return course.world.choose("reader", READERS) != "node" and bool(course.now("alone", [False, True]))


def item_home(course: Course, skipped: Sequence[str]) -> object:
    """The other node to ask for an item; ``None`` if it is this one, or the read may not be passed on."""
    if course.world.choose("reader", READERS) != "client" or course.now("alone", [False, True]):
        return None
    return course.any_home(skipped)


def item_before(course: Course) -> object:
    """As fetch.py decided."""
    owner = course.now("owner", [None, "own", "other"])
    if owner is not None:
        outcome = course.ask("fill", is_patient(course), options=[STORED, LARGE, MISSING, FAILED])
        if outcome == STORED:
            return outcome
        if owner == "own":
            return _item_or_elsewhere(course, outcome)
        if course.now("owner", [None, "own", "other"]) == "own":
            return item_before(course)
    tried: list[str] = []
    served = _item_from_others(course, tried)
    if served is not None:
        return served
    outcome = item_here(course, patient=is_patient(course))
    return outcome if tried else _item_or_elsewhere(course, outcome)


def _item_or_elsewhere(course: Course, outcome: object) -> object:
    return outcome if outcome != FAILED else _item_from_others(course, [ME]) or outcome


def _item_from_others(course: Course, tried: list[str]) -> object:
    for _ in range(3):
        home = item_home(course, tried)
        if home is None:
            return None
        tried.append(str(home))
        outcome = course.ask("home", home, options=[SILENT, STORED, MISSING, FAILED])
        if outcome not in (SILENT, FAILED):
            return outcome
    return None
