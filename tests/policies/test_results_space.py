"""Space of result pools: bids, targets, and the room that a pipeline sees."""

from dataclasses import replace

import pytest

from gateway.fleet.jobs.plans import plan_document, read_plan
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import results_pool
from gateway.policies.space.allocation import Bid, Candidate, allocate
from gateway.policies.space.autocache import COMPUTE, CacheReason, Projection, StageProfile
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.cache_mode import CacheDecision
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.policies.space.results_needs import ResultsNeed
from gateway.policies.space.results_space import (
    GAIN_MARGIN,
    ResultsUse,
    results_bids,
    results_gain,
    results_orders,
    results_room,
)

POOL = results_pool("t", "d", "f")
MARK = StageProfile(2, 0.008, 1000.0, 1000)
DECISION = CacheDecision(
    2,
    CacheReason.FASTEST,
    pools={2: POOL},
    costs=(StageProfile(3, 0.01, 10.0, 1000), MARK),
    projections=(Projection(COMPUTE, 10.0), Projection(2, 2.5)),
)
USE = ResultsUse(POOL, DECISION, own=0.0, workers=1, gpus=4, tenant="t")


@pytest.mark.parametrize(
    ("own", "workers", "gain"),
    [(0.0, 1, 12.0), (0.0, 8, 12.0), (0.0025, 1, 12.0), (0.005, 1, 4.0), (0.005, 2, 0.0), (0.01, 1, 0.0)],
)
def test_a_gain_is_the_waiting_that_results_save(own, workers, gain):
    """Rule: t(compute) / t(cached) - 1 times GPUs, the currency of datasets; a trainer that does not wait gains nothing."""
    assert results_gain(replace(USE, own=own, workers=workers)) == pytest.approx(gain)


def test_jobs_of_one_pipeline_bid_together():
    """Rule: gains add up, the size is that of the results; a pool that has space counts a little more."""
    assert results_bids([USE, USE]) == [Bid(POOL, 1_100_000, 24.0)]
    assert results_bids([USE], held=[POOL]) == [Bid(POOL, 1_100_000, pytest.approx(12.0 * GAIN_MARGIN))]
    assert results_bids([replace(USE, decision=CacheDecision(2, CacheReason.OVERRIDE))]) == []


def test_results_and_datasets_share_one_ledger():
    """Rule: the pool that saves more waiting per byte gets the space, results or dataset."""
    dataset = Candidate("d", 1_000_000, gain=6.0, jobs=1, held=0)
    for gain, winner in ((12.0, POOL), (3.0, "d")):
        found = allocate([dataset], 1_000_000, [Bid(POOL, 1_000_000, gain)])
        assert [name for name, one in found.items() if one.granted] == [winner]


def test_what_nobody_wins_is_for_results():
    """Rule: a pool gets its won space, and of the rest as much as it can use; the best per byte first."""
    bids = [Bid("results:a", 1000, 1.0), Bid("results:b", 1000, 2.0), Bid("results:c", 1000, 0.0)]
    orders = results_orders(bids, {"results:a": 500}, 1200)
    assert {name: order.target for name, order in orders.items()} == {
        "results:a": 700,
        "results:b": 1000,
        "results:c": 0,
    }
    assert (orders["results:c"].caching, orders["results:c"].why) == (CachingMode.NONE, WhyCaching.NO_BENEFIT)
    assert {order.eviction for order in orders.values()} == {"uniform"}


def test_the_room_is_the_target_and_what_is_free():
    """Rule: without a pool, the room is the plan's rest, a tenth of it in reserve; the targets of other pools are not room."""
    other = PoolOrder(CachingMode.FULL, WhyCaching.BENEFIT, 300)
    mine = replace(other, target=200)
    # A tenth stays in reserve of what turns over, a hundredth of the dataset's: 0.9 x 1000 - 0.91 x 300.
    assert results_room(Plan(), 1000)([POOL]) == pytest.approx(900, abs=1)
    assert results_room(Plan(pools={"dataset:d": other}), 1000)([POOL]) == pytest.approx(627, abs=1)
    assert results_room(Plan(pools={"dataset:d": other, POOL: mine}), 1000)([POOL]) == pytest.approx(627, abs=1)
    assert results_room(Plan(pools={"dataset:d": replace(other, target=2000)}), 1000)([POOL]) == 0


def test_the_plan_has_pools_of_results():
    """Rule: the manager grants them space beside datasets, within the capacity, and lets go when the job has gone."""
    job = JobFacts("t", "j", "d", 4)
    facts = Facts(1_500_000, {"d": DatasetFacts(1_000_000, 100)}, {"t/j": job}, results=[USE])
    plan = decide(Plan(), facts, 1.0, ManagerParams())
    assert plan.pools[POOL].target == 1_100_000
    assert sum(order.target for order in plan.pools.values()) <= 1_500_000
    assert read_plan(plan_document(plan)).pools[POOL] == plan.pools[POOL]
    after = decide(plan, replace(facts, jobs={}, results=()), 2.0, ManagerParams())
    assert POOL not in after.pools


@pytest.mark.parametrize(
    ("need", "share"),
    [
        (ResultsNeed("t", 1_000_000, "never"), 1.0),
        (ResultsNeed("t", 1_000_000, quota=400_000), 1.0),
        (ResultsNeed("t", 1_000_000), 0.25),
    ],
)
def test_results_displace_no_dataset_by_what_they_may_not_have(need, share):
    """Rule: a bid is for no more than the operator's decision, the quota and the tenant's share let a pool have."""
    job = JobFacts("t", "j", "d", 1)
    facts = Facts(1_500_000, {"d": DatasetFacts(1_000_000, 100)}, {"t/j": job}, results=[USE], need={POOL: need})
    plan = decide(Plan(), facts, 1.0, ManagerParams(results_share=share))
    assert plan.of("d").target == 1_000_000
    assert plan.pools[POOL].target <= 400_000


def test_versions_bid_for_all_their_bytes():
    """Rule: a pool of three versions needs three times the space, for the same gain."""
    costs = (DECISION.costs[0], replace(MARK, versions=3))
    assert results_bids([replace(USE, decision=replace(DECISION, costs=costs))]) == [Bid(POOL, 3_300_000, 12.0)]
