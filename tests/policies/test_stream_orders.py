"""The pools of streams in the plan, decided by hand-made reports; times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.fleet.jobs.plans import plan_document, read_memory, read_plan
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import PoolOrder
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.space.probing import ProbeSettings
from gateway.policies.space.remembered import ManagerMemory
from gateway.policies.space.stream_space import (
    FORGOTTEN,
    MOST_POOLS,
    RememberedStream,
    StreamMemory,
    stream_bids,
    stream_orders,
)
from gateway.policies.streams.benefit import ROUND
from gateway.policies.streams.pattern import Evidence, Pattern
from gateway.policies.streams.zone import PoolReport, StreamReport, ZoneStream

_MEMORY = TypeAdapter(StreamMemory)

ROOM = 1_000_000
STEP = 45_000
"""A twentieth of the nine tenths that streams may have."""


def stream(
    name: str, pattern: Pattern | None = Pattern.RANDOM, held: int = 0, idle: float = 0.0, **seen: Any
) -> ZoneStream:
    """A stream of 1,000 items of 1,000 bytes, read once each."""
    evidence = Evidence(100, True, 1000, 0.0, population=1000)
    report = StreamReport(pattern, evidence, 1000, 0, 1_000_000, idle, 1000, items=1000, known_items=1000)
    return ZoneStream(name, replace(report, **seen), PoolReport(held), ("n",), 1)


class Leader:
    """Decides repeatedly on the given reports."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.orders: dict[str, PoolOrder] = {}
        self.memory = StreamMemory()
        self.now = 1_000_000.0

    def decide(self, *zone: ZoneStream, after: float = 0.0) -> Mapping[str, PoolOrder]:
        """The next decision; it goes over Redis, so memory is read back."""
        self.now += after
        memory = _MEMORY.validate_json(_MEMORY.dump_json(self.memory))
        known = {one.name: one for one in zone}
        self.orders, self.memory = stream_orders(self.orders, known, self.room, memory, self.now)
        return self.orders


@pytest.mark.parametrize(
    ("pattern", "order"), [(Pattern.SEQUENTIAL, "consumed"), (Pattern.RANDOM, "uniform"), (Pattern.SKEWED, "lru")]
)
def test_the_order_follows_the_pattern(pattern: Pattern, order: str) -> None:
    """Rule: each pattern has its eviction order; a stream without a known pattern has no pool."""
    orders = Leader().decide(stream("b/p/", pattern), stream("b/q/", None))
    assert {name: one.eviction for name, one in orders.items()} == {"stream:b/p/": order}


def test_a_scan_that_begins_again_has_space_and_its_order() -> None:
    """Rule: a sequential stream has little space, one that is scanned again and again as much as a random one."""
    leader = Leader()
    streams = stream("b/once/", Pattern.SEQUENTIAL), stream("b/again/", Pattern.SEQUENTIAL, repeated=True)
    leader.decide(*streams)
    orders = leader.decide(*streams, after=ROUND)
    assert orders["stream:b/again/"].eviction == "loop"
    assert orders["stream:b/again/"].target > 2 * orders["stream:b/once/"].target


def test_a_new_pool_has_what_the_cache_holds() -> None:
    """Rule: a new pool begins with its cached bytes, and takes nothing from pools that have no more than their part."""
    leader = Leader()
    leader.decide(stream("b/q/"))
    leader.orders["stream:b/q/"] = replace(leader.orders["stream:b/q/"], target=400_000)
    after = leader.decide(stream("b/q/"), stream("b/p/", held=500_000), after=1)
    assert {name: one.target for name, one in after.items()} == {"stream:b/p/": 500_000, "stream:b/q/": 400_000}


def test_who_comes_late_has_an_equal_part_at_once() -> None:
    """Rule: where one stream has all space, the next one has half of it in the first decision, not a step a minute; so has one
    that comes back from a pause, and a scan that turns out to begin again."""
    leader = Leader()
    leader.decide(stream("b/q/"))
    assert leader.decide(stream("b/q/"), stream("b/p/"), after=1)["stream:b/p/"].target == 450_000
    leader = Leader()
    leader.decide(stream("b/q/"), stream("b/s/", Pattern.SEQUENTIAL))
    again = stream("b/s/", Pattern.SEQUENTIAL, repeated=True, accesses=2000, bytes=2_000_000)
    assert leader.decide(stream("b/q/"), again, after=1)["stream:b/s/"].target == 450_000


def young(name: str, reads: int, **seen: Any) -> ZoneStream:
    """A random stream in its first epoch: as many items as reads, each of 1,000 bytes, and as many again that it may have."""
    of_reads = {"accesses": reads, "draws": reads, "bytes": 1000 * reads, "known_items": reads, "items": 2 * reads}
    return stream(name, **{**of_reads, **seen})


def test_a_stream_has_no_more_than_twice_what_is_known_of_it() -> None:
    """Rule: while no listing says how much a stream has, its pool is as large as twice what was read, and a tenth; with free
    space it grows as soon as it is outgrown, before the next round."""
    leader = Leader()
    targets = [leader.decide(young("b/p/", reads), after=1)["stream:b/p/"].target for reads in (100, 200, 230, 2000)]
    assert targets == [220_000, 220_000, 506_000, 900_000]


def test_a_listing_says_how_much_a_stream_can_use() -> None:
    """Rule: listed items count like read ones, from the first reads on."""
    listed = young("b/p/", 100, known_items=500, items=500)
    assert Leader().decide(listed)["stream:b/p/"].target == 550_000


def test_what_the_cache_holds_of_a_stream_is_known() -> None:
    """Rule: cached bytes count, although a restarted gateway has seen few reads of them."""
    assert Leader().decide(young("b/p/", 100, held=400_000))["stream:b/p/"].target == 400_000


def test_a_young_stream_grows_to_an_equal_part_where_space_is_taken() -> None:
    """Rule: until a thousand reads nobody knows what a stream's bytes save, so it grows at the cost of those that have more than
    an equal part; after that, space moves in rounds."""
    leader = Leader()
    leader.decide(stream("b/q/"))
    known = [leader.decide(stream("b/q/"), young("b/p/", reads), after=1) for reads in (100, 300, 900)]
    assert [orders["stream:b/p/"].target for orders in known] == [220_000, 450_000, 450_000]
    leader = Leader()
    leader.decide(stream("b/q/"))
    leader.decide(stream("b/q/"), young("b/p/", 100), after=1)
    assert leader.decide(stream("b/q/"), young("b/p/", 1000), after=1)["stream:b/p/"].target == 220_000


def test_a_stream_that_is_read_in_a_full_cache_leaves_the_plan_as_it_is() -> None:
    """Rule: a plan does not change with each read of a stream that is larger than its pool."""
    leader = Leader()
    first = dict(leader.decide(stream("b/q/"), stream("b/p/")))
    assert all(leader.decide(stream("b/q/"), young("b/p/", 1000 + more), after=1) == first for more in range(1, 50))


@pytest.mark.parametrize("pattern", list(Pattern))
def test_a_stream_bids_for_what_is_known_of_it(pattern: Pattern) -> None:
    """Rule: a bid is for bytes that were read, listed or cached, however few reads there are and whatever may follow."""
    remembered = RememberedStream(0.0, value=1e-6, pattern=pattern.value, reads=600)
    seen = {"pattern": pattern, "repeated": True, "known_items": 180, "items": 100_000}
    for read, known in (
        ({}, 180_000),
        ({"known_items": 900}, 900_000),
        ({"held": 300_000}, 300_000),
        ({"known_items": 0}, 0),
    ):
        one = stream("b/p/", **{**seen, "accesses": 600, "bytes": 600_000, **read})
        bids = stream_bids({"b/p/": one}, 100 * ROOM, StreamMemory(0.0, {"b/p/": remembered}), 10.0)
        assert [bid.size for bid in bids] == [known]
        assert bids[0].gain == pytest.approx(known * 1e-6 / 1.1)


def test_young_streams_take_no_datasets_of_jobs() -> None:
    """Rule: two streams of 7 and 10 MB leave the datasets of running jobs their space, however much their bytes are worth."""
    room, sizes = 144_000_000, {f"data{number}": 4_800_000 for number in range(8)}
    datasets = {name: DatasetFacts(size, 120) for name, size in sizes.items()}
    jobs = {f"t/{name}": JobFacts("t", name, name, 1) for name in sizes}
    plan = Plan()
    for turn, reads in enumerate((200, 300, 400, 500, 600)):
        zone = {
            name: young(
                name, reads, accesses=reads, known_items=items, items=items, bytes=40_000 * reads, miss_seconds=reads
            )
            for name, items in (("b/p/", 180), ("b/q/", 240))
        }
        facts = Facts(room, datasets, jobs, zone)
        plan = decide(plan, facts, 1000.0 + 61 * turn, ManagerParams(probe=ProbeSettings(batches=0)))
        assert {name: plan.datasets[name].target for name in sizes} == sizes
    assert {name: round(order.target / 1e6, 1) for name, order in plan.pools.items() if name.startswith("stream:")} == {
        "stream:b/p/": 7.9,
        "stream:b/q/": 10.6,
    }


def test_a_stream_that_is_no_pool_yet_has_what_the_nodes_say() -> None:
    """Rule: a new pool's first target is the sum of the stream's bytes on all nodes."""
    leader = Leader()
    leader.decide(stream("b/q/"))
    leader.orders["stream:b/q/"] = replace(leader.orders["stream:b/q/"], target=400_000)
    fresh = stream("b/p/")
    after = leader.decide(stream("b/q/"), replace(fresh, seen=replace(fresh.seen, held=500_000)), after=1)
    assert {name: one.target for name, one in after.items()} == {"stream:b/p/": 500_000, "stream:b/q/": 400_000}


def test_what_is_free_is_given_at_once() -> None:
    """Rule: a new stream gets free space without waiting for a round, and so do others an ended stream's."""
    leader = Leader()
    first = stream("b/p/", held=450_000, lifetime=70.0)
    assert leader.decide(first)["stream:b/p/"].target == 900_000
    both = leader.decide(first, stream("b/q/", held=450_000), after=1)
    assert both["stream:b/q/"].target == 450_000
    ended = replace(first, seen=replace(first.seen, idle=100.0))
    assert leader.decide(ended, stream("b/q/", held=450_000), after=100)["stream:b/q/"].target == 900_000


def test_what_a_miss_costs_is_measured() -> None:
    """Rule: of two streams with equal reads, the one whose misses take longer gets the space."""
    leader = Leader()
    far = stream("b/far/", miss_seconds=150.0, hit_seconds=1.0, hits=500)
    near = stream("b/near/", miss_seconds=5.0, hit_seconds=1.0, hits=500)
    for _ in range(5):
        leader.decide(far, near, after=ROUND)
        far, near = (
            replace(one, seen=replace(one.seen, accesses=one.seen.accesses + 1000, bytes=one.seen.bytes + 1_000_000))
            for one in (far, near)
        )
    assert leader.orders["stream:b/far/"].target > leader.orders["stream:b/near/"].target


def test_a_stream_without_misses_counts_as_others_do() -> None:
    """Rule: a stream without misses uses the zone's mean cost of a miss."""
    leader = Leader()
    missed = stream("b/missed/", miss_seconds=100.0, hits=0)
    unknown = stream("b/unknown/", hits=1000)
    leader.decide(missed, unknown)
    more = [replace(one, seen=replace(one.seen, accesses=5000, hits=one.seen.hits * 5)) for one in (missed, unknown)]
    leader.decide(*more, after=ROUND)
    values = [leader.memory.streams[name].value for name in ("b/missed/", "b/unknown/")]
    assert values[0] == values[1] > 0


def test_a_pool_keeps_its_pattern_until_the_zone_insists() -> None:
    """Rule: another pattern replaces a pool's after 100 reads in which the zone reported only that one."""
    leader = Leader()

    def said(pattern: Pattern, accesses: int) -> str:
        return leader.decide(stream("b/p/", pattern, accesses=accesses), after=1)["stream:b/p/"].eviction

    assert said(Pattern.RANDOM, 1000) == "uniform"
    assert said(Pattern.SKEWED, 1050) == "uniform"
    assert said(Pattern.SKEWED, 1149) == "uniform"
    assert said(Pattern.RANDOM, 1150) == "uniform"
    assert said(Pattern.SKEWED, 1160) == "uniform"
    assert said(Pattern.SKEWED, 1260) == "lru"


def test_space_moves_once_a_round_to_where_it_saves_most() -> None:
    """Rule: a step goes to the stream whose bytes save most, at the end of a round and not before."""
    leader = Leader()
    busy, quiet = stream("b/busy/", held=200_000), stream("b/quiet/", held=700_000)
    first = leader.decide(busy, quiet)
    again = replace(busy, seen=replace(busy.seen, accesses=50_000, draws=50_000, bytes=50_000_000))
    assert leader.decide(again, quiet, after=ROUND / 2) == first
    after = leader.decide(again, quiet, after=ROUND / 2)
    assert after["stream:b/busy/"].target > first["stream:b/busy/"].target
    assert sum(one.target for one in after.values()) <= 0.9 * ROOM


def test_a_sequential_stream_needs_little() -> None:
    """Rule: a scan keeps no more space than its prefetches need."""
    orders = Leader().decide(stream("b/scan/", Pattern.SEQUENTIAL, held=800_000))
    assert orders["stream:b/scan/"].target <= 2 * 64 * 1000


def test_a_stream_that_has_ended_is_released_and_comes_back() -> None:
    """Rule: idle for longer than its time-to-live, the target is 0 until nothing is held; a read makes it a pool again."""
    leader = Leader()
    leader.decide(stream("b/p/", held=300_000, lifetime=70.0))
    assert leader.decide(stream("b/p/", held=300_000, idle=60.0, lifetime=70.0), after=60)["stream:b/p/"].target > 0
    ended = leader.decide(stream("b/p/", held=300_000, idle=100.0, lifetime=70.0), after=40)["stream:b/p/"]
    assert (ended.caching, ended.target) == (CachingMode.NONE, 0)
    assert node_pools(Plan(1, pools=leader.orders), ROOM, ROOM)[0].target == 0
    assert leader.decide(stream("b/p/", held=0, idle=101.0, lifetime=70.0), after=1) == {}
    assert leader.decide(stream("b/p/", held=9, lifetime=70.0, accesses=1001), after=1)["stream:b/p/"].target >= STEP


@pytest.mark.parametrize(("pattern", "repeated"), [(Pattern.SKEWED, False), (Pattern.SEQUENTIAL, True)])
def test_a_stream_that_pauses_leaves_its_space_to_others(pattern: Pattern, repeated: bool) -> None:
    """Rule: a stream idle for longer than its gaps predict is not released, but its space goes to others at once; when read
    again, it begins with its remaining bytes."""
    leader, other = Leader(), stream("b/q/", held=450_000)
    queried = stream("b/p/", pattern, repeated=repeated, held=450_000, lifetime=70.0)
    leader.decide(queried, other)
    paused = leader.decide(
        stream("b/p/", pattern, repeated=repeated, held=450_000, idle=100.0, lifetime=70.0), other, after=100
    )
    assert {name: (one.caching, one.target) for name, one in paused.items()} == {
        "stream:b/p/": (CachingMode.FULL, 1),
        "stream:b/q/": (CachingMode.FULL, 900_000),
    }
    assert node_pools(Plan(1, pools=leader.orders), ROOM, ROOM)[0].target > 0
    back = leader.decide(
        stream("b/p/", pattern, repeated=repeated, held=300_000, lifetime=70.0, accesses=1001), other, after=1
    )
    assert back["stream:b/p/"].target >= 200_000
    gone = stream("b/p/", pattern, repeated=repeated, idle=FORGOTTEN + 100, lifetime=70.0, accesses=1001)
    assert "stream:b/p/" not in leader.decide(gone, other, after=FORGOTTEN + 100)


def test_a_report_that_ages_brings_no_stream_back() -> None:
    """Rule: idleness is as of a report that is some seconds old; a stream that has ended comes back by a read alone."""
    leader, targets = Leader(), []
    leader.decide(stream("b/p/", held=300_000, lifetime=70.0))
    leader.now += 9.5
    for second in range(100):
        last = stream("b/p/", held=300_000, lifetime=70.0, idle=float(second - second % 4), accesses=1001)
        targets.append(leader.decide(last, after=1)["stream:b/p/"].target > 0)
    assert targets == sorted(targets, reverse=True)
    assert 70 <= sum(targets) <= 75


def test_the_end_of_a_stream_is_not_rounded() -> None:
    """Rule: a stream ends with its time-to-live after its last read; while it is read, that time is noted every 10 s only."""
    leader, notes = Leader(), set()
    for second in range(25):
        leader.decide(stream("b/p/", lifetime=70.0, accesses=1000 + second), after=1)
        notes.add(leader.memory.streams["b/p/"].read_at)
    assert len(notes) == 3
    last = leader.now
    while leader.orders["stream:b/p/"].target and leader.now < last + 100:
        idle = leader.now + 1 - last
        leader.decide(stream("b/p/", held=300_000, lifetime=70.0, accesses=1024, idle=idle), after=1)
    assert leader.now - last == pytest.approx(71.0, abs=1.0)


def test_a_clock_that_was_set_back_holds_nothing_up() -> None:
    """Rule: after Redis's clock was set back by hours, space moves once a round as before, and an idle stream ends."""
    leader = Leader()
    leader.decide(stream("b/p/", held=300_000, lifetime=70.0))
    leader.now -= 4 * 3600
    leader.decide(stream("b/p/", held=300_000, lifetime=70.0, idle=60.0))
    rounds, ended = leader.memory.round_at, leader.now + 80
    while leader.now < ended:
        idle = 60.0 + leader.now + 1 - (ended - 80)
        leader.decide(stream("b/p/", held=300_000, lifetime=70.0, idle=idle), after=1)
    assert rounds < leader.memory.round_at <= leader.now
    assert leader.orders["stream:b/p/"].target == 0


@pytest.mark.parametrize("pattern", Pattern)
def test_a_stream_that_is_read_neither_pauses_nor_ends(pattern: Pattern) -> None:
    """Rule: a time-to-live that is hardly longer than the time between two notes of a stream's last read does not end it while
    new reads are reported, each report being two seconds old."""
    leader, targets = Leader(), []
    for second in range(60):
        read = stream("b/p/", pattern, held=300_000, lifetime=10.3, idle=2.0, accesses=1000 + second)
        targets.append(leader.decide(read, stream("b/q/"), after=1)["stream:b/p/"].target)
    assert min(targets) == targets[0] > 1


def test_a_restarted_gateway_keeps_the_pool() -> None:
    """Rule: while no node speaks of a stream it keeps pool and order, a random one for its time-to-live."""
    leader = Leader()
    leader.decide(stream("b/p/", held=300_000, lifetime=70.0), stream("b/s/", Pattern.SKEWED))
    kept = leader.decide(ZoneStream("b/p/", pool=PoolReport(300_000)), after=60)
    assert {name: (one.eviction, one.target > 0) for name, one in kept.items()} == {
        "stream:b/p/": ("uniform", True),
        "stream:b/s/": ("lru", True),
    }
    assert leader.decide(ZoneStream("b/p/", pool=PoolReport(300_000)), after=60)["stream:b/p/"].target == 0
    assert "stream:b/s/" not in leader.decide(after=FORGOTTEN)


def test_the_number_of_pools_is_bounded() -> None:
    """Rule: beyond the bound, only the busiest streams have pools."""
    many = [stream(f"b/{number:03}/", accesses=number) for number in range(MOST_POOLS + 50)]
    orders = Leader().decide(*many)
    assert sorted(orders) == [f"stream:b/{number:03}/" for number in range(50, MOST_POOLS + 50)]
    assert sum(one.target for one in orders.values()) <= 0.9 * ROOM


def test_memory_of_another_version_is_forgotten() -> None:
    """Rule: memory that cannot be read is dropped without an error."""
    for document in (None, 7, {}, {"streams": {"a": [1, "x"]}, "round_at": 0}, {"streams": [], "round_at": 0}):
        assert read_memory({"capacity": 7, "streams": document}) == ManagerMemory(7)


def managed(plan: Plan, zone: Mapping[str, ZoneStream], now: float, gpus: int = 1) -> Plan:
    """The next plan of a cache that one dataset fills, which a job uses on so many GPUs."""
    facts = Facts(
        ROOM,
        {"data": DatasetFacts(ROOM, 1000)},
        {"t/job": JobFacts("t", "job", "data", gpus)},
        zone,
    )
    return decide(plan, facts, now, ManagerParams(probe=ProbeSettings(batches=0)))


@pytest.mark.parametrize(("gpus", "whole"), [(1, False), (1000, True)])
def test_streams_and_datasets_compete(gpus: int, whole: bool) -> None:
    """Rule: a stream takes space from a dataset that saves fewer seconds of waiting, and none from one that saves more."""
    plan = managed(Plan(), {}, 1000.0, gpus)
    assert plan.datasets["data"].target == ROOM
    for turn in range(4):
        accesses = 1000 * (1 + 20 * turn)
        busy = stream("b/p/", accesses=accesses, draws=accesses, bytes=1000 * accesses, miss_seconds=accesses / 10)
        plan = managed(plan, {"b/p/": busy}, 1000.0 + 61 * turn, gpus)
    assert (plan.datasets["data"].target == ROOM) is whole
    assert (plan.pools["stream:b/p/"].target > ROOM // 2) is not whole
    assert sum(one.target for one in plan.pools.values()) <= ROOM + 1


def test_streams_share_what_datasets_leave() -> None:
    """Rule: the plan has datasets and streams in one ledger; a plan that travelled as JSON is the same."""
    zone = {"b/p/": stream("b/p/", held=300_000)}
    plan = decide(Plan(), Facts(ROOM, {}, {}, zone), 1000.0, ManagerParams())
    assert plan.version == 1
    assert {name: one.order for name, one in plan.pools.items()} == {"stream:b/p/": "uniform"}
    assert plan.datasets == {}
    assert read_plan(plan_document(plan)) == plan
