"""The plan's facts about jobs: each job's gain from the cache, measured once for equal jobs.

``probing`` measures one job; here are the jobs of a dataset together.

- *Equal jobs share a measurement.* Jobs are equal if tenant, dataset, batch size, GPUs and ranks agree, and if a mini-batch keeps
  them busy for the same time, as in a sweep over parameters: equal computing time means the same network. The latest time without
  hits that one of them measured counts for all, so the rest are not refused hits.
- *One job of a dataset is refused hits at a time*: first those without a measurement, in the order of arrival.
- *A job with caching on* is never refused hits; it is measured by its ordinary reports, and counts at least ``assumed``.
- *A job that gains nothing* still reads through the cache, which saves reads of the store. That is worth ``LEAST_GAIN``, which
  wins its dataset only room that no other bidder wants.
- *Before anything is measured* a job counts as one that gains ``assumed``: a new dataset deserves a try. It counts less if its
  waiting time shows that less can be gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.prices import SECONDS, UnitPrices
from gateway.policies.space.probing import (
    LEAST_BENEFIT,
    PhaseTotals,
    ProbeSettings,
    ProbeState,
    Stage,
    StepSample,
    Turn,
    due,
    step,
)
from gateway.policies.space.remembered import RememberedJob

LEAST_GAIN = 0.001
"""Gain per GPU of a job whose time the cache does not shorten: it saves reads of the store."""
_LEAST_WORTH = 1e-12
"""The same with prices, which value the reads of such a job by themselves."""
_DONORS = 8
"""Measurements of equal jobs that are compared with a job's, the newest ones."""
_INDISTINCT = 0.05
"""Differences in computing below this share of a mini-batch do not matter."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The facts of a job: its registration, and its last heartbeat.

    ``totals`` are cumulative per phase, ``joined_at`` is on the clock of ``now``; ``wants`` is ``"auto"``, ``"on"`` (the cache
    whatever it gains) or ``"off"``. ``batch_size``: items of a mini-batch of one of its ``ranks``, 0 if that is not known.
    """

    tenant: str
    job: str
    dataset: str
    gpus: int
    totals: Mapping[Phase, PhaseTotals] = field(default_factory=dict)
    joined_at: float = 0.0
    wants: str = "auto"
    batch_size: int = 0
    ranks: int = 1

    def epoch(self, items: int) -> int:
        """Mini-batches of one rank in an epoch of ``items``; 0 if unknown."""
        return items // (self.batch_size * self.ranks) if self.batch_size and items else 0


class SizedDataset(Protocol):
    """The facts about a dataset."""

    @property
    def items(self) -> int:
        """Number of items."""


def by_dataset(jobs: Mapping[str, JobFacts]) -> dict[str, list[str]]:
    """The jobs' names by dataset, in order."""
    names: dict[str, list[str]] = {}
    for name in sorted(jobs):
        names.setdefault(jobs[name].dataset, []).append(name)
    return names


def probed(
    memory: Mapping[str, RememberedJob],
    jobs: Mapping[str, JobFacts],
    datasets: Mapping[str, SizedDataset],
    now: float,
    settings: ProbeSettings,
) -> dict[str, RememberedJob]:
    """The memory of all jobs after their last reports."""
    after = {}
    for dataset, names in by_dataset(jobs).items():
        items = datasets[dataset].items if dataset in datasets else 0
        known = _shared({name: _remembered(memory, name, dataset) for name in names}, jobs)
        turns = {name: Turn(now, jobs[name].epoch(items)) for name in names}
        chosen = _next_turn(known, jobs, turns, settings)
        for name in names:
            if jobs[name].wants == "off":
                after[name] = RememberedJob(dataset)
                continue
            turn = replace(turns[name], mine=name == chosen)
            after[name] = RememberedJob(dataset, step(known[name], _totals(jobs[name]), turn, settings))
    return after


def _remembered(memory: Mapping[str, RememberedJob], name: str, dataset: str) -> ProbeState:
    known = memory.get(name)
    return known.probe if known is not None and known.dataset == dataset else ProbeState()


def _totals(fact: JobFacts) -> Mapping[Phase, PhaseTotals]:
    """The totals by phase. A job that is not probed reports all in one phase, whichever is measured."""
    if fact.wants == "auto":
        return fact.totals
    return dict.fromkeys(Phase, fact.totals.get(Phase.STEADY, PhaseTotals()))


def _next_turn(
    known: Mapping[str, ProbeState], jobs: Mapping[str, JobFacts], turns: Mapping[str, Turn], settings: ProbeSettings
) -> str:
    """The job that may be refused hits now; empty for none."""
    if any(state.stage is Stage.REFUSING for state in known.values()):
        return ""
    waiting = [
        name
        for name, state in known.items()
        if jobs[name].wants == "auto" and due(state, jobs[name].totals, turns[name], settings)
    ]
    return min(waiting, key=lambda name: (known[name].low is not None, jobs[name].joined_at, name), default="")


def _shared(known: Mapping[str, ProbeState], jobs: Mapping[str, JobFacts]) -> dict[str, ProbeState]:
    """The states, each with the newest measurement without hits that an equal job made."""
    kinds: dict[tuple[str, int, int, int], list[ProbeState]] = {}
    for name, state in known.items():
        if state.low is not None and state.low_at is not None:
            kinds.setdefault(_kind(jobs[name]), []).append(state)
    donors = {
        kind: sorted(states, key=lambda state: -(state.low_at or 0.0))[:_DONORS] for kind, states in kinds.items()
    }
    return {name: _adopting(state, donors.get(_kind(jobs[name]), ())) for name, state in known.items()}


def _kind(fact: JobFacts) -> tuple[str, int, int, int]:
    return fact.tenant, fact.batch_size, fact.gpus, fact.ranks


def _adopting(state: ProbeState, donors: Sequence[ProbeState]) -> ProbeState:
    own = state.latest
    if own is None or state.stage in (Stage.COLD, Stage.REFUSING):
        return state
    for donor in donors:
        if state.low is not None and state.low_at is not None and (donor.low_at or 0.0) <= state.low_at:
            return state
        assert donor.low is not None
        if _equally_busy(own, donor.low):
            return replace(state, low=donor.low, low_at=donor.low_at, spacing=donor.spacing, drifted=False)
    return state


def _equally_busy(sample: StepSample, other: StepSample) -> bool:
    most = max(sample.busy, other.busy)
    return abs(sample.busy - other.busy) <= max(0.25 * most, _INDISTINCT * max(sample.each, other.each))


def order_of(fact: JobFacts, known: RememberedJob) -> JobOrder:
    """The directives of a job."""
    match fact.wants:
        case "auto":
            return known.probe.order
        case "on":
            return JobOrder(True, Phase.STEADY, known.probe.benefit)
        case _:
            return JobOrder(False, Phase.STEADY)


def gain_of(
    fact: JobFacts, known: RememberedJob, assumed: float, prices: UnitPrices = SECONDS, item: float = 0.0
) -> float:
    """The seconds that a job saves per second if its dataset is fully cached: GPUs, or money with prices.

    GPUs are the additional ones that it would need without the cache: gpus x (benefit - 1). Its reads are counted at the speed
    that it has with hits only.

    Args:
        fact: the job.
        known: its measurements.
        assumed: benefit before anything was measured.
        prices: of reads and waiting.
        item: bytes of an item, on average.
    """
    if fact.wants == "off":
        return 0.0
    benefit = expected_benefit(known.probe, assumed)
    if fact.wants == "on":
        benefit = max(benefit, assumed)
    waiting = fact.gpus * (benefit - 1 if benefit >= LEAST_BENEFIT else 0.0)
    if not prices.known:
        return max(fact.gpus * LEAST_GAIN, waiting)
    reads = reads_of(fact, known, assumed)
    return max(fact.gpus * _LEAST_WORTH, prices.worth(waiting, reads, reads * item))


def reads_of(fact: JobFacts, known: RememberedJob, assumed: float) -> float:
    """Items that a job reads per second with hits only; if its times are unknown, its rate so far."""
    steps = sum(total.steps for total in fact.totals.values())
    items = sum(total.items for total in fact.totals.values())
    if not steps:
        return 0.0
    times = known.probe.times
    if times is not None and times.miss > 0:
        return items / steps * expected_benefit(known.probe, assumed) / times.miss
    seconds = sum(total.seconds for total in fact.totals.values())
    return items / seconds if seconds > 0 else 0.0


def expected_benefit(state: ProbeState, assumed: float) -> float:
    """The measured benefit; otherwise the assumed one, or less if the job's waiting shows that less can be gained."""
    if state.benefit:
        return state.benefit
    times = state.times
    return assumed if times is None else min(assumed, times.benefit)
