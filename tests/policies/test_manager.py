"""The manager's plan as a whole: memory, changes, and the decisions for Quiver's cluster."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.fleet.jobs.plans import plan_document, read_memory, read_plan
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import JobOrder, Phase, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals, ProbeSettings
from tests.effort import examples

GB, GIB = 1000**3, 1024**3
FULL, PART, NONE = CachingMode.FULL, CachingMode.PART, CachingMode.NONE
SETTINGS = ManagerParams()
UNPROBED = ManagerParams(probe=ProbeSettings(batches=0))
BATCH = 32


def job(name: str, dataset: str = "data", **more: Any) -> JobFacts:
    """A job of four GPUs."""
    return JobFacts("t", name, dataset, **({"gpus": 4} | more))


def facts(capacity: int, datasets: dict[str, DatasetFacts], jobs: Iterable[JobFacts]) -> Facts:
    """The manager's facts of a fleet with these datasets and jobs."""
    return Facts(capacity, datasets, {f"{one.tenant}/{one.job}": one for one in jobs})


def again(plan: Plan) -> Plan:
    """The plan as another leader reads it."""
    return read_plan(json.loads(json.dumps(plan_document(plan), allow_nan=False)))


@dataclass
class Trainer:
    """A job whose mini-batches take the times of Quiver's Table 3: without the cache, with all, and with a part."""

    name: str
    dataset: str
    times: dict[CachingMode, float]
    totals: dict[Phase, PhaseTotals] = field(default_factory=dict)
    steps: float = 0.0
    cached: float = 0.0

    def run(self, plan: Plan, seconds: float) -> None:
        """Train for a while as the plan says."""
        held = plan.datasets[self.dataset].caching if self.dataset in plan.datasets else NONE
        order = plan.jobs.get(f"t/{self.name}", JobOrder(True, Phase.MEASURE))
        mode = held if order.cache and held in (FULL, PART) else NONE
        steps = max(1, int(seconds / self.times[mode]))
        before = self.totals.get(order.phase, PhaseTotals())
        hits = 0 if mode is NONE else steps * BATCH
        self.totals[order.phase] = PhaseTotals(
            before.steps + steps,
            before.seconds + steps * self.times[mode],
            before.waited + steps * (self.times[mode] - self.times[FULL]),
            before.items + steps * BATCH,
            before.hits + hits,
        )
        self.steps += steps

    def facts(self) -> JobFacts:
        """The job's report."""
        return JobFacts("t", self.name, self.dataset, 4, dict(self.totals))


TABLE_3 = {
    "imagenet": (154, {NONE: 2505 / 7000, FULL: 646 / 7000, PART: 1064 / 7000}),
    "openimages": (531, {NONE: 2874 / 7000, FULL: 1274 / 7000, PART: 1817 / 7000}),
    "librispeech": (90, {NONE: 1614 / 7000, FULL: 1234 / 7000, PART: 1265 / 7000}),
}


@functools.cache
def quivers_cluster(budget: int, minutes: int = 30) -> tuple[Plan, tuple[Plan, ...]]:
    """The plan for Quiver's twelve jobs after they were probed, and all plans before it (section 7.6)."""
    trainers = [Trainer(f"{name}{number}", name, times) for name, (_, times) in TABLE_3.items() for number in range(4)]
    plan, plans = Plan(), []
    for now in range(0, minutes * 60, 10):
        for trainer in trainers:
            trainer.run(plan, 10.0)
        known = facts(
            budget,
            {name: DatasetFacts(size * GB, 10**6) for name, (size, _) in TABLE_3.items()},
            [trainer.facts() for trainer in trainers],
        )
        plan = decide(plan, known, float(now), SETTINGS)
        plans.append(plan)
    return plan, tuple(plans)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (100, {"imagenet": PART, "openimages": PART, "librispeech": PART}),
        (200, {"imagenet": FULL, "openimages": PART, "librispeech": PART}),
        (700, {"imagenet": FULL, "openimages": PART, "librispeech": FULL}),
    ],
)
def test_quivers_cluster_gets_a_stable_plan(budget, expected):
    """Rule: from measured times alone the space goes where it saves most; it is never exceeded, and the plan is stable once
    everything is measured (section 7.6)."""
    plan, plans = quivers_cluster(budget * GIB)
    assert {name: order.caching for name, order in plan.datasets.items()} == expected
    assert all(sum(order.target for order in one.datasets.values()) <= budget * GIB for one in plans)
    modes = [[order.caching for order in one.datasets.values()] for one in plans[len(plans) // 2 :]]
    assert all(one == modes[0] for one in modes)
    assert {order.phase for order in plan.jobs.values()} == {Phase.STEADY}


def test_what_each_job_gains_is_found_out():
    """Rule: each job is measured, and its benefit is that of Table 3 with the space that its dataset has."""
    plan, _ = quivers_cluster(200 * GIB)
    expected = {"imagenet": (3.88, 2.35), "openimages": (2.26, 1.58), "librispeech": (1.31, 1.28)}
    for name, known in plan.memory.jobs.items():
        held = plan.datasets[known.dataset].caching
        assert known.probe.benefit == pytest.approx(expected[known.dataset][held is PART], rel=0.05)
        assert plan.jobs[name].cache


def test_one_job_of_a_dataset_is_refused_hits_at_a_time():
    """Rule: probing never takes the cache from two jobs of one dataset at once, and all of them have had their turn."""
    plan, plans = quivers_cluster(200 * GIB)
    for one in plans:
        refused = [name.rstrip("0123") for name, order in one.jobs.items() if not order.cache]
        assert len(refused) == len(set(refused))
    assert all(order.benefit > 0 for order in plan.jobs.values())


def test_another_leader_goes_on_from_the_plan_at_any_point():
    """Rule: decisions made from the plan as JSON are those of the leader that has led from the beginning."""
    _, plans = quivers_cluster(200 * GIB, minutes=5)
    known = facts(
        200 * GIB, {"imagenet": DatasetFacts(154 * GB, 10)}, [job("imagenet0", "imagenet"), job("new", "imagenet")]
    )
    for plan in plans:
        assert decide(again(plan), known, 1000.0, SETTINGS) == decide(plan, known, 1000.0, SETTINGS)


def test_a_new_dataset_gets_space_before_it_is_measured():
    """Rule: a dataset that fits is held whole at once; its jobs are measured, and none is refused hits, as there are none."""
    plan = decide(Plan(), facts(100 * GB, {"data": DatasetFacts(50 * GB, 10)}, [job("a"), job("b")]), 0.0, SETTINGS)
    assert (plan.version, plan.datasets["data"].caching, plan.datasets["data"].target) == (1, FULL, 50 * GB)
    assert plan.jobs == dict.fromkeys(("t/a", "t/b"), JobOrder(True, Phase.PROBE_MISS))


def test_new_datasets_share_what_is_not_enough_for_all():
    """Rule: before anything is known, equals share."""
    sizes = {f"d{number}": DatasetFacts(80 * GB, 10**6) for number in range(5)}
    plan = decide(Plan(), facts(100 * GB, sizes, [job(name, name) for name in sizes]), 0.0, SETTINGS)
    assert {order.caching for order in plan.datasets.values()} == {PART}


def test_the_version_changes_only_with_what_is_seen():
    """Rule: new numbers alone make no new version; a new job does."""
    known = facts(100 * GB, {"data": DatasetFacts(50 * GB, 10)}, [job("a")])
    first = decide(replace(Plan(), fence=7), known, 0.0, SETTINGS)
    moved = {Phase.PROBE_MISS: PhaseTotals(5, 1.0, 0.5, 160, 0)}
    second = decide(first, facts(100 * GB, known.datasets, [job("a", totals=moved)]), 1.0, SETTINGS)
    assert (second.version, second.fence) == (first.version, 7)
    assert second.memory != first.memory
    third = decide(second, facts(100 * GB, known.datasets, [job("a", totals=moved), job("b")]), 2.0, SETTINGS)
    assert third.version == first.version + 1


@pytest.mark.parametrize(("gpus", "keeps"), [(105, True), (120, False)])
def test_space_is_not_moved_for_a_small_gain(gpus, keeps):
    """Rule: space moves for a gain of twenty per cent more, not of five."""
    sizes = {name: DatasetFacts(90 * GB, 10**6, requested="auto") for name in ("old", "new")}
    old, new = job("a", "old", gpus=100), job("b", "new", gpus=gpus)
    held = decide(Plan(), facts(110 * GB, {"old": sizes["old"]}, [old]), 0.0, UNPROBED)
    after = decide(held, facts(110 * GB, sizes, [old, new]), 1.0, UNPROBED)
    assert (after.datasets["old"].caching is FULL) is keeps
    assert {order.caching for order in after.datasets.values()} == {FULL, PART}


def test_a_node_that_restarts_costs_no_space():
    """Rule: a smaller fleet is believed after a minute, a larger one at once."""
    dataset = {"data": DatasetFacts(90 * GB, 10)}
    plan = decide(Plan(), facts(100 * GB, dataset, [job("a")]), 0.0, UNPROBED)
    for now in (1.0, 30.0, 60.0):
        plan = decide(again(plan), facts(50 * GB, dataset, [job("a")]), now, UNPROBED)
        assert plan.datasets["data"].caching is FULL
    plan = decide(plan, facts(50 * GB, dataset, [job("a")]), 61.0, UNPROBED)
    assert plan.datasets["data"].caching is PART
    plan = decide(plan, facts(100 * GB, dataset, [job("a")]), 62.0, UNPROBED)
    assert plan.datasets["data"].caching is FULL


def run_alone(trainer: Trainer, capacity: int, size: int, minutes: int) -> list[Plan]:
    """The plans of a fleet with one job."""
    plan, plans = Plan(), []
    for now in range(0, minutes * 60, 10):
        trainer.run(plan, 10.0)
        plan = decide(
            plan, facts(capacity, {trainer.dataset: DatasetFacts(size, 10)}, [trainer.facts()]), now, SETTINGS
        )
        plans.append(plan)
    return plans


def test_a_job_that_gains_nothing_gets_what_nobody_else_wants():
    """Rule: what is cached for it saves reads of the store, so it has free space; whoever gains time takes that."""
    idle = Trainer("a", "data", dict.fromkeys((NONE, FULL, PART), 0.1))
    plan = run_alone(idle, 20 * GB, 50 * GB, 3)[-1]
    assert plan.jobs["t/a"] == JobOrder(True, Phase.STEADY, pytest.approx(1.0))
    assert (plan.datasets["data"].caching, plan.datasets["data"].target) == (PART, 20 * GB)
    both = {"data": DatasetFacts(50 * GB, 10), "new": DatasetFacts(17 * GB, 10**6)}
    plan = decide(plan, facts(20 * GB, both, [idle.facts(), job("b", "new", wants="on")]), 200.0, SETTINGS)
    assert (plan.datasets["new"].caching, plan.datasets["data"].target) == (FULL, 3 * GB)


@pytest.mark.parametrize(("requested", "caching"), [("auto", PART), ("full", FULL)])
def test_a_dataset_that_barely_fits_is_held_in_part_with_all_of_its_bytes(requested, caching):
    """Rule: ``full`` is promised up to 0.9 of the caches, as a dataset's parts on the nodes differ; who asks for it gets it."""
    data = {"data": DatasetFacts(19 * GB, 10**6, requested=requested)}
    plan = decide(Plan(), facts(20 * GB, data, [job("a", "data", wants="on")]), 1.0, SETTINGS)
    assert (plan.datasets["data"].caching, plan.datasets["data"].target) == (caching, 19 * GB)


def test_a_job_whose_times_change_is_measured_again():
    """Rule: a job that gained nothing gains later, as the store has become slower; its ordinary reports tell."""
    trainer = Trainer("a", "data", dict.fromkeys((NONE, FULL, PART), 0.1))
    plan = run_alone(trainer, 60 * GB, 50 * GB, 3)[-1]
    assert plan.jobs["t/a"].benefit == pytest.approx(1.0)
    trainer.times[NONE] = 0.3
    for now in range(180, 180 + 2400, 10):
        trainer.run(plan, 10.0)
        plan = decide(plan, facts(60 * GB, {"data": DatasetFacts(50 * GB, 10**6)}, [trainer.facts()]), now, SETTINGS)
    assert plan.jobs["t/a"] == JobOrder(True, Phase.STEADY, pytest.approx(3.0))


@pytest.mark.parametrize(
    ("wants", "order", "caching"),
    [("on", JobOrder(True, Phase.STEADY), FULL), ("off", JobOrder(False, Phase.STEADY), NONE)],
)
def test_a_job_that_knows_what_it_wants_is_not_probed(wants, order, caching):
    """Rule: a job with caching on or off is not probed; on counts as a gain, off does not use the cache."""
    plan = decide(Plan(), facts(100 * GB, {"data": DatasetFacts(50 * GB, 10)}, [job("a", wants=wants)]), 0.0, SETTINGS)
    assert (plan.jobs["t/a"], plan.datasets["data"].caching) == (order, caching)


def test_operators_outrank_jobs():
    """Rule: a pin holds without jobs, a never holds against them."""
    datasets = {
        "pinned": DatasetFacts(50 * GB, 10, override="pin"),
        "never": DatasetFacts(5 * GB, 10, override="never"),
    }
    plan = decide(Plan(), facts(100 * GB, datasets, [job("a", "never")]), 0.0, SETTINGS)
    found = {name: (order.caching, order.why) for name, order in plan.datasets.items()}
    assert found == {"pinned": (FULL, WhyCaching.OVERRIDE), "never": (NONE, WhyCaching.OVERRIDE)}


def test_a_dataset_without_jobs_keeps_its_space_until_somebody_needs_it():
    """Rule: an idle dataset keeps its space, with the reason, as far as others do not need it; one that had none gets none."""
    both = {"idle": DatasetFacts(50 * GB, 10), "busy": DatasetFacts(80 * GB, 10), "other": DatasetFacts(GB, 10)}
    plan = decide(Plan(), facts(100 * GB, both, [job("a", "idle")]), 0.0, UNPROBED)
    plan = decide(plan, facts(100 * GB, both, []), 1.0, UNPROBED)
    assert set(plan.datasets) == {"idle"}
    assert (plan.datasets["idle"].caching, plan.datasets["idle"].why) == (FULL, WhyCaching.NO_JOBS)
    plan = decide(plan, facts(100 * GB, both, [job("b", "busy")]), 2.0, UNPROBED)
    assert plan.datasets["busy"].caching is FULL
    idle = plan.datasets["idle"]
    assert (idle.caching, idle.why, idle.target) == (PART, WhyCaching.NO_JOBS, 20 * GB)


def test_a_quota_holds_without_jobs_too():
    """Rule: without jobs a dataset has its quota, whether it was ever planned; without one it keeps what it has."""
    free, job_of_it = DatasetFacts(50 * GB, 10), [job("a", "idle")]
    held = decide(Plan(), facts(100 * GB, {"idle": free}, job_of_it), 0.0, UNPROBED)
    for quota, expected in (
        (50 * GB, (FULL, WhyCaching.NO_JOBS)),
        (40 * GB, (PART, WhyCaching.OVERRIDE)),
        (0, (NONE, WhyCaching.OVERRIDE)),
    ):
        bounded = {"idle": replace(free, quota=quota), "new": replace(free, quota=quota)}
        plan = decide(held, facts(100 * GB, bounded, []), 1.0, UNPROBED)
        assert (plan.datasets["idle"].caching, plan.datasets["idle"].why) == expected
        assert ("new" in plan.datasets) == (quota < free.size)
        assert quota == free.size or plan.datasets["new"] == plan.datasets["idle"]
        assert decide(plan, facts(100 * GB, bounded, []), 2.0, UNPROBED) == plan
    assert decide(plan, facts(100 * GB, {}, []), 2.0, UNPROBED).datasets == {}


def test_a_dataset_without_jobs_has_its_quota_as_far_as_there_is_room():
    """Rule: those that keep what they hold come first; once a quota is removed, each gateway decides alone again."""
    held = decide(Plan(), facts(100 * GB, {"z": DatasetFacts(70 * GB, 10)}, [job("a", "z")]), 0.0, UNPROBED)
    both = {"z": DatasetFacts(70 * GB, 10), "a": DatasetFacts(50 * GB, 10, quota=40 * GB)}
    plan = decide(held, facts(100 * GB, both, []), 1.0, UNPROBED)
    assert (plan.datasets["z"].caching, plan.datasets["z"].target) == (FULL, 70 * GB)
    assert (plan.datasets["a"].caching, plan.datasets["a"].target) == (PART, 30 * GB)
    plan = decide(plan, facts(100 * GB, {"a": DatasetFacts(50 * GB, 10)}, []), 2.0, UNPROBED)
    assert plan.datasets == {}


def test_a_job_of_an_unknown_dataset_is_told_to_go_on():
    """Rule: nodes have not said yet how large its dataset is; the job is in the plan, the dataset is not."""
    plan = decide(Plan(), facts(100 * GB, {}, [job("a")]), 0.0, SETTINGS)
    assert set(plan.jobs) == {"t/a"}
    assert plan.datasets == {}


def test_a_job_that_takes_another_dataset_is_a_new_job():
    """Rule: a job's gain from one dataset says nothing about another."""
    trainer = Trainer("a", "one", dict(TABLE_3["imagenet"][1]))
    plan = run_alone(trainer, 100 * GB, 50 * GB, 5)[-1]
    assert plan.jobs["t/a"].benefit > 3
    plan = decide(plan, facts(100 * GB, {"two": DatasetFacts(GB, 10)}, [job("a", "two")]), 1000.0, SETTINGS)
    assert plan.jobs["t/a"] == JobOrder(True, Phase.PROBE_MISS)


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"capacity": "much", "below": None, "jobs": [], "rotations": 7},
        {"capacity": 1, "below": "x", "jobs": {"t/a": {"dataset": "data"}}, "rotations": {"data": {"using": 3}}},
        {"jobs": {"t/a": None}, "rotations": {"data": None}},
    ],
)
def test_a_memory_that_cannot_be_read_starts_fresh(memory):
    """Rule: the space in the plan stays, the jobs are probed again."""
    known = facts(12 * GB, {"data": DatasetFacts(50 * GB, 10)}, [job("a")])
    plan = decide(decide(Plan(), known, 0.0, SETTINGS), known, 1.0, SETTINGS)
    after = decide(replace(plan, memory=read_memory(memory)), known, 2.0, SETTINGS)
    assert after.datasets["data"] == plan.datasets["data"]
    assert after.jobs["t/a"].phase is Phase.PROBE_MISS


@st.composite
def worlds(draw: st.DrawFn) -> list[Facts]:
    """A fleet over time: jobs and nodes that come and go, any report."""
    datasets = [f"d{number}" for number in range(draw(st.integers(1, 4)))]
    counts = st.integers(0, 500)
    total = st.builds(PhaseTotals, counts, st.floats(0, 100), st.floats(0, 100), counts, counts)
    jobs = st.builds(
        JobFacts,
        st.just("t"),
        st.sampled_from("abcde"),
        st.sampled_from([*datasets, "unknown"]),
        st.integers(1, 64),
        st.dictionaries(st.sampled_from(Phase), total),
        st.floats(0, 10),
        st.sampled_from(["auto", "auto", "on", "off"]),
    )
    sets = st.builds(
        DatasetFacts,
        st.integers(0, 10**11),
        st.integers(0, 10**6),
        st.sampled_from(["auto", "auto", "auto", *(mode.value for mode in CachingMode)]),
        st.sampled_from(["", "", "", "pin", "never"]),
        st.just(0.0),
        st.none() | st.integers(0, 10**11),
    )
    world = st.builds(
        facts,
        st.integers(0, 2 * 10**11),
        st.fixed_dictionaries({}, optional=dict.fromkeys(datasets, sets)),
        st.lists(jobs, max_size=5),
    )
    return draw(st.lists(world, min_size=1, max_size=8))


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.floats(0.1, 400))
def test_whatever_happens_the_plan_is_sound(story, seconds):
    """Rule: the known space is never exceeded, every job has an order, the version
    counts visible changes, and deciding is idempotent, also from JSON."""
    plan, capacity = Plan(), 0
    for turn, known in enumerate(story):
        now = turn * seconds
        before, plan = plan, decide(plan, known, now, SETTINGS)
        assert decide(before, known, now, SETTINGS) == plan
        assert decide(again(before), known, now, SETTINGS) == plan
        capacity = max(capacity, known.capacity)
        assert sum(order.target for order in plan.datasets.values()) <= plan.memory.capacity <= capacity
        assert set(plan.jobs) == set(known.jobs)
        assert set(plan.datasets) <= set(known.datasets)
        for name, order in plan.datasets.items():
            quota = known.datasets[name].quota
            assert quota is None or order.target <= quota
        changed = (plan.datasets, plan.jobs) != (before.datasets, before.jobs)
        assert plan.version == before.version + changed
