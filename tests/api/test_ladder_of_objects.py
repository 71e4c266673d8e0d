"""The node that a client asks looks for objects in the order of the ladder, whatever happens in between."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from gateway.api.s3.answer import Answer
from gateway.api.s3.relayed import RelayedReads
from gateway.engine.objects.found import Forward
from gateway.model.errors import OriginUnavailable
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.policies.fleet.ring import Ring
from tests.ladders import FAILED, GOOD, LOST, ME, SILENT, STALE, Course, object_before, run, same

NODES = {name: Node(name, f"http://{name}", 1, "z", NodeState.READY) for name in ("a", "b", "c")}
IDENTITY = SimpleNamespace(identity=SimpleNamespace(name="default/origin", origin="default"))
CALL: Any = SimpleNamespace(
    key=ObjectKey("default", "b", "k"),
    plain=True,
    wants_checksums=False,
    auth=SimpleNamespace(principal=IDENTITY),
    request=SimpleNamespace(fields={}),
)


class _World:
    """Membership, rules, origin and this node's reads in one course of events."""

    def __init__(self, course: Course) -> None:
        self.me = ME
        self.ring = Ring({})
        self.services = SimpleNamespace(rules=self, origin=self)
        self._course = course

    @property
    def alone(self) -> bool:
        """Whether there is no other node, from beginning to end."""
        return bool(self._course.world.choose((0, "alone", ()), [False, True]))

    def home(self, _key: int, without: Collection[str] = ()) -> Node | None:
        """The ring's word."""
        home = self._course.home(list(without))
        return None if home is None else NODES[str(home)]

    def owes(self, _key: ObjectKey) -> bool:
        """Nothing was written here."""
        return False

    def for_path(self, _path: str) -> SimpleNamespace:
        """A rule; one that forbids caching has nothing shared."""
        return SimpleNamespace(cache=self._course.now("shared", [True, False]))

    def reach(self, _identity: object) -> _World:
        """The way to the origin."""
        return self

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost."""
        return bool(self._course.now("lost", [False, True]))

    async def reached(self) -> bool:
        """Whether the origin answers a probe."""
        return bool(self._course.now("reached", [True, False]))

    async def read(self, _call: object, *, hasty: bool = False) -> str:
        """Read here."""
        if self._course.ask("here", not hasty, options=[GOOD, FAILED]) == FAILED:
            raise OriginUnavailable("lost")
        return "here"


class _Asking(RelayedReads):
    """Reads whose answers of other nodes are the course's; ``held`` are stale ones that nobody has cleaned up."""

    def __init__(self, course: Course) -> None:
        world: Any = _World(course)
        super().__init__(world, world, world, world)
        self.held: list[str] = []
        self._course = course

    async def _ask(self, call: Any, home: Node, asked: object) -> Answer | Forward | None:
        outcome = self._course.ask("home", home.id, options=[GOOD, SILENT, LOST, STALE])
        if outcome == SILENT:
            return None
        if outcome == LOST:
            return Forward(Reason.ORIGIN_DOWN, miss=True)
        if outcome == GOOD:
            return Answer(200, [], home.id.encode(), Outcome.HIT, None)
        self.held.append(home.id)

        async def clean() -> None:
            self.held.remove(home.id)

        return Answer(200, [], home.id.encode(), Outcome.STALE, Reason.ORIGIN_DOWN, cleanup=clean)


def by_relayed_reads(course: Course) -> object:
    """What the gateway does."""
    reads = _Asking(course)
    answering, _, _ = reads.begin(CALL)
    try:
        answer = run(answering)
    except OriginUnavailable:
        assert reads.held == []
        return FAILED
    if not isinstance(answer, Answer):
        return answer
    name = str(answer.content, "ascii")
    assert reads.held == ([name] if answer.outcome is Outcome.STALE else [])
    return ("stale", name) if answer.outcome is Outcome.STALE else name


def test_a_gateway_asks_in_the_order_of_the_ladder() -> None:
    """Rule: in every world a gateway asks the nodes, itself and the origin in the order of ``next_source``, as patiently, and
    leaves no stale answer behind that it does not give."""
    assert same(object_before, by_relayed_reads) > 1000
