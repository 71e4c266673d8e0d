"""The machine that loads random streams whole: what holds for every order in which its events come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.policies.reads.rules import Caching, Rules
from gateway.policies.streams.instructions import Instruction, ListedPage, ListedSibling, ListPage, Load, LoadRights
from gateway.policies.streams.prefetch import DEPTH, PoolRoom
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.wholes import WholeStreams
from tests.effort import examples

BLOCK = 1000
SIZE = 100
READER = Principal("GWA", "a", OriginIdentity("default", "A"))
PREFIXES = ("left", "right")
FILES = 60
RANDOM, FORBIDDEN = (Rules([Caching(match="b/**", pattern="random", cache=cache)]) for cache in (True, False))
PLENTY = {f"b/{prefix}/": PoolRoom(10**6) for prefix in PREFIXES}
EVENTS = (
    *("read", "read", "read", "turn", "turn", "page", "page", "load", "load", "load", "load"),
    *("refused", "failed", "withdrawn", "granted", "forbidden", "allowed", "room", "no room"),
)
RUNS = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.integers(0, FILES - 1)), min_size=30, max_size=120
)
ORDERS = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Trainings:
    """The machine, two random streams with room, and a store whose answers come when a test says so."""

    tree: AccessStreamTree = field(default_factory=lambda: AccessStreamTree(window=20))
    principal: Principal | None = READER
    rules: Rules = RANDOM
    now: float = 0.0
    pages: list[ListPage[Any]] = field(default_factory=list)
    loads: list[Load[Any]] = field(default_factory=list)
    began: list[Load[Any]] = field(default_factory=list)
    cached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machine = WholeStreams(self.tree, LoadRights(lambda _: self.principal, lambda: self.rules), BLOCK)
        self.machine.look(PLENTY)
        for number in range(40):
            for prefix in PREFIXES:
                self.read(prefix, number * 7 % FILES)

    def read(self, prefix: str, number: int) -> None:
        """A read of a small object."""
        self.now += 0.05
        key = f"{prefix}/{number:03}"
        read = ObjectRead(ObjectKey("default", "b", key), 0, SIZE, SIZE, key in self.cached, self.now, "GWA", 1)
        self.machine.read(self.tree.record("b", key, 0, 1, self.now, 1, read.hit, SIZE), read, 0)

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Keep what the machine says until it is answered."""
        for instruction in instructions:
            if isinstance(instruction, Load):
                self.loads.append(instruction)
                self.began.append(instruction)
            elif isinstance(instruction, ListPage):
                self.pages.append(instruction)

    def answer_page(self, *, refused: bool = False) -> None:
        """Answer the oldest listing, a page of twenty names."""
        page = self.pages.pop(0)
        names = [f"{number:03}" for number in range(FILES) if f"{number:03}" > page.after]
        listed = ListedPage([ListedSibling(name, True, SIZE) for name in names[:20]], len(names) > 20)
        self.carry_out(self.machine.refused(page, "refused") if refused else self.machine.listed(page, listed))

    def answer_load(self, at: int = 0, failure: str = "") -> None:
        """Answer one of the loads in flight."""
        load = self.loads.pop(at)
        there = load.key.key in self.cached
        if not failure:
            self.cached.add(load.key.key)
        self.carry_out(self.machine.ended(load, SIZE, there=there, failure=failure))

    def happen(self, events: list[tuple[str, int, int]]) -> Iterator[tuple[str, list[Load[Any]]]]:
        """Let events happen; after each, its name and the loads that it began."""
        for event, side, number in [("turn", 0, 0), ("page", 0, 0), ("page", 0, 0), *events]:
            before = len(self.began)
            if event == "read":
                self.read(PREFIXES[side], number)
            elif event == "turn":
                self.carry_out(self.machine.turn(self.now))
            elif event in ("page", "refused") and self.pages:
                self.answer_page(refused=event == "refused")
            elif event in ("load", "failed") and self.loads:
                self.answer_load(number % len(self.loads), "busy" if event == "failed" else "")
            elif event in ("withdrawn", "granted"):
                self.principal = None if event == "withdrawn" else READER
            elif event in ("forbidden", "allowed"):
                self.rules = FORBIDDEN if event == "forbidden" else RANDOM
            elif event in ("room", "no room"):
                self.machine.look(PLENTY if event == "room" else {})
            yield event, self.began[before:]


@ORDERS
@given(RUNS)
def test_a_few_loads_are_in_flight_each_once(events: list[tuple[str, int, int]]) -> None:
    """Rule: never more loads in flight than ``DEPTH``, of all streams, and none of what is in flight already."""
    trainings = Trainings()
    for _ in trainings.happen(events):
        keys = [load.key for load in trainings.loads]
        assert len(keys) == len(set(keys)) <= DEPTH


@ORDERS
@given(RUNS)
def test_no_load_begins_without_rights(events: list[tuple[str, int, int]]) -> None:
    """Rule: no event begins a load that the reader's rights or a rule forbid at that moment."""
    trainings = Trainings()
    for _, began in trainings.happen(events):
        assert not began or (trainings.principal is not None and trainings.rules is RANDOM)


@ORDERS
@given(RUNS)
def test_nothing_waits_for_an_answer_that_does_not_come(events: list[tuple[str, int, int]]) -> None:
    """Rule: once the store answers, each stream has ended or can go on with the next turn."""
    trainings = Trainings()
    for _ in trainings.happen(events):
        pass
    while trainings.pages or trainings.loads:
        if trainings.pages:
            trainings.answer_page()
        else:
            trainings.answer_load()
    assert {whole.running for whole in trainings.machine._streams.values()} <= {0}


@ORDERS
@given(RUNS)
def test_each_loaded_byte_is_used_wasted_or_awaited(events: list[tuple[str, int, int]]) -> None:
    """Rule: what was loaded is used, wasted, or still expected to be read."""
    trainings = Trainings()
    for _ in trainings.happen(events):
        pass
    counts, awaited = trainings.machine.bytes, sum(size for _, size, _ in trainings.machine._unread.values())
    assert counts.loaded == counts.used + counts.wasted + awaited


def test_nothing_follows_once_a_pool_has_gone() -> None:
    """Rule: loads in flight end, and no others begin, when a stream has no pool any more."""
    trainings = Trainings()
    for _ in trainings.happen([("page", 0, 0)] * 12):
        pass
    assert len(trainings.loads) == DEPTH
    before = len(trainings.began)
    trainings.machine.look({})
    while trainings.loads:
        trainings.answer_load()
    # What the streams had chosen before is loaded, a few each.
    assert len(trainings.began) - before <= DEPTH
