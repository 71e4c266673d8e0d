"""What caches of another size would save, beside what the manager decides once they have that size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.plan import Plan
from gateway.policies.space.prices import UnitPrices
from gateway.policies.space.probing import ProbeState, Stage, StepSample
from gateway.policies.space.remembered import ManagerMemory, RememberedJob
from gateway.policies.space.what_if import as_planned, what_if
from gateway.policies.watermarks import GRANTABLE

GB = 1000**3
SIZES = {"one": 100, "two": 300, "three": 50}
DATASETS = {name: DatasetFacts(size * GB, 1_000_000) for name, size in SIZES.items()}


def measured(dataset: str, benefit: float) -> RememberedJob:
    """A job whose mini-batch takes 0.1 s with hits only."""
    low, high = StepSample(0.0, 0.1 * benefit, 0.1 * (benefit - 1)), StepSample(1.0, 0.1, 0.0)
    return RememberedJob(dataset, ProbeState(Stage.RESTING, benefit=benefit, low=low, high=high, latest=low))


def planned(capacity: int, prices: UnitPrices | None = None) -> Plan:
    """The plan of three jobs that are known, with caches of that many bytes and nothing in them."""
    jobs = {"t/a": measured("one", 2.0), "t/b": measured("two", 4.0), "t/c": measured("three", 1.5)}
    facts = {name: JobFacts("t", name[2:], known.dataset, 1) for name, known in jobs.items()}
    settings = ManagerParams() if prices is None else ManagerParams(prices=prices)
    return decide(
        Plan(memory=ManagerMemory(jobs=jobs)), Facts(int(GRANTABLE * capacity), DATASETS, facts), 0.0, settings
    )


@given(st.integers(0, 600), st.integers(0, 600))
def test_another_size_is_answered_as_it_would_be_decided(now: int, then: int) -> None:
    """Rule: what a size would give each dataset is what a plan for that size gives it."""
    wanted = planned(then * GB)
    outcome = what_if(planned(now * GB), then * GB)
    assert {name: space.granted for name, space in outcome.datasets.items()} == {
        name: order.target for name, order in wanted.datasets.items()
    }
    assert outcome.jobs == as_planned(wanted).jobs


@given(st.integers(0, 600), st.integers(0, 600))
def test_more_space_saves_no_less(size: int, more: int) -> None:
    """Rule: what all datasets save grows with the size, and ends with the last byte of the largest."""
    plan = planned(200 * GB)
    assert what_if(plan, (size + more) * GB).worth >= what_if(plan, size * GB).worth * (1 - 1e-9)
    assert [space.saved for space in what_if(plan, 600 * GB).datasets.values()] == [1.0] * 3


def test_jobs_are_predicted_for_the_other_size() -> None:
    """Rule: with room for all of its dataset, a job takes the time with hits only."""
    plan = planned(100 * GB)
    now, then = as_planned(plan).jobs["t/b"], what_if(plan, 600 * GB).jobs["t/b"]
    assert now.predicted > 0.25
    assert then.predicted == pytest.approx(0.1)


@pytest.mark.parametrize("prices", [None, UnitPrices(gpu_hour=3.0, currency="EUR")])
def test_jobs_that_are_not_measured_save_nothing(prices: UnitPrices | None) -> None:
    """Rule: a job without a measured benefit gets space, and counts as not measured instead of as savings, now and then."""
    settings = ManagerParams() if prices is None else ManagerParams(prices=prices)
    jobs = {"t/new": RememberedJob("one"), "t/b": measured("two", 4.0), "t/off": RememberedJob("two")}
    facts = {name: JobFacts("t", name[2:], known.dataset, 2) for name, known in jobs.items()}
    facts["t/off"] = JobFacts("t", "off", "two", 2, wants="off")
    plan = decide(
        Plan(memory=ManagerMemory(jobs=jobs)), Facts(int(GRANTABLE * 600 * GB), DATASETS, facts), 0.0, settings
    )
    for outcome in (as_planned(plan), what_if(plan, 600 * GB)):
        assert outcome.datasets["one"].granted > 0
        assert outcome.datasets["one"].worth == 0.0
        assert outcome.unmeasured == 1
        # Three GPUs more for each of the two, while all reads are hits.
        assert outcome.worth == pytest.approx(3600 * 2 * 3.0 if prices is None else 2 * 3.0 * 3.0)


def test_prices_make_it_money() -> None:
    """Rule: with prices, the worth of the present space is the sum that the plan shows."""
    plan = planned(200 * GB, UnitPrices(gpu_hour=3.0, currency="EUR"))
    shown = sum(facts["saves"] for facts in plan.inputs["datasets"].values())
    assert as_planned(plan).worth == pytest.approx(shown, rel=1e-4)
