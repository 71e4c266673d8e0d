"""The leader's part in importance: weights, threshold, shares, and which datasets are kept by importance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.jobs.plans import plan_document, read_plan
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.importance import ScoreStep
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.importance import JobReport, ScoredDataset, ScoreReport, divide, important, weigh
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import ImportanceOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.space.probing import PhaseTotals

GB = 1000**3
PART = PoolOrder(CachingMode.PART, WhyCaching.BENEFIT, 20)
FRESH = JobReport(10.0, 100.0, 50, 2.0)
STEPS = (ScoreStep(4.0, 30), ScoreStep(3.0, 20), ScoreStep(1.0, 50))


def scored(
    *jobs: str, rates: dict[str, float] | None = None, quota: int | None = None, **told: JobReport
) -> ScoredDataset:
    """A dataset of which one node tells."""
    reports = {"n": ScoreReport({job: told.get(job, FRESH) for job in jobs}, STEPS)}
    return ScoredDataset(reports, rates if rates is not None else dict.fromkeys(jobs, 1.0), 100, quota)


def test_one_job_counts_alone() -> None:
    """Rule: one job has all reads, and its scores are not scaled."""
    (weight,) = weigh({}, scored("a")).values()
    assert (weight.share, weight.factor) == (1.0, 1.0)


def test_jobs_count_by_their_reads_and_not_by_their_scale() -> None:
    """Rule: shares follow reads per second; a factor takes the mean of a job's scores out of them."""
    known = scored("a", "b", rates={"a": 300.0, "b": 100.0}, b=replace(FRESH, mean=8.0))
    found = weigh({}, known)
    assert {job: weight.share for job, weight in found.items()} == {"a": 0.75, "b": 0.25}
    assert {job: weight.factor for job, weight in found.items()} == {"a": 0.375, "b": pytest.approx(0.0312)}


def test_a_job_without_a_rate_counts_as_an_average_one() -> None:
    """Rule: before anything is known of a job's reads it is taken to read as much as the others do."""
    found = weigh({}, scored("a", "b", "c", rates={"a": 300.0, "b": 100.0, "c": 0.0}))
    assert found["c"].share == pytest.approx(1 / 3, abs=1e-3)


def test_weights_move_in_steps() -> None:
    """Rule: a weight that is nearly right stays, because a change ranks all items again."""
    before = weigh({}, scored("a", "b", rates={"a": 100.0, "b": 100.0}))
    assert weigh(before, scored("a", "b", rates={"a": 110.0, "b": 100.0})) == before
    assert weigh(before, scored("a", "b", rates={"a": 300.0, "b": 100.0}))["a"].share == 0.75


def test_jobs_that_are_gone_or_silent_do_not_count() -> None:
    """Rule: scores of a job that is not registered, or that stopped sending, have no weight."""
    assert weigh({}, scored("a", rates={})) == {}
    assert weigh({}, scored("a", a=replace(FRESH, age=4000.0))) == {}
    assert set(weigh({}, scored("a", "b", a=replace(FRESH, age=4000.0)))) == {"b"}


def test_the_threshold_fills_the_target() -> None:
    """Rule: items above the threshold fit; of those at it every node gets the same part."""
    assert divide({"n": STEPS}, 50) == (3.0, {"n": 50})
    assert divide({"n": STEPS, "m": (ScoreStep(3.0, 60),)}, 70) == (3.0, {"n": 30 + 10, "m": 30})
    assert divide({"n": STEPS}, 200) == (None, {"n": 100})


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=8), min_size=1, max_size=4),
    st.integers(0, 400),
)
def test_shares_never_exceed_the_target(nodes: list[list[tuple[int, int]]], target: int) -> None:
    """Rule: shares add up to the target or to all scored bytes, less a byte a node; a node's is at most its own bytes."""
    steps = {str(name): tuple(ScoreStep(float(score), size) for score, size in of) for name, of in enumerate(nodes)}
    have = {name: sum(step.bytes for step in of) for name, of in steps.items()}
    _, shares = divide(steps, target)
    assert all(shares[name] <= have[name] for name in steps)
    assert min(target, sum(have.values())) - len(steps) <= sum(shares.values()) <= max(0, target)


def test_a_scored_dataset_gets_what_nobody_else_wants() -> None:
    """Rule: importance can use any number of bytes, so free ones are shared by need."""
    orders = {"a": PART, "b": replace(PART, target=40), "c": PART}
    found = important(orders, {}, {"a": scored("x"), "b": scored("y", quota=60)}, 50)
    assert {name: order.target for name, order in found.items()} == {"a": 20 + 40, "b": 40 + 10, "c": 20}
    assert found["c"] == PART
    assert (found["a"].caching, found["a"].eviction, found["a"].held) == (
        CachingMode.FULL,
        "importance",
        CachingMode.PART,
    )
    assert found["a"].importance is not None
    assert found["a"].importance.threshold == 1.0
    assert found["a"].importance.shares == {"n": 60}
    assert found["b"].importance is not None
    assert (found["b"].importance.partial, found["b"].importance.threshold) == (True, 3.0)


def test_a_whole_dataset_has_no_threshold() -> None:
    """Rule: a dataset that fits whole has no threshold."""
    whole = important({"a": replace(PART, target=100)}, {}, {"a": scored("x")}, 0)["a"]
    assert whole.importance is not None
    assert (whole.importance.threshold, whole.importance.partial, whole.held) == (None, False, CachingMode.FULL)


@pytest.mark.parametrize(
    "order",
    [
        replace(PART, why=WhyCaching.REQUESTED),
        replace(PART, caching=CachingMode.NONE, target=0),
    ],
)
def test_what_was_decided_otherwise_stays(order: PoolOrder) -> None:
    """Rule: a dataset that was registered to be held in part, or that has no space, is not kept by importance."""
    assert important({"a": order}, {}, {"a": scored("x")}, 500) == {"a": order}


def facts(age: float, *, present: bool = True) -> Facts:
    """A dataset twice as large as the cache, with a job that sent scores."""
    totals = {Phase.STEADY: PhaseTotals(10, 5.0, 1.0, 100, 20)}
    job = JobFacts("t", "j", "d", 1, totals=totals, wants="on")
    reports = {"n": ScoreReport({"t/j": replace(FRESH, age=age)}, (ScoreStep(2.0, 20 * GB),))}
    return Facts(10 * GB, {"d": DatasetFacts(20 * GB, 1000)}, {"t/j": job} if present else {}, scores={"d": reports})


def test_the_plan_follows_the_scores_and_goes_back() -> None:
    """Rule: while scores count the dataset is kept by importance with all the space; when they age it is held by demand again."""
    plan = decide(Plan(), facts(10.0), 1.0, ManagerParams())
    order = plan.of("d")
    assert order is not None
    assert (order.eviction, order.target) == ("importance", 10 * GB)
    assert read_plan(plan_document(plan)) == plan
    (pool,) = node_pools(plan, 12 * GB, 24 * GB, "n")
    assert (pool.order, pool.target) == ("importance", 10 * GB)
    later = decide(plan, facts(4000.0), 2.0, ManagerParams()).of("d")
    assert later is not None
    assert (later.eviction, later.importance) == ("uniform", None)


def test_a_node_that_says_nothing_has_its_share_by_capacity() -> None:
    """Rule: before its first report a node gets its share by capacity."""
    order = replace(PART, caching=CachingMode.FULL, order="importance", importance=ImportanceOrder({}, 1.0, {"m": 5}))
    plan = Plan(1, pools={"dataset:d": order})
    assert [pool.target for pool in node_pools(plan, 100, 200, "n")] == [12]
    assert [pool.target for pool in node_pools(plan, 100, 200, "m")] == [5]
