"""Prices in the ledger: the money that cached bytes save, worked out by hand, and how it divides the space."""

from dataclasses import replace

import pytest

from gateway.engine.space.manager import settings_of
from gateway.policies.space.benefit import JobFacts, gain_of, reads_of
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.prices import SECONDS, UnitPrices
from gateway.policies.space.probing import PhaseTotals, ProbeState, Stage, StepSample
from gateway.policies.space.remembered import ManagerMemory, RememberedJob
from gateway.policies.space.stream_space import RememberedStream, value_of
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.zone import PoolReport, StreamReport, ZoneStream

GB = 10**9
PRICES = UnitPrices(gb_read=0.02, thousand_requests=0.0004, gpu_hour=3.6, currency="EUR")
STEPS = {Phase.STEADY: PhaseTotals(1000, 100.0, 0.0, 10_000, 10_000)}
"""A thousand mini-batches of ten items."""


def measured(miss: float, full: float) -> RememberedJob:
    """A job that was measured at both ends."""
    samples = StepSample(0.0, miss, miss - full), StepSample(1.0, full, 0.0)
    state = ProbeState(
        Stage.RESTING, low=samples[0], high=samples[1], latest=samples[1], benefit=miss / full, low_at=1.0
    )
    return RememberedJob("data", state)


def test_what_a_read_and_a_second_are_worth():
    """Rule: 10 s of a GPU at 3.6 an hour, 1,000 requests at 0.4, and 2 GB at 0.02 are 0.01 + 0.4 + 0.04."""
    assert UnitPrices(0.02, 0.4, 3.6).worth(10.0, 1000, 2 * GB) == pytest.approx(0.45)
    assert SECONDS.worth(10.0, 1000, 2 * GB) == 10.0


def test_what_a_job_saves_per_second():
    """Rule: its waiting, requests and bytes at the speed that it has with hits only: 0.001 + 0.00004 + 0.0002."""
    fact, known = JobFacts("t", "a", "data", 1, STEPS), measured(0.2, 0.1)
    assert reads_of(fact, known, 2.0) == pytest.approx(100.0)  # ten items in 0.1 s
    assert gain_of(fact, known, 2.0, PRICES, 100_000) == pytest.approx(0.00124)
    assert gain_of(fact, known, 2.0) == pytest.approx(1.0)  # without prices: one GPU
    assert gain_of(replace(fact, wants="off"), known, 2.0, PRICES, 100_000) == 0.0


def test_a_job_that_gains_no_time_saves_its_reads():
    """Rule: where the cache shortens nothing, requests and bytes alone count; before the first step, almost nothing does."""
    fact, known = JobFacts("t", "a", "data", 8, STEPS), measured(0.1, 0.1)
    assert gain_of(fact, known, 2.0, PRICES, 100_000) == pytest.approx(0.00024)
    new = gain_of(replace(fact, totals={}), RememberedJob("data"), 1.0, PRICES, 100_000)
    assert 0 < new < 1e-9


def test_a_job_that_is_not_measured_yet_reads_as_it_did():
    """Rule: until its times are known, its reads are those that it made so far: 10,000 in 100 seconds."""
    assert reads_of(JobFacts("t", "a", "data", 1, STEPS), RememberedJob("data"), 2.0) == pytest.approx(100.0)


def facts_of(capacity: int) -> Facts:
    """Two datasets of 100 GB: one of large items that a GPU waits for, and one of small items that nobody waits for."""
    datasets = {"slow": DatasetFacts(100 * GB, 10**6), "small": DatasetFacts(100 * GB, 10**7)}
    many = {Phase.STEADY: PhaseTotals(1000, 100.0, 0.0, 10**6, 10**6)}
    jobs = {"t/a": JobFacts("t", "a", "slow", 1, STEPS), "t/b": JobFacts("t", "b", "small", 1, many)}
    return Facts(capacity, datasets, jobs)


def plan_with(prices: UnitPrices, capacity: int = 100 * GB) -> Plan:
    """The first plan under prices, for jobs that were measured before."""
    jobs = {"t/a": replace(measured(0.2, 0.1), dataset="slow"), "t/b": replace(measured(0.1, 0.1), dataset="small")}
    before = Plan(memory=ManagerMemory(jobs=jobs))
    return decide(before, facts_of(capacity), 2.0, replace(ManagerParams(), prices=prices))


@pytest.mark.parametrize(
    ("prices", "winner"),
    [
        (SECONDS, "slow"),
        (UnitPrices(gpu_hour=3.6), "slow"),  # 0.001 a second
        (UnitPrices(thousand_requests=0.0004, gpu_hour=3.6), "small"),  # 0.00104 against 0.004 for 10,000 requests
        (UnitPrices(thousand_requests=0.4), "small"),
        (UnitPrices(gb_read=0.02), "small"),  # 0.1 GB a second against 0.01
    ],
)
def test_prices_decide_what_is_kept(prices: UnitPrices, winner: str) -> None:
    """Rule: without prices the waiting decides; with them, what costs most gets the space."""
    targets = {name: order.target for name, order in plan_with(prices).datasets.items()}
    assert max(targets, key=lambda name: targets[name]) == winner
    assert targets[winner] >= 98 * GB


def test_the_plan_says_what_is_saved_per_hour():
    """Rule: half of a dataset with one job saves half of what its hits are worth: 0.00124 x 3600 / 2 an hour."""
    alone = decide(
        Plan(memory=ManagerMemory(jobs={"t/a": replace(measured(0.2, 0.1), dataset="slow")})),
        Facts(50 * GB, {"slow": DatasetFacts(100 * GB, 10**6)}, {"t/a": JobFacts("t", "a", "slow", 1, STEPS)}),
        2.0,
        replace(ManagerParams(), prices=PRICES),
    )
    assert alone.inputs["datasets"]["slow"]["saves"] == pytest.approx(2.232)
    assert alone.inputs["currency"] == "EUR"
    assert "saves" not in plan_with(SECONDS).inputs["datasets"]["slow"]


def test_streams_are_weighed_in_the_same_money():
    """Rule: a read of 1 MB that saves 0.1 s is worth 0.0001 + 0.0000004 + 0.00002 instead of 0.1 s."""
    seen = StreamReport(Pattern.RANDOM, None, 2000, 0, 2000 * 10**6, 0.0, 1000, items=1000, known_items=1000)
    stream = ZoneStream("b/p/", seen, PoolReport(0), ("n",), 1)
    known = RememberedStream(0.0, accesses=1000, pattern=Pattern.RANDOM.value)
    plain, money = (value_of(stream, known, 60.0, 0.1, prices) for prices in (SECONDS, PRICES))
    assert plain > 0
    assert money / plain == pytest.approx(0.0001204 / 0.1)


def test_the_configuration_gives_the_prices():
    """Rule: the manager's prices are those of the section [cost]."""
    assert settings_of(100, 50, PRICES).prices == PRICES
    assert not settings_of(100).prices.known
