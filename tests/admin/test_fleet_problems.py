"""Problems that only show in the whole zone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import datasets_of, jobs_of, newest_document, nodes_of, now_of, total_of
from gateway.fleet.jobs.jobs import JobRecord, KnownJob
from gateway.fleet.nodes.samples import NodeSample
from gateway.model.counters import Counters, Sample
from gateway.model.fleet import Node, NodeState
from gateway.operate.status.problems import problems_of, zone_problems
from gateway.policies.health.rates import Point
from gateway.policies.health.troubles import KINDS
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan, dataset_pools
from gateway.policies.space.probing import PhaseTotals, ProbeState
from gateway.policies.space.probing import StepSample as Timed
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
    given = {"at": AT, "nodes": {"a": node("a")}, "statuses": {"a": NodeSample(1.0, {"version": "1"})}, **parts}
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
    [problem] = problems_of(reading(statuses=told), 0.0)
    assert (problem.node, problem.what, problem.since) == ("a", "<b>What.</b>", "2027-01-15T07:59:00.000Z")


def test_a_node_that_is_gone_or_silent_is_missed() -> None:
    """Rule: a member without reports is silent; a node that vanished without leaving counts as gone after ten seconds."""
    assert "is a member, but" in whats(reading(statuses={"a": NodeSample(30.0, {})}))[0]
    for age in (11.0, 60.0):
        assert "is gone" in whats(reading(statuses={"a": NodeSample(1.0, {}), "b": NodeSample(age, {})}))[0]
    assert whats(reading(statuses={"a": NodeSample(1.0, {}), "b": NodeSample(10.0, {})})) == []


def test_a_node_that_is_gone_stays_listed() -> None:
    """Rule: meanwhile the node is listed as GONE, with its last report, unless another has its address."""
    said = {"address": "http://127.0.0.1/b", "capacity": 7, "bytes": 5, "version": "1"}
    gone = reading(statuses={"a": NodeSample(1.0, {}), "b": NodeSample(1e6, said)})
    [_, listed] = nodes_of(gone)
    assert (listed.id, listed.state, listed.capacity, listed.bytes, listed.silent_seconds) == ("b", "GONE", 7, 5, 1e6)
    assert "is gone" in whats(gone)[0]
    replaced = reading(
        nodes={"c": replace(node("b"), id="c")}, statuses={"b": NodeSample(1e6, said), "c": NodeSample(1.0, {})}
    )
    assert [each.id for each in nodes_of(replaced)] == ["c"]
    assert whats(replaced) == []


ITEMS = 1000
WHOLE = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT, target=9 * 10**8)


OTHER = "cd" * 32


def on(dataset: str, name: str) -> KnownJob:
    """A job on some dataset."""
    known = job(name)
    return replace(known, record=replace(known.record, dataset=dataset, name=name))


@pytest.mark.parametrize(
    ("size", "parts", "kind", "why"),
    [
        (5 * 10**9, {}, "not-whole", "it takes 5.0 GB, and the caches hold 989.0 MB"),
        (9 * 10**8, {"overrides": Overrides(quotas={DATASET: 10**8})}, "over-quota", "its quota is 100.0 MB"),
        (
            9 * 10**8,
            {"plan": Plan(pools=dataset_pools({DATASET: replace(WHOLE, target=10**8)}))},
            "claimed-size",
            "the plan gives it 100.0 MB",
        ),
        (9 * 10**8, {"jobs": (on(OTHER, "two"),)}, "not-whole", "all datasets in use take 1.8 GB, and the caches hold"),
        (8 * 10**8, {"gone": 0}, "part-gone", "the part held by b is read from the origin"),
        (10**9, {"gone": 10**9}, "part-gone", "it takes 1.0 GB, and the caches without b hold 989.0 MB"),
        (10**9, {"gone": 10**6}, "not-whole", "it takes 1.0 GB, and the caches without b hold 989.0 MB"),
    ],
)
def test_a_dataset_that_is_not_kept_whole_says_why(size: int, parts: dict[str, Any], kind: str, why: str) -> None:
    """Rule: a dataset that is used and should be kept whole, but is not, is a problem, with its cause and that cause's remedy."""
    given = {"plan": Plan(pools=dataset_pools({DATASET: WHOLE})), **parts}
    told = {"a": NodeSample(1.0, {"datasets": {name: [ITEMS, size, 500] for name in (DATASET, OTHER)}})}
    if (back := given.pop("gone", None)) is not None:
        told["b"] = NodeSample(100.0, {"capacity": back})
    found = reading(statuses=told, **given)
    [shown] = [each for each in datasets_of(found) if each.id == DATASET[:12]]
    assert shown.caching == "full"
    assert why in shown.shortfall
    [problem] = [each for each in problems_of(found, 0.0) if "should be cached whole" in each.what]
    assert (problem.kind, problem.remedy) == (kind, KINDS[kind].remedy)
    assert why in problem.what
    fits = {"a": NodeSample(1.0, {"datasets": {DATASET: [ITEMS, 8 * 10**8, 500]}})}
    assert "shortfall=''" in repr(datasets_of(reading(statuses=fits, plan=Plan(pools=dataset_pools({DATASET: WHOLE})))))


def test_each_cause_has_its_own_remedy() -> None:
    """Rule: an operator does something else about each cause of a dataset's shortfall."""
    kinds = ("not-whole", "over-quota", "claimed-size", "part-gone", "no-space", "empty")
    assert len({KINDS[kind].remedy for kind in kinds}) == len(kinds)


def test_datasets_that_are_only_registered_miss_nothing() -> None:
    """Rule: what no job uses and the plan gives no space is no problem, even if all of it together fits no cache; nor is what a
    dataset whose jobs have ended keeps of the free space."""
    sizes = {f"{number:064x}": 300_000_000 for number in range(5)}
    told = {"a": NodeSample(1.0, {"datasets": {name: [ITEMS, size, 0] for name, size in sizes.items()}})}
    registered = {("t", name[-4:]): name for name in sizes}
    assert whats(reading(statuses=told, datasets=registered)) == []
    idle = replace(WHOLE, why=WhyCaching.NO_JOBS)
    assert whats(reading(statuses=told, datasets=registered, plan=Plan(pools=dataset_pools({f"{0:064x}": idle})))) == []
    assert whats(reading(statuses=told, datasets=registered, jobs=(on(f"{0:064x}", "one"),))) == []


def test_datasets_with_the_same_reason_are_one_problem() -> None:
    """Rule: datasets in use that do not fit together are one problem, which names them, and not one for each."""
    sizes = {f"{number:064x}": 300_000_000 for number in range(5)}
    told = {"a": NodeSample(1.0, {"datasets": {name: [ITEMS, size, 0] for name, size in sizes.items()}})}
    jobs = tuple(on(name, f"set-{number}") for number, name in enumerate(sizes))
    [problem] = problems_of(reading(statuses=told, jobs=jobs), 0.0)
    assert (
        "Datasets set-0, set-1, set-2, set-3, set-4 should be cached whole, but are not: all datasets" in problem.what
    )


def test_a_problem_of_the_zone_began_when_it_was_first_seen() -> None:
    """Rule: the time of a problem of the zone is the one that the leading gateway noted, not that of a job or of the look."""
    told = {"a": NodeSample(1.0, {"datasets": {DATASET: [ITEMS, 5 * 10**9, 500]}})}
    found = reading(statuses=told, plan=Plan(pools=dataset_pools({DATASET: WHOLE})), jobs=(job("j"),))
    [(name, kind)] = zone_problems(found).items()
    assert kind == "not-whole"
    [problem] = problems_of(replace(found, begun={name: AT - 60}), 0.0)
    assert problem.since == "2027-01-15T07:59:00.000Z"
    [fresh] = problems_of(found, 0.0)
    assert fresh.since == "2027-01-15T08:00:00.000Z"


def starved(order: PoolOrder, **parts: Any) -> FleetReading:
    """A zone whose plan has such an order for the dataset of a job."""
    inputs = {"datasets": {DATASET: {"size": 10**9}}}
    return reading(plan=Plan(pools=dataset_pools({DATASET: order}), inputs=inputs), **{"jobs": (job("j"),), **parts})


def test_a_dataset_with_jobs_that_gets_no_space_is_named() -> None:
    """Rule: a dataset that the plan gives nothing although jobs would gain is a problem, with what stands in the way; without
    jobs, or if an operator or the jobs' own measurement decided so, it is none."""
    nothing = PoolOrder(CachingMode.NONE, WhyCaching.NO_ROOM)
    [problem] = problems_of(starved(nothing), 0.0)
    assert problem.kind == "no-space"
    assert "Dataset images gets no space, although job j reads it" in problem.what
    denied = replace(nothing, why=WhyCaching.OVERRIDE)
    assert whats(starved(denied, overrides=Overrides({DATASET: "never"}))) == []
    assert whats(starved(nothing, jobs=())) == []
    assert whats(starved(replace(nothing, why=WhyCaching.NO_BENEFIT))) == []


def reader(items: int) -> KnownJob:
    """A job that has read so many items since it began."""
    return replace(job("j"), totals={Phase.STEADY: PhaseTotals(10, 1.0, 0.5, items)})


def idle_cache(hits: int, held: int, resident: int, known: KnownJob, **parts: Any) -> FleetReading:
    """A zone that holds so many bytes and items; of 1,000 items delivered in the last minute ``hits`` came from the cache."""
    told = {"a": NodeSample(1.0, {"bytes": held, "datasets": {DATASET: [ITEMS, 8 * 10**8, resident]}})}
    samples = {
        "a": [Sample(AT - 50, "b", Counters()), Sample(AT, "b", Counters(batch_items=1000, batch_hits=hits))],
    }
    return reading(statuses=told, samples=samples, jobs=(known,), **parts)


def test_a_cache_that_stays_empty_while_jobs_read_the_origin_is_a_problem() -> None:
    """Rule: it is one if a job has read its dataset once, less than half of that and of the caches is filled, and most items come
    from the origin; it is none in a first epoch, in a full cache, for hits, or for a job that leaves the cache."""
    [problem] = problems_of(idle_cache(40, 10**8, 100, reader(1500)), 0.0)
    assert problem.kind == "empty"
    assert "The caches hold 100.0 MB of 989.0 MB" in problem.what
    assert "(j): 4% of their items" in problem.what
    assert whats(idle_cache(40, 10**8, 100, reader(900))) == []
    assert whats(idle_cache(40, 8 * 10**8, 100, reader(1500))) == []
    assert whats(idle_cache(900, 10**8, 100, reader(1500))) == []
    assert whats(idle_cache(40, 10**8, 900, reader(1500))) == []
    left = Plan(jobs={"t/j": JobOrder(False, Phase.STEADY, 0.0)})
    assert whats(idle_cache(40, 10**8, 100, reader(1500), plan=left)) == []


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


def test_redis_lost_is_said_once() -> None:
    """Rule: if this gateway has lost Redis itself, the nodes' reports of that are not repeated."""
    own = {"kind": "redis", "severity": "warning", "what": "W.", "remedy": "R.", "since": AT}
    found = problems_of(
        reading(lost="Redis is not reachable", statuses={"a": NodeSample(1.0, {"problems": [own]})}), 30.0
    )
    assert [each.severity for each in found] == ["error"]
    assert found[0].since == "2027-01-15T07:59:30.000Z"


def test_the_times_of_a_step_are_those_of_the_benefit() -> None:
    """Rule: a judged job shows the times behind its verdict, so their quotient is the benefit; before, its means."""
    totals = {Phase.PROBE_MISS: PhaseTotals(steps=10, seconds=1.0), Phase.MEASURE: PhaseTotals(steps=10, seconds=0.8)}
    told = replace(job("j"), totals=totals)
    unknown = jobs_of(reading(jobs=(told,)))[0]
    assert (unknown.t_miss, unknown.t_hit, unknown.benefit) == (0.1, 0.08, None)
    cold, warm = Timed(0.0, 0.12, 0.09), Timed(1.0, 0.03, 0.0)
    known = RememberedJob("d", ProbeState(benefit=4.0, low=cold, high=warm, latest=warm))
    plan = Plan(jobs={"t/j": JobOrder(True, Phase.STEADY, 4.0)}, memory=ManagerMemory(jobs={"t/j": known}))
    judged = jobs_of(reading(jobs=(told,), plan=plan))[0]
    assert (judged.t_miss, judged.t_hit, judged.benefit) == (pytest.approx(0.12), 0.03, 4.0)


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
    found = datasets_of(
        reading(datasets={("t", "one"): DATASET, ("u", "two"): DATASET}, overrides=Overrides({"cd" * 32: "pin"}))
    )
    assert [(each.id, each.names, each.items) for each in found] == [
        ("cd" * 6, [], None),
        ("ab" * 6, ["one", "two"], None),
    ]
    told = {"a": NodeSample(1.0, {"datasets": {DATASET: [100, 10**6, 40]}})}
    [known] = datasets_of(reading(datasets={("t", "one"): DATASET}, statuses=told))
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


def test_a_problem_of_several_datasets_began_once() -> None:
    """Rule: datasets that do not fit together are the same problem when one of them goes; it keeps its beginning."""
    sizes = {f"{number:064x}": 300_000_000 for number in range(5)}
    told = {"a": NodeSample(1.0, {"datasets": {name: [ITEMS, size, 0] for name, size in sizes.items()}})}
    jobs = tuple(on(name, f"set-{number}") for number, name in enumerate(sizes))
    [before], [after] = (zone_problems(reading(statuses=told, jobs=some)) for some in (jobs, jobs[:4]))
    assert before == after


def test_a_muted_problem_comes_last() -> None:
    """Rule: a mute has an end, and a muted error is listed behind warnings; a mute that is over changes nothing."""
    told = {"a": NodeSample(30.0, {}), "b": NodeSample(60.0, {})}
    for until, names in ((AT + 60, ["silent a", "gone b"]), (AT - 60, ["gone b", "silent a"])):
        found = problems_of(reading(statuses=told, mutes={"gone b": until}), 0.0)
        assert [each.name for each in found] == names
        assert [each.muted_until is not None for each in found] == [False, until > AT]


def test_a_dataset_is_never_named_by_digits() -> None:
    """Rule: a dataset of which no name is known is said to have none."""
    nothing = PoolOrder(CachingMode.NONE, WhyCaching.NO_ROOM)
    known = job("j")
    nameless = replace(known, record=replace(known.record, name=""))
    assert DATASET[:12] not in whats(starved(nothing, jobs=(nameless,)))[0]
