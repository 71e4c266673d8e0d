"""Pipelines under the virtual clock: input workers, a queue, a trainer, and the decisions of the gateway.

The pipeline is that of Cachew's Figure 8 (ATC 2022): it reads an element, enlarges it, and works on it for a while, with a mark
after reading (*source cache*) and another at the end (*full cache*). Workers compute whole batches, which leave in order. The
trainer takes one after the other. Decisions and their inputs come from shipped code: the client's meters
(``larder.pipelines.metering``), and ``cache_mode``, ``autocache`` and ``autoscale`` of ``policies/space``. Only times are
modelled: those of reading, work, storing and the trainer's step, with separate noise for each batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gateway.policies.space.autocache import COMPUTE, CacheReason, StageProfile
from gateway.policies.space.autoscale import ScaleSettings, Scaling
from gateway.policies.space.cache_mode import CacheDecision, CacheFacts, MarkSettings, PipelineProfile, decided
from gateway.policies.space.pipelines import RankBatches, workers_after
from gateway.policies.space.read_model import ReadModel, ReadSums, added, fit_reads, size_class
from gateway.sim.cpu_rule import CpuRule, CpuTarget
from gateway.sim.world.clock import Clock
from larder.pipelines.metering import BatchMeter, BatchReport, ProfiledStages, ProfileMeter
from larder.pipelines.stages import Counts, StageCounts, summed

SOURCE, FULL = 2, 4
"""Numbers of the two marks."""
QUEUE = 8
"""Batches that are computed ahead, as by the client's default."""
HEARTBEAT = 1.0
"""Seconds between two heartbeats of a rank."""
STARTUP = 2.0
"""Seconds until a new worker is ready."""
DRIFTING = 100
"""Batches."""
_READS = ReadModel(0.0002, 1e-9)
"""A fifth of a millisecond, and a gigabyte per second, without waiting."""
_POOLS = {SOURCE: "results:source", FULL: "results:full"}
_SAMPLES = 200
"""Elements read by earlier pipelines."""
_MOST_WORKERS = 64
"""Number of workers at which ``knee`` stops searching."""


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """A pipeline and its trainer; times in seconds, sizes in bytes.

    Args:
        work: time of a worker on one element, after the mark of the source.
        source: time to read one element from the dataset's store.
        size: of an element at the first mark.
        growth: how many times as large it is at the second mark.
        reads: time to read one element from the cache.
        room: bytes available for results.
        step: time of the trainer's own work per batch.
        elements: number in an epoch.
        batch: number of elements in a batch.
        noise: standard deviation of a batch's time, as a share.
        contention: share by which each worker slows the other workers down.
        drift: standard deviation of the noise shared by all batches of a stretch of ``DRIFTING``, as a share.
    """

    work: float
    source: float = 0.001
    size: int = 100_000
    growth: float = 2.5
    reads: ReadModel = _READS
    room: float = 1e15
    step: float = 0.0
    elements: int = 4000
    batch: int = 20
    noise: float = 0.02
    contention: float = 0.0
    drift: float = 0.0

    def bytes_at(self, mark: int) -> float:
        """Size of an element at a mark."""
        return self.size if mark == SOURCE else self.growth * self.size

    def share(self, mark: int) -> float:
        """Share of a mark's results that fit into the room, 0 to 1."""
        return min(1.0, self.room / (self.elements * self.bytes_at(mark)))

    def points(self, cache: int, writes: bool) -> tuple[float, float]:
        """Mean worker seconds per element up to each mark, with the mark ``cache`` in force."""
        source, end = self.source, self.source + self.work
        if cache == COMPUTE:
            return source, end
        share = self.share(cache)
        read = share * self.reads.seconds(self.bytes_at(cache))
        if writes:  # storing an element takes as long as reading it
            return source + read * (cache == SOURCE), end + read
        computed = (1 - share) * source + (self.work if cache == SOURCE else (1 - share) * self.work)
        end = max(read, self.reads.busy * read + computed)  # the next elements are read while these are computed
        return (end - self.work if cache == SOURCE else (1 - share) * source), end

    def busy(self, cache: int, writes: bool) -> float:
        """Mean processor seconds per element. A read from the dataset's store only waits."""
        share = self.share(cache) if cache != COMPUTE else 0.0
        work = self.work if writes or cache != FULL else (1 - share) * self.work
        return share * self.reads.busy * self.reads.seconds(self.bytes_at(cache)) + work


@dataclass(frozen=True, slots=True)
class PipelineControl:
    """The control of a run: fixed by ``cache`` and ``workers``; where these are missing, decided by the fleet.

    Args:
        cache: the mark in use from the first epoch on.
        workers: number of workers.
        scale: how the number of workers is found.
        cpu: find it by processor time instead.
        caching: when the gateway decides where to cache.
        stored: decisions of other jobs, by the pools that these jobs stored.
        known_reads: elements of several sizes that earlier pipelines read.
    """

    cache: int | None = None
    workers: int | None = None
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    cpu: CpuTarget | None = None
    caching: MarkSettings = field(default_factory=MarkSettings)
    stored: Mapping[str, CacheDecision] = field(default_factory=dict)
    known_reads: int = _SAMPLES


@dataclass(frozen=True, slots=True)
class SimulatedEpoch:
    """An epoch: its beginning and end, seconds per batch, the mark in force, whether it was stored, and its last workers."""

    began: float
    ended: float
    batch_time: float
    cache: int
    writes: bool
    workers: int


@dataclass(slots=True)
class PipelineRun:
    """The outcome of a run: epochs, and changes of the number of workers and decisions, with their times."""

    epochs: list[SimulatedEpoch] = field(default_factory=list)
    workers: list[tuple[float, int]] = field(default_factory=list)
    decisions: list[tuple[float, CacheDecision]] = field(default_factory=list)

    def worker_seconds(self, began: float, ended: float) -> float:
        """The seconds between two times for which workers were paid for, whether or not they had work."""
        until = [at for at, _ in self.workers[1:]] + [max(ended, self.workers[-1][0])]
        return sum(
            workers * max(0.0, min(end, ended) - max(at, began))
            for (at, workers), end in zip(self.workers, until, strict=True)
        )

    @property
    def stored(self) -> dict[str, CacheDecision]:
        """The pool that the run stored, with its decision, for a later job."""
        if not self.decisions or self.decisions[-1][1].stage == COMPUTE:
            return {}
        decision = self.decisions[-1][1]
        return {decision.pools[decision.stage]: decision}


def simulate_pipeline(model: PipelineModel, control: PipelineControl, epochs: int, seed: int = 0) -> PipelineRun:
    """Simulate training for ``epochs``."""
    return _PipelineSimulation(model, control, seed).run(epochs)


class _Gateway:
    """The gateway's decisions from a rank's heartbeats."""

    def __init__(self, model: PipelineModel, control: PipelineControl, chance: random.Random) -> None:
        self._model = model
        self._control = control
        self._reads: dict[int, ReadSums] = {}
        for _ in range(control.known_reads):
            size = model.size * chance.uniform(0.1, 2 * model.growth)
            seconds = model.reads.seconds(size) * max(0.1, chance.gauss(1, 0.1))
            self._read(ReadSums(1, size, seconds, seconds * model.reads.busy))
        fixed = control.cache  # the first epoch writes, as after an operator's decision
        self.decision = None if fixed is None else CacheDecision(fixed, CacheReason.OVERRIDE, epoch=-1)
        self.scaling: Scaling | None = None

    def profiled(self, said: Mapping[str, Any], epoch: int) -> None:
        """Take a profile."""
        profile = self._profile(said, epoch)
        if profile.read is not None:
            self._read(profile.read)
        facts = CacheFacts(fit_reads(self._reads.values()), self._model.room, self._control.stored)
        self.decision = decided(self.decision, profile, facts, self._control.caching)

    def reported(self, report: BatchReport, epoch: int) -> int:
        """Take timed batches; returns the number of workers."""
        said = RankBatches(report.batch_time, report.queue, report.workers, report.cache or COMPUTE, epoch)
        self.scaling = workers_after(self.scaling, said, self.decision, self._control.scale)
        return self.scaling.workers

    def _profile(self, said: Mapping[str, Any], epoch: int) -> PipelineProfile:
        def point(metrics: Mapping[str, Any]) -> StageProfile:
            count = metrics["num_elements"]
            size = metrics["bytes_produced"] / max(1, count)
            elements = round(self._model.elements * count / max(1, said["items"]))
            return StageProfile(metrics["stage"], metrics["active_time"], size, elements)

        measured, cache = said["end"]["num_elements"], said["cache"] or COMPUTE
        marks, times = tuple(map(point, said["marks"])), said.get("read")
        read = (
            None if times is None else ReadSums(*(times[name] for name in ("num_elements", "bytes", "seconds", "busy")))
        )
        return PipelineProfile(cache, epoch, measured, point(said["end"]), marks, _POOLS, said["workers"], read)

    def _read(self, reads: ReadSums) -> None:
        place = size_class(reads)
        self._reads[place] = added(self._reads.get(place), reads)


class _PipelineSimulation:
    """One run."""

    def __init__(self, model: PipelineModel, control: PipelineControl, seed: int) -> None:
        self._model, self._control = model, control
        self._chance = random.Random(seed)  # noqa: S311 -- noise of a simulation
        self._clock = Clock()
        self._gateway = _Gateway(model, control, self._chance)
        self._meter = BatchMeter()
        self._profiles = ProfileMeter(ProfiledStages(FULL, {SOURCE: "5e" * 32, FULL: "f0" * 32}))
        self._counts: Counts = {}
        self._said: tuple[dict[str, object] | None, BatchReport | None] = (None, None)
        self._target = control.workers or 1
        self._ready_workers = self._target
        self._busy = 0
        self._busy_seconds = 0.0
        self._cache = control.cache or COMPUTE
        self._run = PipelineRun(workers=[(0.0, self._target)])
        self._epoch, self._epochs, self._began = 0, 0, 0.0
        self._given = self._taken = 0
        self._done: set[int] = set()
        self._training = False
        self._drift = 1.0

    def run(self, epochs: int) -> PipelineRun:
        """Run this many epochs."""
        self._epochs = epochs
        first = self._profiles.first()
        if self._control.stored and first is not None:  # like a job's first heartbeat, before its first epoch
            self._gateway.profiled(first, 0)
            self._note(None)
        self._clock.after(0.0, self._begin)
        self._clock.after(HEARTBEAT, self._beat)
        if self._control.cpu is not None:
            self._clock.after(self._control.cpu.period, partial(self._by_cpu, CpuRule(self._control.cpu)))
        until = 0.0
        while self._epoch < epochs:
            until += 1000.0
            self._clock.run(until)
        return self._run

    @property
    def _batches(self) -> int:
        return self._model.elements // self._model.batch

    @property
    def _writes(self) -> bool:
        if self._control.cache is not None:
            return self._cache != COMPUTE and self._epoch == 0
        decision = self._gateway.decision
        return decision is not None and decision.mode(self._cache, self._epoch) == "put"

    def _begin(self) -> None:
        if self._epoch == self._epochs:
            return
        if self._control.cache is None and self._gateway.decision is not None:
            self._cache = self._gateway.decision.stage
        self._began = self._clock.now
        self._given = self._taken = 0
        self._meter.begin(self._cache or None)
        self._profiles.begin(self._cache or None)
        self._work()

    def _end(self) -> None:
        seconds = self._clock.now - self._began
        self._run.epochs.append(
            SimulatedEpoch(
                self._began,
                self._clock.now,
                seconds / self._batches,
                self._cache,
                self._writes,
                self._target,
            )
        )
        self._epoch += 1
        self._begin()

    # --- workers

    def _work(self) -> None:
        """Give idle workers the next batches while the queue has room."""
        while (
            self._busy < self._ready_workers
            and self._given < self._batches
            and self._given - self._taken < max(QUEUE, 2 * self._target)
        ):
            number, self._given, self._busy = self._given, self._given + 1, self._busy + 1
            source, end = self._model.points(self._cache, self._writes)
            slower = 1 + self._model.contention * (self._ready_workers - 1)
            if number % DRIFTING == 0:
                self._drift = self._chance.gauss(1, self._model.drift)
            slower *= max(0.1, self._drift * self._chance.gauss(1, self._model.noise))
            counts = self._counted(slower * source, slower * end, slower)
            waited = end - self._model.busy(self._cache, self._writes)  # workers that slow each other down are busy
            cpu = self._model.batch * (slower * end - waited)
            self._clock.after(slower * end * self._model.batch, partial(self._finish, number, counts, cpu))

    def _counted(self, source: float, end: float, slower: float) -> Counts:
        size, model = self._model.batch, self._model
        sizes = {SOURCE: model.bytes_at(SOURCE), FULL: model.bytes_at(FULL)}
        counts = {0: StageCounts(size, 0.0, 0, size)} | {
            mark: StageCounts(size, size * seconds, int(size * sizes[mark]), size)
            for mark, seconds in ((SOURCE, source), (FULL, end))
        }
        if self._cache != COMPUTE and not self._writes:
            read = counts[self._cache]
            read.timed = round(size * model.share(self._cache))
            read.reading = read.timed * slower * model.reads.seconds(sizes[self._cache])
            read.busy = read.reading * model.reads.busy
        return counts

    def _finish(self, number: int, counts: Counts, cpu: float) -> None:
        self._busy -= 1
        self._busy_seconds += cpu
        self._done.add(number)
        self._counts = summed(self._counts, counts)
        self._work()
        self._train()

    def _scale(self, workers: int) -> None:
        if workers == self._target:
            return
        self._target = workers
        self._run.workers.append((self._clock.now, workers))
        if workers < self._ready_workers:
            self._ready_workers = workers
        else:
            self._clock.after(STARTUP, self._started)

    def _started(self) -> None:
        self._ready_workers = self._target
        self._work()

    def _by_cpu(self, rule: CpuRule) -> None:
        """Scale by the processor time of the last period."""
        period = rule.settings.period
        utilization, self._busy_seconds = self._busy_seconds / (period * self._target), 0.0
        self._scale(rule.after(self._clock.now, utilization, self._target))
        if self._epoch < self._epochs:
            self._clock.after(period, partial(self._by_cpu, rule))

    # --- the trainer

    def _train(self) -> None:
        if self._training or self._taken not in self._done:
            return
        self._done.remove(self._taken)
        self._taken += 1
        self._training = True
        self._measure()
        self._work()
        last = self._taken == self._batches
        self._clock.after(self._model.step, lambda: self._stepped(last))

    def _stepped(self, last: bool) -> None:
        self._training = False
        if last:
            self._end()
        else:
            self._train()

    def _measure(self) -> None:
        steady = self._target if self._ready_workers == self._target else 0
        profile = self._profiles.profile(self._counts, steady)
        report = self._meter.batch(self._clock.now, float(len(self._done)), steady)
        self._said = (profile or self._said[0], report or self._said[1])

    def _beat(self) -> None:
        """Send a heartbeat with the measurements since the last one, and apply the answer."""
        profile, report = self._said
        self._said = (None, None)
        before = self._gateway.decision
        if profile is not None and self._control.cache is None:
            self._gateway.profiled(profile, self._epoch)
        self._note(before)
        if report is not None and self._control.workers is None and self._control.cpu is None:
            self._scale(self._gateway.reported(report, self._epoch))
        if self._epoch < self._epochs:
            self._clock.after(HEARTBEAT, self._beat)

    def _note(self, before: CacheDecision | None) -> None:
        """Record a decision if it has changed."""
        after = self._gateway.decision
        if after is not None and (before is None or (before.stage, before.reason) != (after.stage, after.reason)):
            self._run.decisions.append((self._clock.now, after))


def knee(model: PipelineModel, threshold: float, cache: int = COMPUTE) -> int:
    """The fewest workers at which one more would shorten a batch by at most ``threshold``, reading the results of mark
    ``cache``."""

    def batch_time(workers: int) -> float:
        _, end = model.points(cache, False)
        return max(model.step, end * model.batch * (1 + model.contention * (workers - 1)) / workers)

    numbers = range(1, _MOST_WORKERS)
    return next(
        (workers for workers in numbers if batch_time(workers + 1) > batch_time(workers) * (1 - threshold)),
        _MOST_WORKERS,
    )


def with_knee(model: PipelineModel, workers: int, cache: int = COMPUTE) -> PipelineModel:
    """The model with a trainer for which ``workers`` just suffice when the results of mark ``cache`` are read."""
    _, end = model.points(cache, False)
    slower = 1 + model.contention * (workers - 1)
    return replace(model, step=end * model.batch * slower / workers)
