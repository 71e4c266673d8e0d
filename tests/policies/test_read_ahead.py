"""The machine of read-ahead: what holds for every order in which its events come."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.policies.reads.rules import Caching, Rules
from gateway.policies.streams import ahead, scans
from gateway.policies.streams.ahead import (
    AT_ONCE,
    ReadAhead,
)
from gateway.policies.streams.instructions import (
    Instruction,
    ListedPage,
    ListedSibling,
    ListPage,
    Load,
    LoadRights,
    LogFailure,
)
from gateway.policies.streams.prefetch import DEPTH
from gateway.policies.streams.scans import LIST_AGAIN, MOST_ASTRAY, Scan, Want
from gateway.policies.streams.tree import AccessStreamTree
from tests.effort import examples

BLOCK = 1000
SMALL = 100
MOST = 60 * SMALL
READER = Principal("GWA", "a", OriginIdentity("default", "A"))
PREFIXES = ("left", "right")
SEQUENTIAL = Rules([Caching(match="b/left/**", pattern="sequential")])
FORBIDDEN = Rules([Caching(match="b/left/**", pattern="off")])
FILES = 120


@dataclass
class Store:
    """The machine, with a store whose answers come when a test says so."""

    tree: AccessStreamTree = field(default_factory=lambda: AccessStreamTree(window=20))
    principal: Principal | None = READER
    rules: Rules = field(default_factory=Rules)
    machine: ReadAhead = field(init=False)
    now: float = 0.0
    pages: list[ListPage[Scan]] = field(default_factory=list)
    loads: list[Load[Want]] = field(default_factory=list)
    began: list[Load[Want]] = field(default_factory=list)
    logged: list[LogFailure] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The names after which pages were listed."""
    cached: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        rights = LoadRights(lambda _: self.principal, lambda: self.rules)
        self.machine = ReadAhead(self.tree, rights, BLOCK, MOST)

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Keep what the machine says until it is answered."""
        for instruction in instructions:
            if isinstance(instruction, Load):
                self.loads.append(instruction)
                self.began.append(instruction)
            elif isinstance(instruction, ListPage):
                self.pages.append(instruction)
                self.asked.append(instruction.after)
            else:
                self.logged.append(instruction)

    def read(self, key: str, block: int = 0, size: int = SMALL, client: int = 1) -> None:
        """A read of a block."""
        self.now += 0.05
        stop = min(size, (block + 1) * BLOCK)
        hit = (key, block) in self.cached
        read = ObjectRead(ObjectKey("default", "b", key), block * BLOCK, stop, size, hit, self.now, "GWA", client)
        blocks = -(-size // BLOCK)
        self.machine.read("b", read, block, blocks)
        self.tree.record("b", key, block, blocks, self.now, client, hit, stop - block * BLOCK)
        self.cached.add((key, block))

    def turn(self) -> None:
        """A turn of the machine."""
        self.carry_out(self.machine.turn(self.now))

    def answer_page(self, *, refused: bool = False) -> None:
        """Answer the oldest listing, a page of thirty names."""
        page = self.pages.pop(0)
        if refused:
            self.carry_out(self.machine.refused(page, "refused"))
            return
        names = [f"{number:03}" for number in range(FILES) if f"{number:03}" > page.after]
        siblings = [ListedSibling(name, True, SMALL) for name in names[:30]]
        self.carry_out(self.machine.listed(page, ListedPage(siblings, len(names) > 30)))

    def answer_load(self, at: int = 0, failure: str = "") -> None:
        """Answer one of the loads in flight."""
        load = self.loads.pop(at)
        place = load.key.key, 0 if load.span is None else load.span[0] // BLOCK
        there = place in self.cached
        if not failure:
            self.cached.add(place)
        self.carry_out(self.machine.ended(load, SMALL, there=there, failure=failure))

    def answer_all(self) -> None:
        """Answer everything, and what follows from it."""
        for _ in range(2):
            while self.pages:
                self.answer_page()
            while self.loads:
                self.answer_load()
            self.turn()

    def lap(self, reads: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """Reads by number and client, each answered before the next; the listings and loads of the lap. Nothing is cached yet."""
        self.cached.clear()
        before = len(self.asked), len(self.began)
        for number, client in reads:
            self.read(f"left/{number:03}", client=client)
            self.turn()
            self.answer_all()
        return len(self.asked) - before[0], len(self.began) - before[1]

    def scan(self, prefix: str, numbers: Iterable[int]) -> None:
        """Reads of small objects, and a turn."""
        for number in numbers:
            self.read(f"{prefix}/{number:03}")
        self.turn()


EVENTS = (
    *("read", "read", "read", "read", "turn", "turn", "turn", "page", "load", "load", "load", "load"),
    *("jump", "refused", "failed", "withdrawn", "granted", "forbidden", "allowed"),
)
RUNS = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.integers(0, FILES - 1)), min_size=30, max_size=90
)


def happen(store: Store, events: list[tuple[str, int, int]]) -> Iterator[tuple[str, list[Load[Want]]]]:
    """Two scans begin, and then events happen; after each, its name and the loads that it began."""
    at = [24, 24]
    for prefix in PREFIXES:
        store.scan(prefix, range(24))
        store.answer_page()
    store.turn()
    for event, side, number in events:
        before = len(store.began)
        if event in ("read", "jump"):
            at[side] = number if event == "jump" else at[side] + 1
            store.read(f"{PREFIXES[side]}/{at[side] % FILES:03}", client=side)
        elif event == "turn":
            store.turn()
        elif event in ("page", "refused") and store.pages:
            store.answer_page(refused=event == "refused")
        elif event in ("load", "failed") and store.loads:
            store.answer_load(number % len(store.loads), "busy" if event == "failed" else "")
        elif event in ("withdrawn", "granted"):
            store.principal = None if event == "withdrawn" else READER
        elif event in ("forbidden", "allowed"):
            store.rules = FORBIDDEN if event == "forbidden" else Rules()
        yield event, store.began[before:]


ORDERS = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@ORDERS
@given(RUNS)
def test_no_more_is_in_flight_than_the_budget(events: list[tuple[str, int, int]]) -> None:
    """Rule: never more loads in flight than ``AT_ONCE``, nor more than one listing of a stream."""
    store = Store()
    for _ in happen(store, events):
        assert len(store.loads) <= AT_ONCE
        listing = [page.asker for page in store.pages]
        assert len({id(scan) for scan in listing}) == len(listing)


@ORDERS
@given(RUNS)
def test_unread_bytes_are_bounded(events: list[tuple[str, int, int]]) -> None:
    """Rule: of each stream no more bytes are ahead of its reader than allowed, in flight or unread."""
    store = Store()
    for _ in happen(store, events):
        for scan in store.machine._scans.values():
            assert scan.policy.unread <= MOST


@ORDERS
@given(RUNS)
def test_nothing_is_loaded_twice_at_once(events: list[tuple[str, int, int]]) -> None:
    """Rule: bytes in flight are not loaded again, in whichever streams they are."""
    store = Store()
    for _ in happen(store, events):
        places = [(load.key, load.span) for load in store.loads]
        assert len(set(places)) == len(places)


@ORDERS
@given(RUNS)
def test_a_withdrawn_key_or_a_rule_ends_loads_at_once(events: list[tuple[str, int, int]]) -> None:
    """Rule: no event begins a load that the reader's rights or a rule forbid at that moment."""
    store = Store()
    for _, began in happen(store, events):
        assert not began or store.principal is not None
        assert store.rules is not FORBIDDEN or not [load for load in began if load.key.key.startswith("left/")]


@ORDERS
@given(RUNS)
def test_every_byte_is_accounted_for(events: list[tuple[str, int, int]]) -> None:
    """Rule: what was loaded is used, wasted, or still expected to be read."""
    store = Store()
    for _ in happen(store, events):
        pass
    waiting = sum(scan.policy.unread for scan in store.machine._scans.values())
    counts = store.machine.bytes
    assert counts.loaded == counts.used + counts.wasted + waiting


@ORDERS
@given(RUNS)
def test_nothing_starves(events: list[tuple[str, int, int]]) -> None:
    """Rule: once the store answers, every load that waits begins or is left out."""
    store = Store()
    for _ in happen(store, events):
        pass
    while store.pages:
        store.answer_page()
    while store.loads:
        store.answer_load()
    assert not store.machine._waiting


def test_a_stream_that_ends_stops_loading_at_once() -> None:
    """Rule: the event after a stream's end begins none of its loads, although many wait."""
    store = Store()
    for prefix in PREFIXES:
        store.scan(prefix, range(24))
        store.answer_page()
    for depth in range(40):
        store.scan("left", [24 + depth])
        store.scan("right", [24 + depth])
        while len(store.loads) > AT_ONCE // 2:
            store.answer_load()
    store.rules = Rules([Caching(match="b/left/**", pattern="random")])
    before = len(store.began)
    store.turn()
    while store.loads:
        store.answer_load()
    assert {load.key.key.partition("/")[0] for load in store.began[before:]} <= {"right"}


def test_a_load_in_flight_when_its_stream_ends_is_wasted() -> None:
    """Rule: what arrives after the stream's end counts as wasted."""
    store = Store()
    store.scan("left", range(24))
    store.answer_page()
    store.turn()
    store.rules = Rules([Caching(match="b/left/**", pattern="random")])
    store.turn()
    assert len(store.loads) == DEPTH
    while store.loads:
        store.answer_load()
    assert (store.machine.bytes.loaded, store.machine.bytes.wasted) == (DEPTH * SMALL, DEPTH * SMALL)


def test_an_object_that_becomes_a_stream_has_no_block_loaded_twice() -> None:
    """Rule: a block that is in flight for one reason is not loaded for another."""
    store = Store()
    for block in range(19):
        store.read("large", block, 60 * BLOCK)
    store.turn()
    for block in range(19, 22):
        store.read("large", block, 60 * BLOCK)
    store.turn()
    spans = [load.span for load in store.loads]
    assert len(spans) == len(set(spans)) > DEPTH


def test_a_page_of_another_depth_is_dropped() -> None:
    """Rule: names of children are not taken for objects of all folders, if the depth changes while they are listed."""
    store = Store()
    store.scan("left", range(24))
    (page,) = store.pages
    scan, stream = page.asker, store.tree.stream_of("b", "left/000")
    assert stream is not None
    assert scan.reader is not None
    scan.look(stream, scan.reader, deep=True)
    store.answer_page()
    assert scan.listed == []
    assert not scan.listing


PAGES = FILES // 30


@pytest.mark.parametrize("connections", [1, 4], ids=["one connection", "a connection for each lap"])
def test_each_lap_of_a_scan_whose_last_sibling_stays_unread_is_loaded_ahead(connections: int) -> None:
    """Rule: after a lap that ended before its last sibling the next one is listed once, and loaded after a few reads."""
    store = Store()
    laps = [store.lap((number, lap % connections) for number in range(FILES - 1)) for lap in range(4)]
    for listings, loads in laps[1:]:
        assert listings <= PAGES
        assert loads >= FILES - 2 * MOST_ASTRAY


def test_a_lap_after_a_short_one_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: of more siblings than are remembered, those around the readers are, so that a lap may begin again anywhere."""
    monkeypatch.setattr(scans, "MOST_NAMES", FILES * 2 // 3)
    store = Store()
    for stop in (FILES, FILES // 2):
        store.lap((number, 1) for number in range(stop))
    listings, loads = store.lap((number, 1) for number in range(FILES))
    assert listings <= PAGES
    assert loads >= FILES // 2


def test_a_lap_after_one_whose_end_was_cached_is_loaded_ahead() -> None:
    """Rule: a scan that rested when its readers came to the end starts over like another."""
    store = Store()
    store.lap((number, 1) for number in range(FILES // 3))
    store.cached = {(f"left/{number:03}", 0) for number in range(FILES)}
    for number in range(FILES // 3, FILES):
        store.read(f"left/{number:03}")
        store.turn()
        store.answer_all()
    listings, loads = store.lap((number, 1) for number in range(FILES))
    assert listings <= PAGES
    assert loads >= FILES - 2 * MOST_ASTRAY


def test_threads_that_end_one_lap_while_they_begin_the_next_list_each_lap_once() -> None:
    """Rule: reads up to ten places early or late, of one connection, cost no more listings, also over the end of a lap."""
    store, drawn, laps = Store(rules=SEQUENTIAL), random.Random(5), 6
    places = sorted(range(laps * FILES), key=lambda at: at + drawn.uniform(0, 10))
    done = [store.lap((at % FILES, 1) for at in places[lap * FILES : (lap + 1) * FILES]) for lap in range(laps)]
    assert sum(listings for listings, _ in done) <= laps * PAGES
    assert sum(loads for _, loads in done[1:]) >= (laps - 1) * (FILES - 2 * MOST_ASTRAY)


@pytest.mark.parametrize("clients", [(1, 2, 3, 4), (1, 1, 1, 1)], ids=["a connection each", "one connection"])
def test_workers_that_read_batches_in_turn_list_each_lap_once(clients: Sequence[int]) -> None:
    """Rule: workers of one job, each with a batch, are as one reader."""
    store = Store(rules=SEQUENTIAL)
    rounds = [range(first, first + 4 * 6, 6) for first in range(0, FILES, 4 * 6)]
    reads = [
        (first + at, client)
        for firsts in rounds
        for at in range(6)
        for first, client in zip(firsts, clients, strict=True)
    ]
    laps = [store.lap(reads[:-1]) for _ in range(4)]
    for listings, loads in laps[1:]:
        assert listings <= PAGES
        assert loads >= FILES // 2


@pytest.mark.parametrize("clients", [(1, 2), (1, 1)], ids=["a connection each", "one connection"])
def test_readers_far_apart_do_not_list_in_turn(clients: Sequence[int]) -> None:
    """Rule: two readers far apart that alternate cost one listing at most each time one starts over, beside a lap's pages."""
    store = Store(rules=SEQUENTIAL)
    halves = [(number, number + FILES // 2) for number in range(FILES // 2 - 5)]
    reads = [read for numbers in halves for read in zip(numbers, clients, strict=True)]
    for _ in range(4):
        listings, _loads = store.lap(reads)
        assert listings <= PAGES


def test_a_reader_at_the_end_does_not_list_again() -> None:
    """Rule: the end of a listing is known, also when the last siblings are read out of order."""
    store = Store()
    store.lap((number, 1) for number in range(FILES))
    asked = len(store.asked)
    store.lap((FILES - 1 - number % 4, 1) for number in range(40))
    assert len(store.asked) == asked


def test_a_page_asked_for_before_a_scan_started_over_is_dropped() -> None:
    """Rule: names after the former position are not taken for those after the new one (9)."""
    store = Store()
    store.scan("left", range(24))
    store.answer_page()
    store.scan("left", range(24, 50))
    (page,) = store.pages
    store.cached.clear()
    store.scan("left", range(MOST_ASTRAY))
    store.answer_page()
    assert page.asker.listed == []
    store.turn()
    assert [page.after for page in store.pages] == [f"{MOST_ASTRAY - 1:03}"]


def test_a_refused_listing_is_tried_again_much_later() -> None:
    """Rule: a refused listing is logged once, and asked for again after ``LIST_AGAIN`` seconds."""
    store = Store()
    store.scan("left", range(24))
    store.answer_page(refused=True)
    store.scan("left", range(24, 40))
    assert store.pages == []
    store.now += LIST_AGAIN
    store.scan("left", range(40, 44))
    assert len(store.pages) == 1
    store.answer_page(refused=True)
    assert len(store.logged) == 1


def test_of_too_many_loads_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no more loads wait than allowed; those of the last turns are the ones that readers may still want."""
    monkeypatch.setattr(ahead, "MOST_WAITING", DEPTH)
    store = Store()
    for number in range(12):
        for block in range(DEPTH):
            store.read(f"{number}", block, 9 * BLOCK)
        store.turn()
    assert len(store.loads) == AT_ONCE
    before = len(store.began)
    while store.loads:
        store.answer_load()
    assert {load.key.key for load in store.began[before:]} == {"11"}
