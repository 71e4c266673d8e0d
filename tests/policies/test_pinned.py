"""Pinned prefixes in the plan."""

from __future__ import annotations

from dataclasses import replace

from gateway.fleet.jobs.plans import plan_document, read_plan
from gateway.model.keys import ObjectKey
from gateway.policies.pools import Balance, Overdrafts, stream_pools
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.pinned import MOST, pinned_orders
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.zone import StreamReport, ZoneStream

GB = 1000**3
SETTINGS = ManagerParams()


def stream(name: str) -> ZoneStream:
    """A random stream that fits any cache."""
    seen = StreamReport(Pattern.RANDOM, None, 1000, 500, GB, 1.0, items=100, known_items=100)
    return ZoneStream(name, seen, seen_by=("n",))


def test_a_pin_has_its_space_before_a_job_that_gains() -> None:
    """Rule: a pinned prefix has its promised bytes as target and minimum; a dataset gets the rest."""
    jobs = {"t/a": JobFacts("t", "a", "data", 4)}
    facts = Facts(100 * GB, {"data": DatasetFacts(80 * GB, 10)}, jobs, pins={"lake/val/": 40 * GB})
    plan = decide(Plan(), facts, 0.0, SETTINGS)
    pinned = plan.pools["stream:lake/val/"]
    assert (pinned.target, pinned.minimum) == (40 * GB, 40 * GB)
    assert plan.datasets["data"].target <= 60 * GB
    unpinned = decide(plan, replace(facts, pins={}), 1.0, SETTINGS)
    assert "stream:lake/val/" not in unpinned.pools
    assert unpinned.datasets["data"].target == 80 * GB


def test_nothing_pinned_is_evicted_for_others() -> None:
    """Rule: a pool within its pin gives no blob, however far others are from their targets."""
    (pool,) = node_pools(Plan(pools=pinned_orders({"lake/val/": 10}, 100)), 100, 100)
    book = Overdrafts([Balance(1, pool.minimum, pool.target, pool.minimum), Balance(2, 5, 500)])
    assert book.furthest() == 2
    assert book.debit(5)
    book.exhausted()
    assert book.furthest() is None


def test_a_prefix_without_space_gives_first() -> None:
    """Rule: a prefix that is denied space takes none from others, and gives its blobs before a pool that keeps to its target."""
    jobs = {"t/a": JobFacts("t", "a", "data", 4)}
    facts = Facts(100 * GB, {"data": DatasetFacts(80 * GB, 10)}, jobs, pins={"lake/logs/": 0})
    plan = decide(Plan(), facts, 0.0, SETTINGS)
    assert plan.datasets["data"].target == 80 * GB
    pools = {pool.name: pool for pool in node_pools(plan, 100 * GB, 100 * GB)}
    denied = pools["stream:lake/logs/"]
    assert (denied.target, denied.minimum) == (0, 0)
    book = Overdrafts([Balance(1, 5, denied.target, denied.minimum), Balance(2, 80 * GB, 80 * GB)])
    assert book.furthest() == 1
    assert decide(read_plan(plan_document(plan)), facts, 1.0, SETTINGS).version == plan.version


def test_streams_in_a_pinned_prefix_have_no_pools() -> None:
    """Rule: an object of a pinned prefix belongs to the pin, even if reads below the prefix form a stream, or a scan."""
    names = ("lake/val/", "lake/val/a/", "scans@lake/val/", "lake/train/", "lake/one", "lake/one/")
    streams = {name: stream(name) for name in names}
    facts = Facts(100 * GB, {}, {}, streams, pins={"lake/val/": GB, "lake/one": GB})
    plan = decide(Plan(), facts, 0.0, SETTINGS)
    assert set(plan.pools) == {f"stream:{name}" for name in ("lake/val/", "lake/train/", "lake/one", "lake/one/")}
    pools = stream_pools(ObjectKey("default", "lake", "val/a/b"))
    assert next(name for name in pools if name in plan.pools) == "stream:lake/val/"


def test_a_stream_that_was_pinned_has_no_minimum_any_more() -> None:
    """Rule: an unpinned stream has no minimum."""
    facts = Facts(100 * GB, {}, {}, {"lake/val/": stream("lake/val/")}, pins={"lake/val/": 50 * GB})
    plan = decide(decide(Plan(), facts, 0.0, SETTINGS), replace(facts, pins={}), 1.0, SETTINGS)
    assert plan.pools["stream:lake/val/"].minimum == 0
    assert plan.pools["stream:lake/val/"].order == "uniform"


def test_pins_leave_room_for_other_reads() -> None:
    """Rule: pins that want more than nine tenths of the space get that, by name, and one without room has no pool."""
    orders = pinned_orders({"a/": 60, "b/": 60, "c/": 60}, 100)
    assert {name: order.target for name, order in orders.items()} == {"stream:a/": 60, "stream:b/": 30}
    assert sum(order.target for order in orders.values()) == MOST * 100


def test_a_plan_with_a_pin_stays_as_it_is() -> None:
    """Rule: the same facts give the same plan, so nodes have no change to follow."""
    facts = Facts(100 * GB, {}, {}, {"lake/train/": stream("lake/train/")}, pins={"lake/val/": 50 * GB})
    plan = decide(Plan(), facts, 0.0, SETTINGS)
    assert decide(read_plan(plan_document(plan)), facts, 1.0, SETTINGS).version == plan.version
