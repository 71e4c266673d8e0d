"""What jobs gain: shared measurements, jobs that gain nothing, and space that moves to who gains more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.policies.space.benefit import JobFacts, gain_of, order_of, probed
from gateway.policies.space.forecast import forecast_at, forecasts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals, ProbeSettings, ProbeState, Stage, StepSample
from gateway.policies.space.remembered import ManagerMemory, RememberedJob

SETTINGS = ProbeSettings()
GB = 1000**3
ITEMS, BATCH = 1_000_000, 100


@dataclass
class Trainer:
    """A job whose mini-batch takes ``miss`` seconds without hits and ``full`` with hits only; it computes ``full`` of them."""

    name: str
    miss: float
    full: float
    dataset: str = "data"
    wants: str = "auto"
    joined: float = 0.0
    totals: dict[Phase, PhaseTotals] = field(default_factory=dict)
    steps: float = 0.0

    @property
    def key(self) -> str:
        """The job's name in the plan."""
        return f"t/{self.name}"

    def run(self, order: JobOrder, share: float, seconds: float) -> None:
        """Train for a while under an order, with a share of hits."""
        share = share if order.cache else 0.0
        each = self.miss - share * (self.miss - self.full)
        steps = int(seconds / each)
        before = self.totals.get(order.phase, PhaseTotals())
        self.totals[order.phase] = PhaseTotals(
            before.steps + steps,
            before.seconds + steps * each,
            before.waited + steps * (each - self.full),
            before.items + steps * BATCH,
            before.hits + round(share * steps * BATCH),
        )
        self.steps += steps

    def facts(self, **more: Any) -> JobFacts:
        """The job's report."""
        known: dict[str, Any] = {"totals": dict(self.totals), "joined_at": self.joined, "wants": self.wants}
        return JobFacts("t", self.name, self.dataset, 1, **(known | {"batch_size": BATCH} | more))


def swept(trainers: list[Trainer], share: float, turns: int = 400) -> tuple[dict[str, RememberedJob], set[str]]:
    """The memory of jobs on one warm dataset after a while, and the names of those that were refused hits."""
    memory: dict[str, RememberedJob] = {}
    refused: set[str] = set()
    for turn in range(turns):
        facts = {trainer.key: trainer.facts() for trainer in trainers}
        memory = probed(memory, facts, {"data": DatasetFacts(GB, ITEMS // 10)}, 10.0 * turn, SETTINGS)
        assert sum(known.probe.stage is Stage.REFUSING for known in memory.values()) <= 1
        for trainer in trainers:
            order = order_of(facts[trainer.key], memory[trainer.key])
            refused |= {trainer.name} if order.refused else set()
            trainer.run(order, share, 10.0)
    return memory, refused


def test_equal_jobs_of_a_sweep_share_one_measurement():
    """Rule: of jobs that are equal in dataset, batch size, GPUs and computing, one is refused hits, and all are known."""
    memory, refused = swept([Trainer(f"lr-{number}", 0.4, 0.1) for number in range(8)], 0.9)
    assert len(refused) == 1
    assert [known.probe.benefit for known in memory.values()] == [pytest.approx(4.0, rel=0.05)] * 8


def test_jobs_that_compute_differently_are_measured_one_by_one():
    """Rule: another network is another job, though all that it says of itself is the same; one at a time is refused hits."""
    memory, refused = swept([Trainer("small", 0.4, 0.1), Trainer("large", 0.6, 0.3)], 0.9)
    assert refused == {"small", "large"}
    assert memory["t/small"].probe.benefit == pytest.approx(4.0, rel=0.05)
    assert memory["t/large"].probe.benefit == pytest.approx(2.0, rel=0.05)


def test_seven_cold_jobs_in_step_are_refused_nothing_while_they_load():
    """Rule: each has hits of what the others load, and no probe makes anybody read an item again in the first epoch."""
    trainers = [Trainer(f"j{number}", 0.4, 0.1) for number in range(7)]
    epoch = ITEMS // 10 // BATCH
    turns = int(epoch * 0.143 / 10)
    _, refused = swept(trainers, 6 / 7, turns)
    assert max(trainer.steps for trainer in trainers) < epoch
    assert refused == set()


def test_a_job_with_caching_on_is_measured_and_never_refused_hits():
    """Rule: its ordinary reports tell its benefit; it counts at least what is assumed."""
    trainer = Trainer("on", 0.4, 0.1, wants="on")
    memory: dict[str, RememberedJob] = {}
    for turn in range(600):
        facts = {trainer.key: trainer.facts()}
        memory = probed(memory, facts, {"data": DatasetFacts(GB, ITEMS)}, 10.0 * turn, SETTINGS)
        order = order_of(facts[trainer.key], memory[trainer.key])
        assert (order.cache, order.phase) == (True, Phase.STEADY)
        trainer.run(order, 0.0 if turn < 10 else 0.5, 10.0)
    assert memory[trainer.key].probe.benefit == pytest.approx(4.0, rel=0.05)
    assert gain_of(trainer.facts(), memory[trainer.key], 2.0) == pytest.approx(3.0, rel=0.1)
    assert gain_of(trainer.facts(), RememberedJob("data"), 2.0) == 1.0


@pytest.mark.parametrize(
    ("state", "gain"),
    [
        (ProbeState(), 1.0),
        (ProbeState(benefit=4.0), 3.0),
        (ProbeState(benefit=1.01), 0.001),
        (ProbeState(low=StepSample(0.0, 0.11, 0.01)), 0.1),
        (ProbeState(low=StepSample(0.0, 0.4, 0.3)), 1.0),
    ],
    ids=["unknown", "measured", "nothing", "hardly waits", "waits"],
)
def test_what_a_job_counts(state, gain):
    """Rule: the benefit as measured; before, what is assumed, but no more than its waiting allows; and a little for its reads."""
    assert gain_of(JobFacts("t", "j", "data", 1), RememberedJob("data", state), 2.0) == pytest.approx(gain)
    assert gain_of(JobFacts("t", "j", "data", 1, wants="off"), RememberedJob("data", state), 2.0) == 0.0


def paired(first: Trainer, second: Trainer, seconds: int) -> tuple[float, Plan]:
    """Two jobs, each with a dataset that takes the whole cache, the second ten minutes later.

    Returns the sum of their speeds over the last third, in units of those without a cache, and the last plan.
    """
    plan, before = Plan(), {first.name: 0.0, second.name: 0.0}
    trainers = [first]
    for now in range(0, seconds, 5):
        if now == 600:
            trainers.append(second)
        if now == seconds * 2 // 3 // 5 * 5:
            before = {trainer.name: trainer.steps for trainer in (first, second)}
        datasets = {trainer.dataset: DatasetFacts(100 * GB, ITEMS) for trainer in trainers}
        facts = Facts(100 * GB, datasets, {trainer.key: trainer.facts() for trainer in trainers})
        plan = decide(plan, facts, float(now), ManagerParams())
        for trainer in trainers:
            pool = plan.of(trainer.dataset)
            share = 0.0 if pool is None else pool.target / (100 * GB)
            trainer.run(plan.jobs[trainer.key], share if trainer.steps > 500 else 0.0, 5.0)
    rates = [(one.steps - before[one.name]) * one.miss / (seconds - seconds * 2 // 3) for one in (first, second)]
    return sum(rates) / 2, plan


def test_the_space_goes_to_the_job_that_gains_more_whoever_came_first():
    """Rule: a job that gains 1.15 loses its space to one that gains 1.85, so both together run at 1.5 instead of 1.02."""
    slow, fast = Trainer("slow", 0.115, 0.1, "one"), Trainer("fast", 0.2, 0.1, "two", joined=600.0)
    speed, plan = paired(slow, fast, 3600)
    assert speed == pytest.approx(1.5, abs=0.03)
    assert plan.datasets["two"].target == 100 * GB
    fast, slow = Trainer("fast", 0.2, 0.1, "two"), Trainer("slow", 0.115, 0.1, "one", joined=600.0)
    assert paired(fast, slow, 3600)[0] == pytest.approx(1.5, abs=0.03)


def test_a_job_that_gains_little_with_its_part_does_not_keep_it():
    """Rule: a fifth of a dataset that makes a job 3.3 times as fast as a whole brings 1.15; a dataset that fits brings 1.85."""
    large, small = Trainer("large", 0.33, 0.1, "one"), Trainer("small", 0.185, 0.1, "two", joined=600.0)
    plan = Plan()
    for now in range(0, 3600, 5):
        trainers = [large, small] if now >= 600 else [large]
        sizes = {"one": 500 * GB, "two": 100 * GB}
        datasets = {trainer.dataset: DatasetFacts(sizes[trainer.dataset], ITEMS) for trainer in trainers}
        jobs = {trainer.key: trainer.facts() for trainer in trainers}
        plan = decide(plan, Facts(100 * GB, datasets, jobs), float(now), ManagerParams())
        for trainer in trainers:
            pool = plan.of(trainer.dataset)
            share = 0.0 if pool is None else pool.target / sizes[trainer.dataset]
            trainer.run(plan.jobs[trainer.key], share if trainer.steps > 500 else 0.0, 5.0)
    assert plan.memory.jobs["t/large"].probe.benefit == pytest.approx(3.3, rel=0.1)
    assert plan.datasets["two"].target == 100 * GB


@pytest.mark.parametrize(("other", "space"), [(0, 100), (60, 40)])
def test_a_dataset_whose_job_gains_nothing_gets_what_nobody_wants(other, space):
    """Rule: reads are worth little beside time, but more than empty space."""
    known = RememberedJob(
        "one", ProbeState(Stage.RESTING, benefit=1.0, low=StepSample(0, 0.1, 0), latest=StepSample(0, 0.1, 0))
    )
    datasets = {"one": DatasetFacts(100 * GB, ITEMS)}
    jobs = {"t/idle": JobFacts("t", "idle", "one", 8)}
    if other:
        datasets["two"] = DatasetFacts(other * GB, ITEMS)
        jobs["t/busy"] = JobFacts("t", "busy", "two", 1)
    plan = Plan(memory=ManagerMemory(jobs={"t/idle": known}))
    plan = decide(plan, Facts(100 * GB, datasets, jobs), 0.0, ManagerParams())
    assert plan.datasets["one"].target == space * GB


@pytest.mark.parametrize(("jobs", "hits"), [(1, 0.5), (4, 0.875)])
def test_times_are_predicted_for_the_present_space_and_more(jobs, hits):
    """Rule: with a share c cached, J jobs miss (1 - c) / J each; a tenth more of the dataset saves a tenth / J of the misses."""
    state = ProbeState(
        low=StepSample(0, 0.4, 0.3), high=StepSample(hits, 0.4 - 0.3 * hits, 0), latest=StepSample(hits, 0.17, 0)
    )
    told = forecast_at(state, 0.5, jobs)
    assert told is not None
    assert (told.hits, told.measured) == (hits, 0.17)
    assert told.predicted == pytest.approx(0.4 - 0.3 * hits)
    assert told.more == pytest.approx(told.predicted - 0.3 * 0.1 / jobs)


def test_a_job_that_misses_more_than_its_part_is_predicted_so():
    """Rule: the fastest of several jobs loads for the others; its own misses are the measure."""
    state = ProbeState(low=StepSample(0, 0.4, 0.3), high=StepSample(0.5, 0.25, 0), latest=StepSample(0.75, 0.175, 0))
    told = forecast_at(state, 0.5, 4)
    assert told is not None
    assert told.predicted == pytest.approx(0.4 - 0.3 * 0.75)
    assert told.more == pytest.approx(0.4 - 0.3 * 0.8)


def test_a_window_of_the_filling_says_nothing_of_the_full_space():
    """Rule: while fewer than half of the expected hits come, the space is being filled, and the expectation is the forecast."""
    state = ProbeState(low=StepSample(0, 0.4, 0.3), high=StepSample(0.5, 0.25, 0), latest=StepSample(0.02, 0.394, 0))
    forecast = forecast_at(state, 0.5, 1)
    assert forecast is not None
    assert forecast.predicted == pytest.approx(0.4 - 0.3 * 0.5)


@pytest.mark.parametrize(("cached", "predicted"), [(0.5, 0.2), (0.6, 0.16), (0.9, 0.1)])
def test_a_job_that_loads_while_it_computes_is_predicted_as_measured(cached, predicted):
    """Rule: its time falls with the reads of the store until its computing is all that is left."""
    latest = StepSample(cached, predicted, predicted - 0.1)
    state = ProbeState(low=StepSample(0, 0.4, 0.3), high=StepSample(0.5, 0.2, 0.1), latest=latest)
    forecast = forecast_at(state, cached, 1)
    assert forecast is not None
    assert forecast.predicted == pytest.approx(predicted)


@pytest.mark.parametrize(("cached", "predicted"), [(0.0, 0.4), (0.5, None)])
def test_a_job_that_was_measured_without_hits_only_is_predicted_without_space(cached, predicted):
    """Rule: its time stays as it is without space, and is not known with space until a window has hits."""
    state = ProbeState(Stage.MEASURING, low=StepSample(0, 0.4, 0.3), latest=StepSample(0, 0.4, 0.3))
    forecast = forecast_at(state, cached, 1)
    assert (None if forecast is None else forecast.predicted) == predicted


def test_the_plan_predicts_within_a_tenth_of_what_is_measured():
    """Rule: what the plan says of a job's speed is what the job reports."""
    _, plan = paired(Trainer("slow", 0.115, 0.1, "one"), Trainer("fast", 0.2, 0.1, "two", joined=600.0), 3600)
    found = forecasts(plan)
    assert set(found) == set(plan.jobs)
    for told in found.values():
        assert told.predicted == pytest.approx(told.measured, rel=0.1)
