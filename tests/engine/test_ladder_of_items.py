"""The node that a batch asks looks for items in the order of the ladder, whatever happens in between."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Generator
from types import SimpleNamespace
from typing import Any

from gateway.engine.items.fetch import ItemFetches
from gateway.engine.items.wanted import FailedItem, InMemoryItem, LargeItem, Outcome
from gateway.model.fleet import Node, NodeState
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items.datasets import CachingMode
from tests.ladders import FAILED, LARGE, ME, MISSING, READERS, SILENT, STORED, Course, item_before, run, same

NODES = {name: Node(name, f"http://{name}", 1, "z", NodeState.READY) for name in ("a", "b", "c")}
OUTCOMES: dict[object, Outcome | None] = {
    STORED: InMemoryItem(b"", 0),
    LARGE: LargeItem(1),
    MISSING: FailedItem(ItemStatus.MISSING, "gone"),
    FAILED: FailedItem(ItemStatus.ORIGIN_ERROR, "lost"),
    SILENT: None,
}


class _Wait:
    """A wait for a read of this node, which ends when it begins."""

    def __init__(self, course: Course, what: str) -> None:
        self._course = course
        self._what = what

    def outcome(self, *, patient: bool) -> Outcome | None:
        """How it ends."""
        return OUTCOMES[self._course.ask(self._what, patient, options=[STORED, LARGE, MISSING, FAILED])]

    def __await__(self) -> Generator[None, None, Outcome | None]:
        return self.outcome(patient=True)
        yield

    def cancel(self) -> None:
        """Nothing is left to cancel."""


class _World:
    """Membership, peers, origin and the reads in flight in one course of events."""

    def __init__(self, course: Course) -> None:
        self.me = ME
        self.members = self.origin = self
        self._course = course

    @property
    def alone(self) -> bool:
        """Whether there is no other node now."""
        return bool(self._course.now("alone", [False, True]))

    def home(self, _key: int, without: Collection[str] = ()) -> Node | None:
        """The ring's word."""
        home = None if self.alone else self._course.any_home(list(without))
        return None if home is None else NODES[str(home)]

    async def fetch(self, home: Node, _wanted: object) -> Outcome | None:
        """What another node gives."""
        return OUTCOMES[self._course.ask("home", home.id, options=[SILENT, STORED, MISSING, FAILED])]

    def lost(self, _identity: object) -> bool:
        """Not known to be."""
        return False

    def reach(self, _identity: object) -> _World:
        """The way to the origin."""
        return self

    async def result(self, waiter: _Wait) -> Outcome | None:
        """The result of a wait that would end if the origin were lost."""
        return waiter.outcome(patient=False)

    def owner(self, _digest: bytes) -> object:
        """Whose read of the same bytes is in flight; after homes were asked, it is joined only if it is the reader's own."""
        if self._asked:
            return self._course.world.choose("late owner", [None, "own"])
        return self._course.now("owner", [None, "own", "other"])

    @property
    def _asked(self) -> bool:
        return any(step[0] == "home" for step in self._course.trace)

    def waiter(self, _digest: bytes) -> _Wait:
        """A wait for it: before the ladder's other sources, or instead of reading here."""
        return _Wait(self._course, "here" if self._asked else "fill")

    def begin(self, _digest: bytes, work: Coroutine[Any, Any, Outcome], _owner: object) -> _Wait:
        """Begin a read, and wait for it."""
        work.close()
        return _Wait(self._course, "here")


class _Fetching(ItemFetches):
    """Fetches in such a world."""

    def __init__(self, course: Course) -> None:
        world: Any = _World(course)
        self._services = world
        self._fleet = world
        self._flight = world
        self.peers = world

    def _begin_run(self, _wanted: object) -> None:
        """Nothing is read with an item."""


def by_item_fetches(course: Course) -> object:
    """What the gateway does."""
    reader = course.world.choose("reader", READERS)
    mode = CachingMode.NONE if reader == "uncached" else CachingMode.PART
    wanted: Any = SimpleNamespace(digest=bytes(32), who="own", here=reader == "node", mode=mode, identity=None)
    outcome = run(_Fetching(course).fetch(wanted))
    if isinstance(outcome, InMemoryItem):
        assert outcome.flags is (ItemFlag.JOINED if course.trace[-1][0] == "fill" else ItemFlag.NONE)
        return STORED
    return next(name for name, known in OUTCOMES.items() if known is outcome)


def test_a_gateway_fetches_in_the_order_of_the_ladder() -> None:
    """Rule: in every world a gateway joins, asks and reads in the order of ``next_source``, as patiently."""
    assert same(item_before, by_item_fetches) > 1000
