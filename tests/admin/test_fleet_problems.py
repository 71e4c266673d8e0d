"""Problems that only show in the whole zone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.admin.fleet.problems import problems_of
from gateway.admin.fleet.reading import FleetReading
from gateway.admin.fleet.view import datasets_of, jobs_of, newest_document, nodes_of, now_of, total_of
from gateway.fleet.jobs.jobs import JobRecord, KnownJob
from gateway.fleet.nodes.samples import NodeSample
from gateway.model.counters import Counters, Sample
from gateway.model.fleet import Node, NodeState
from gateway.policies.health.rates import Point
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools
from gateway.policies.space.probing import PhaseTotals, ProbeState
from gateway.policies.space.remembered import ManagerMemory, RememberedJob

DATASET = "ab" * 32
AT = 1_800_000_000.0


def node(name: str) -> Node:
    """A node of 1 GB."""
    return Node(name, f"http://127.0.0.1/{name}", 10**9, "default", NodeState.READY, boot="b")


def job(name: str) -> KnownJob:
    """A job on the dataset."""
    record = JobRecord("t", name, DATASET, "images", 8, 64, 1, "auto", "default", "K", 5 * 10**12, 1000, "auto")
    return KnownJob(record, AT - 500, 1.0)


def reading(**parts: Any) -> FleetReading:
    """A zone of one node that is well."""
    given = {"at": AT, "nodes": {"a": node("a")}, "told": {"a": NodeSample(1.0, {"version": "1"})}, **parts}
    return FleetReading(**given)


def whats(found: FleetReading) -> list[str]:
    """The texts of all problems; each has a remedy."""
    problems = problems_of(found, 0.0)
    assert all(each.remedy for each in problems)
    return [each.what for each in problems]


def test_a_zone_that_is_well_has_no_problems() -> None:
    """Rule: a healthy zone has no problems."""
    assert whats(reading()) == []


def test_what_nodes_say_of_themselves_is_told_with_their_name() -> None:
    """Rule: a node's own words, since when it says; words of another version are left out."""
    own = {"kind": "churn", "severity": "warning", "what": "<b>What.</b>", "remedy": "R.", "since": AT - 60}
    told = {"a": NodeSample(1.0, {"problems": [own, {"text": "of another version"}, 7]})}
    [problem] = problems_of(reading(told=told), 0.0)
    assert (problem.node, problem.what, problem.since) == ("a", "<b>What.</b>", "2027-01-15T07:59:00.000Z")


def test_a_node_that_is_gone_or_silent_is_missed() -> None:
    """Rule: a member without reports is silent; a node that vanished without leaving counts as gone after ten seconds."""
    assert "is a member, but" in whats(reading(told={"a": NodeSample(30.0, {})}))[0]
    for age in (11.0, 60.0):
        assert "is gone" in whats(reading(told={"a": NodeSample(1.0, {}), "b": NodeSample(age, {})}))[0]
    assert whats(reading(told={"a": NodeSample(1.0, {}), "b": NodeSample(10.0, {})})) == []


def test_a_node_that_is_gone_stays_listed() -> None:
    """Rule: meanwhile the node is listed as GONE, with its last report, unless another has its address."""
    said = {"address": "http://127.0.0.1/b", "capacity": 7, "bytes": 5, "version": "1"}
    gone = reading(told={"a": NodeSample(1.0, {}), "b": NodeSample(1e6, said)})
    [_, listed] = nodes_of(gone)
    assert (listed.id, listed.state, listed.capacity, listed.bytes, listed.silent_seconds) == ("b", "GONE", 7, 5, 1e6)
    assert "is gone" in whats(gone)[0]
    replaced = reading(
        nodes={"c": replace(node("b"), id="c")}, told={"b": NodeSample(1e6, said), "c": NodeSample(1.0, {})}
    )
    assert [each.id for each in nodes_of(replaced)] == ["c"]
    assert whats(replaced) == []


ITEMS = 1000
WHOLE = PoolOrder(CachingMode.FULL, 10, 10, WhyCaching.BENEFIT, target=9 * 10**8)


@pytest.mark.parametrize(
    ("size", "parts", "why"),
    [
        (5 * 10**9, {}, "it takes 5.0 GB, and the caches hold"),
        (9 * 10**8, {"quotas": {DATASET: 10**8}}, "its quota is 100.0 MB"),
        (
            9 * 10**8,
            {"plan": Plan(pools=dataset_pools({DATASET: replace(WHOLE, target=10**8)}))},
            "the plan gives it 100.0 MB",
        ),
        (9 * 10**8, {"datasets": {("t", "one"): DATASET, ("t", "two"): "cd" * 32}}, "all such datasets take"),
        (8 * 10**8, {"gone": True}, "the part held by b is read from the origin"),
    ],
)
def test_a_dataset_that_is_not_kept_whole_says_why(size: int, parts: dict[str, Any], why: str) -> None:
    """Rule: a dataset that should be kept whole and is not is a problem, with its reason."""
    given = {"plan": Plan(pools=dataset_pools({DATASET: WHOLE})), **parts}
    told = {"a": NodeSample(1.0, {"datasets": {name: [ITEMS, size, 500] for name in (DATASET, "cd" * 32)}})}
    if given.pop("gone", False):
        told["b"] = NodeSample(100.0, {})
    found = reading(told=told, **given)
    [shown] = [each for each in datasets_of(found) if each.id == DATASET[:12]]
    assert shown.caching == "full"
    assert why in shown.shortfall
    assert [each for each in whats(found) if why in each and "should be cached whole" in each] != []
    fits = {"a": NodeSample(1.0, {"datasets": {DATASET: [ITEMS, 8 * 10**8, 500]}})}
    assert "shortfall=''" in repr(datasets_of(reading(told=fits, plan=Plan(pools=dataset_pools({DATASET: WHOLE})))))


def test_a_job_that_gains_nothing_is_named() -> None:
    """Rule: a job measured to gain nothing is a problem; one that is still being measured is not."""
    gains_nothing = Plan(jobs={"t/j": JobOrder(False, Phase.STEADY, 1.01)})
    assert "gains nothing" in whats(reading(jobs=(job("j"),), plan=gains_nothing))[0]
    for order in (
        JobOrder(True, Phase.STEADY, 2.0),
        JobOrder(False, Phase.PROBE_MISS, 1.0),
        JobOrder(True, Phase.STEADY, 0.0),
    ):
        assert whats(reading(jobs=(job("j"),), plan=Plan(jobs={"t/j": order}))) == []


def test_a_dataset_of_which_not_even_two_chunks_fit_is_named() -> None:
    """Rule: it is a problem if two chunks are more than all caches; not if others only gain more."""
    order = PoolOrder(CachingMode.NONE, 10, 10, WhyCaching.NO_ROOM)
    for chunk, expected in ((10**9, 1), (10**8, 0)):
        inputs = {"datasets": {DATASET: {"size": 10 * chunk, "chunk": chunk}}}
        plan = Plan(pools=dataset_pools({DATASET: order}), inputs=inputs)
        assert len(whats(reading(jobs=(job("j"),), plan=plan))) == expected


def test_redis_lost_is_said_once() -> None:
    """Rule: if this gateway has lost Redis itself, the nodes' reports of that are not repeated."""
    own = {"kind": "redis", "severity": "warning", "what": "W.", "remedy": "R.", "since": AT}
    found = problems_of(reading(lost="Redis is not reachable", told={"a": NodeSample(1.0, {"problems": [own]})}), 30.0)
    assert [each.severity for each in found] == ["error"]
    assert found[0].since == "2027-01-15T07:59:30.000Z"


def test_the_times_of_a_step_are_those_of_the_benefit() -> None:
    """Rule: a judged job shows the times behind its verdict, so their quotient is the benefit; before, its means."""
    totals = {Phase.PROBE_MISS: PhaseTotals(steps=10, seconds=1.0), Phase.MEASURE: PhaseTotals(steps=10, seconds=0.8)}
    told = replace(job("j"), totals=totals)
    unknown = jobs_of(reading(jobs=(told,)))[0]
    assert (unknown.t_miss, unknown.t_hit, unknown.benefit) == (0.1, 0.08, None)
    known = RememberedJob("d", ProbeState(benefit=4.0, miss=0.12, hit=0.03))
    plan = Plan(jobs={"t/j": JobOrder(True, Phase.STEADY, 4.0)}, memory=ManagerMemory(jobs={"t/j": known}))
    judged = jobs_of(reading(jobs=(told,), plan=plan))[0]
    assert (judged.t_miss, judged.t_hit, judged.benefit) == (0.12, 0.03, 4.0)


def test_the_newest_step_of_a_history_has_the_rates_of_now() -> None:
    """Rule: the newest step's rates are those of now, not a partial minute's counts divided by its seconds."""
    samples = [
        Sample(AT - back, "b", Counters(sent_bytes=6000 - 100 * back, batch_items=60 - back)) for back in (50, 0)
    ]
    now = now_of(reading(samples={"a": samples}))
    point = newest_document(Point(AT - 3, Counters(cache_bytes=6000, batch_items=60)), now)
    assert (point.batch_items_per_second, point.saved_bytes) == (1.0, 6000)


def test_totals_are_of_every_node_that_there_was() -> None:
    """Rule: each node's last sample counts once, also of gone nodes, with the counts from before restarts."""
    last = {name: Sample(AT, "b", Counters(requests=10)) for name in ("a", "gone")}
    retired = Counters(requests=100)
    newer = {"a": [Sample(AT + 5, "b", Counters(requests=12))]}
    assert total_of(reading(counted=last, retired=retired, samples=newer)).requests == 122
    restarted = {"a": [Sample(AT + 5, "anew", Counters(requests=1))]}
    assert total_of(reading(counted=last, retired=retired, samples=restarted)).requests == 121


def test_a_dataset_is_known_from_any_report() -> None:
    """Rule: a dataset that is registered, in use, in the plan or under an override is listed once, with all of its facts."""
    found = datasets_of(reading(datasets={("t", "one"): DATASET, ("u", "two"): DATASET}, overrides={"cd" * 32: "pin"}))
    assert [(each.id, each.names, each.items) for each in found] == [
        ("cd" * 6, [], None),
        ("ab" * 6, ["one", "two"], None),
    ]
    told = {"a": NodeSample(1.0, {"datasets": {DATASET: [100, 10**6, 40]}})}
    [known] = datasets_of(reading(datasets={("t", "one"): DATASET}, told=told))
    assert (known.items, known.bytes, known.resident_share, known.caching, known.why) == (
        100,
        10**6,
        0.4,
        "full",
        "fits",
    )


class CountedRegistrations(dict[tuple[str, str], str]):
    """Registrations that count how often they are gone through."""

    walks = 0

    def items(self) -> Any:
        """All of them."""
        self.walks += 1
        return super().items()


def test_registrations_are_gone_through_once_for_all_datasets() -> None:
    """Rule: a list of datasets does not take their number squared: ten thousand held the event loop for seconds."""
    registered = CountedRegistrations({("t", f"name-{number}"): f"{number:064x}" for number in range(20)})
    assert [each.names for each in datasets_of(reading(datasets=registered))] == [
        [name] for _, name in sorted(registered)
    ]
    assert registered.walks == 1
