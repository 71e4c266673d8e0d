"""Runs of a scenario, and their measurements.

If a run's mode is ``"module:function"``, that function creates the caching. So an idea can be compared with existing policies
before Larder is changed (docs/adding-a-policy.md). The module is imported from ``PYTHONPATH``, with the rights of the simulating
user: a scenario is a program, not a document.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.model.errors import ConfigError
from gateway.policies.space.manager import ManagerParams
from gateway.policies.space.prices import UnitPrices
from gateway.policies.space.probing import ProbeSettings
from gateway.sim.jobs.baselines import NeverEvict, NoCache, belady, lru
from gateway.sim.jobs.items import SimulatedItems, SimulatedSpace
from gateway.sim.jobs.job import JobRun, Surroundings, Way
from gateway.sim.jobs.link import Link, origin_link
from gateway.sim.jobs.managed import Managed, Managing, share
from gateway.sim.jobs.scenario import DatasetSpec, Mode, RunSpec, Scenario
from gateway.sim.world.clock import Clock

SAMPLES = 240
"""Times per run at which the progress of jobs is recorded."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The counts of one job in the measured time. ``rate`` is in mini-batches per second; ``hits`` and ``reads`` are the shares
    of its items that it found in the cache and fetched from the origin (other jobs fetched the rest). ``epochs`` is its items
    divided by those of the dataset.
    """

    name: str
    kind: str
    rate: float
    hits: float
    reads: float
    cached: bool
    benefit: float
    epochs: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run. ``caching`` is the plan at the end, by dataset; ``shares`` are the cached shares then. ``origin_bytes`` are all
    bytes from the origin, ``measured_bytes`` those in the measured time. ``progress`` has each job's mini-batches at ``times``.
    """

    run: RunSpec
    jobs: tuple[JobResult, ...]
    origin_bytes: float
    measured_bytes: float
    caching: dict[str, str] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    times: tuple[float, ...] = ()
    progress: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Mini-batches per second of all jobs together."""
        return sum(job.rate for job in self.jobs)

    def kind_rate(self, kind: str) -> float:
        """The mean rate of a kind's jobs; 0 if no such job takes part."""
        rates = [job.rate for job in self.jobs if job.kind == kind]
        return sum(rates) / len(rates) if rates else 0.0


def speedup(result: RunResult, baseline: RunResult) -> float:
    """The mean, over the jobs, of each job's speedup over the baseline (Quiver, section 7.6)."""
    before = {job.name: job.rate for job in baseline.jobs}
    ratios = [job.rate / before[job.name] for job in result.jobs if before.get(job.name)]
    return sum(ratios) / len(ratios) if ratios else 0.0


def simulate(scenario: Scenario, seed: int | None = None) -> list[RunResult]:
    """Simulate all runs of a scenario, each from its beginning with the same random numbers.

    Raises:
        ConfigError: a run names a function that does not exist.
    """
    return [_Run(scenario, run, scenario.seed if seed is None else seed).result() for run in scenario.runs]


MakeWay = Callable[[SimulatedSpace, Clock, Sequence[JobRun]], Way]
"""Makes the caching of one run from its space, its clock, and the list of its jobs, which is filled later."""


def own_way(name: str) -> MakeWay:
    """Import the function named ``"module:function"``.

    Raises:
        ConfigError: no such function can be imported.
    """
    module, _, function = name.partition(":")
    try:
        make_way: MakeWay = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'runs: mode = "{name}" is no function that can be imported ({error}); is its folder in PYTHONPATH?'
        ) from error
    return make_way


class _Run:
    def __init__(self, scenario: Scenario, run: RunSpec, seed: int) -> None:
        self._scenario = scenario
        self._run = run
        self._clock = Clock()
        self._shared = origin_link(self._clock, scenario.origin)
        kinds = scenario.jobs_of(run)
        used = {kind.dataset for kind in kinds}
        self._datasets = {
            spec.name: SimulatedItems(spec, self._road(spec)) for spec in scenario.datasets if spec.name in used
        }
        self._space = SimulatedSpace(run.capacity or scenario.fleet.capacity, self._datasets)
        self._jobs: list[JobRun] = []
        self._way = self._make_way(seed)
        around = Surroundings(self._clock, self._way, scenario.fleet.bandwidth, seed)
        for kind in kinds:
            for index in range(kind.count):
                self._jobs.append(JobRun(kind, len(self._jobs), index, self._datasets[kind.dataset], around))
        if run.warm:
            self._space.fill(np.random.default_rng([seed, 10**6 + 2]))

    def _road(self, spec: DatasetSpec) -> Link:
        return origin_link(self._clock, self._scenario.origin, spec.bandwidth) if spec.bandwidth else self._shared

    def _make_way(self, seed: int) -> Way:
        match self._run.mode:
            case Mode.NONE:
                return NoCache()
            case Mode.STATIC:
                return NeverEvict(self._space)
            case Mode.LRU:
                return lru(self._space, self._clock)
            case Mode.BELADY:
                return belady(self._space, self._clock, self._jobs)
            case Mode.LARDER:
                return Managed(self._clock, self._space, self._managing(seed), self._jobs)
            case own:
                return own_way(own)(self._space, self._clock, self._jobs)

    def _managing(self, seed: int) -> Managing:
        scenario, run = self._scenario, self._run
        batches = scenario.manager.probe_batches if run.probe_batches is None else run.probe_batches
        probe = ProbeSettings(batches=batches, every=scenario.manager.probe_every)
        cost = scenario.cost
        settings = ManagerParams(probe=probe, prices=UnitPrices(cost.gb_read, cost.thousand_requests, cost.gpu_hour))
        requested = {name: str(run.caching or items.spec.caching) for name, items in self._datasets.items()}
        return Managing(settings, scenario.manager.interval, requested, seed, run.orders)

    def result(self) -> RunResult:
        """Run the simulation and measure it."""
        scenario, clock = self._scenario, self._clock
        for job in self._jobs:
            clock.after(job.spec.start, job.begin)
        if isinstance(self._way, Managed):
            self._way.run()
        times: list[float] = []
        progress: dict[str, list[int]] = {job.name: [] for job in self._jobs}
        before: dict[str, _Count] = {}
        sent = 0.0
        ticks = np.linspace(0, scenario.duration, SAMPLES + 1)
        for tick in np.union1d(ticks, [scenario.measure_from]).tolist():
            clock.run(tick)
            times.append(tick)
            for job in self._jobs:
                progress[job.name].append(job.steps)
            if tick == scenario.measure_from:
                before = {job.name: _Count.of(job) for job in self._jobs}
                sent = self._sent()
        return self._measured(before, sent, times, progress)

    def _sent(self) -> float:
        return sum(link.sent for link in {items.link for items in self._datasets.values()})

    def _measured(
        self, before: dict[str, _Count], sent: float, times: Sequence[float], progress: dict[str, list[int]]
    ) -> RunResult:
        way = self._way
        managed = way if isinstance(way, Managed) else None
        orders = managed.plan.datasets if managed else {}
        return RunResult(
            self._run,
            tuple(self._job_result(job, before[job.name], managed) for job in self._jobs),
            self._sent(),
            self._sent() - sent,
            {name: order.caching.value for name, order in orders.items()},
            {name: share(items) for name, items in self._datasets.items()},
            tuple(times),
            {name: tuple(steps) for name, steps in progress.items()},
        )

    def _job_result(self, job: JobRun, before: _Count, managed: Managed | None) -> JobResult:
        now = _Count.of(job)
        items = max(1, now.items - before.items)
        order = managed.job_order(job) if managed else None
        began = max(self._scenario.measure_from, job.spec.start)
        return JobResult(
            job.name,
            job.spec.name,
            (now.steps - before.steps) / max(1e-9, (job.ended_at or self._scenario.duration) - began),
            (now.hits - before.hits) / items,
            (now.reads - before.reads) / items,
            order.cache if order else self._run.mode is not Mode.NONE,
            order.benefit if order else 0.0,
            items / job.items.count,
        )


@dataclass(frozen=True, slots=True)
class _Count:
    """A job's totals over all phases."""

    steps: int
    items: int
    hits: int
    reads: int

    @classmethod
    def of(cls, job: JobRun) -> _Count:
        every = job.totals.values()
        return cls(
            job.steps,
            sum(totals.items for totals in every),
            sum(totals.hits for totals in every),
            sum(totals.reads for totals in every),
        )
