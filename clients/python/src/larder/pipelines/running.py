"""A running pipeline: its workers, and the epoch that is being delivered."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from larder.base.errors import LarderError, PipelineError, StageFailed, StateError
from larder.base.options import whole_number
from larder.base.ranks import Ranks
from larder.base.seeds import own_generators, seed_generators
from larder.pipelines.crew import HEARTBEAT, Crew, CrewLimits
from larder.pipelines.elements import DROPPED, decode
from larder.pipelines.fingerprint import Fingerprint, fingerprints, result_name
from larder.pipelines.hosts import WorkerChoice
from larder.pipelines.metering import (
    BatchMeter,
    ProfiledStages,
    ProfileMeter,
    StepMeter,
    described,
    described_results,
)
from larder.pipelines.options import AUTO, RunOptions, filtered, refuse_uneven_elements
from larder.pipelines.results import claim_owner
from larder.pipelines.splits import CacheMark, PlannedItems, Released, SplitLedger
from larder.pipelines.stages import (
    AUTOCACHE,
    Counts,
    ElementFailure,
    RemoteTraceback,
    Stage,
    StageCounts,
    summed,
)
from larder.pipelines.stream import BatchSizes, Piece, PipelineStages, batched, shuffled, stack
from larder.pipelines.worker import pickled
from larder.pipelines.workers import InlineHost, SplitComputation, WorkerTask
from larder.planner import EpochPlan, Progress, Shard
from larder.reading.frames import ItemFailure
from larder.training.job import Job
from larder.training.loader import Loader
from larder.training.run import Tracker, item_error

MOST_NUMBERS = 1 << 32
"""The most results of a mark: items times versions."""
Marks = Mapping[int, Fingerprint]
"""The fingerprints of a pipeline's marks, by stage."""


class PipelineRuntime:
    """The workers and counts of a pipeline, over all its iterations.

    Args:
        options: of the pipeline.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.choice = WorkerChoice.of(options.workers, options.ray_options, options.pool)
        self.workers = self.choice.number or 0
        """Number of workers; 0 until the first ones start, if the user has set no number."""
        self.job: Job | None = None
        """The training run whose fleet chooses the marks to store, and the number of workers unless that is fixed."""
        self.cache = options.cache if isinstance(options.cache, int) else None
        """The mark that is stored and read from the next epoch on; ``None`` for none."""
        self.profiles: ProfileMeter | None = None
        self.steps: StepMeter | None = None
        self.meter = BatchMeter()
        self._finds_workers = self._scaled = False
        self._follows = options.cache == AUTO
        """Whether the fleet decides which mark is stored."""
        self._in_force: int | None = None
        self.counts: Counter[str] = Counter()
        self.waited = 0.0
        self._owner = ""
        self._crew: Crew | None = None
        self._process = os.getpid()
        self._inline: SplitComputation | None = None
        self._payload: bytes | None = None
        self._ended_crews: Counts = {}
        self._deaths = 0

    def crew(self, task: WorkerTask, batch: int, world: int) -> Crew:
        """The workers for this task: the same as before, unless a function or its arguments have changed.

        Args:
            task: of the pipeline.
            batch: elements of a batch; 0 without batches.
            world: number of training processes, which share a cluster.

        Raises:
            PipelineError: a function cannot be sent to a worker process, or workers cannot be started.
        """
        options = self.options
        payload = None if self.choice.number == 0 else pickled(task)
        if self._process != os.getpid():  # a fork: the workers belong to the other process
            self._crew, self._process = None, os.getpid()
        if self._crew is not None and payload is not None and payload == self._payload:
            return self._crew
        self._end_crew()
        limits = CrewLimits(options.queue * max(1, batch), options.queue_bytes, options.timeout)
        # The heartbeat after the timeout reveals a hanging function.
        beat = min(HEARTBEAT, max(0.05, options.timeout / 2))
        host = InlineHost(self._computation(task)) if payload is None else self.choice.host(task, payload, beat)
        if not self.workers and payload is not None:
            self.workers = self.choice.default(world)
        self._crew, self._payload = Crew(host, max(1, self.workers), limits), payload
        return self._crew

    def _computation(self, task: WorkerTask) -> SplitComputation:
        """The computation in this process, the same object in all epochs."""
        if self._inline is None or self._inline.task != task:
            self._inline = SplitComputation(task)
        return self._inline

    def advised_by(self, job: Job, stages: tuple[Stage, ...], marks: Marks, *, batched: bool) -> None:
        """Let the fleet choose the marks to store, and the number of workers unless the user has set it.

        It starts with one worker (Cachew, section 4.3), which profiles the stages (section 4.4). With changed functions it is
        another pipeline, for which the fleet decides again.
        """
        if self.job is None:
            self.job, self._finds_workers = job, self.choice.number is None and not self._scaled
            if self._finds_workers:
                self.workers = 1
            self.steps = StepMeter(1 if batched else job.batch_size)
        names = {number: self._result_name(fingerprint) for number, fingerprint in marks.items()}
        versions = {number: fingerprint.versions for number, fingerprint in marks.items()}
        points = ProfiledStages(stages[-1].number if stages else 0, names, versions)
        if self.profiles is None or self.profiles.stages != points:
            self.profiles = ProfileMeter(points)
            first = self.profiles.first()
            if first is not None:
                job.begin_pipeline(first)
        self._follow(job)

    def _follow(self, job: Job) -> None:
        """Adopt the mark that the fleet has decided to store, unless the user has chosen one."""
        if job.pipeline_directive.reason and self._follows:
            self.cache = job.pipeline_directive.cache

    def owned(self, start: Progress, job: str) -> Progress:
        """The state with an owner for this run's claims on results; an existing owner stays."""
        self._owner = start.owner or self._owner or claim_owner(job)
        return replace(start, owner=self._owner)

    def begin(self) -> None:
        """Begin an epoch: the chosen mark takes effect."""
        self._in_force = self.cache
        self.meter.begin(self._in_force)
        if self.steps is not None:
            self.steps.begin()
        if self.profiles is not None:
            self.profiles.begin(self._in_force)

    def next_step(self, batch: int) -> None:
        """Report the mini-batch that ended, as the loop requests the next one: ``batch`` elements; 0 stands for one element."""
        job, crew, steps = self.job, self._crew, self.steps
        if job is None or steps is None:
            return
        ended = steps.asked(perf_counter(), crew.counts.get(0, StageCounts()) if crew else StageCounts())
        if ended is not None and crew is not None:
            job.report_step(*ended, in_flight=crew.ahead // (batch or job.batch_size) + 1)

    def arrived(self, waited: float) -> None:
        """Record the arrival of a batch or an element after ``waited`` seconds."""
        self.waited += waited
        if self.steps is not None:
            self.steps.arrived(waited)

    def measure(self, batch: int) -> None:
        """Count a batch of ``batch`` elements; report, and follow the fleet's decisions."""
        job, crew = self.job, self._crew
        if job is None or crew is None:
            return
        profile = self.profiles and self.profiles.profile(crew.counts, crew.working)
        if profile:
            job.report_profile(profile)
        self._follow(job)
        if not self._finds_workers:
            return
        report = self.meter.batch(perf_counter(), crew.ready / batch, crew.working)
        if report is not None:
            job.report_pipeline(*report)
        workers = job.workers
        if workers is not None and workers != self.workers:
            self.workers = workers
            crew.scale(workers)

    def set_cache(self, mark: int | None, stages: tuple[Stage, ...]) -> None:
        """Store and read the results of a mark, by its number, from the next epoch on; ``None``: compute everything.

        Raises:
            ValueError: there is no such mark, or its results cannot be stored.
        """
        mark = None if mark is None else whole_number("mark", mark)
        self._checked(mark, fingerprints(stages))
        self.cache, self._follows = mark, False

    def scale(self, workers: int) -> None:
        """Change the number of workers, now and for later iterations.

        Raises:
            ValueError: the pipeline computes in this process, or the number is below 1.
        """
        if self.choice.number == 0:
            raise ValueError("a pipeline with workers=0 computes in the training process")
        self.workers = whole_number("workers", workers, 1)
        self._finds_workers, self._scaled = False, True
        if self._crew is not None:
            self._crew.scale(workers)

    def cache_mark(self, marks: Marks, items: int) -> CacheMark | None:
        """The mark through which an epoch that begins now is read; ``None``: everything is computed.

        Args:
            marks: of the pipeline.
            items: of the dataset.

        Raises:
            ValueError: the chosen mark does not exist, or its results cannot be stored.
        """
        try:
            return self._checked(self.cache, marks, items)
        except ValueError:
            if not self._follows:
                raise
            return None  # a function has changed since the fleet decided

    def _checked(self, mark: int | None, marks: Marks, items: int = 0) -> CacheMark | None:
        """The mark; raises ``ValueError`` if there is no such mark, or its results cannot be stored."""
        if mark is None:
            return None
        fingerprint = marks.get(mark)
        if fingerprint is None:
            known = ", ".join(map(str, marks)) or "none"
            raise ValueError(f"stage {mark} is no mark; the marks are at stages: {known}")
        if not fingerprint.digest:
            raise ValueError(f"results of the mark at stage {mark} are not stored: {fingerprint.reason}")
        if (numbers := items * fingerprint.versions) > MOST_NUMBERS:
            raise ValueError(
                f"the mark at stage {mark} would have {numbers} results; at most {MOST_NUMBERS} have numbers"
            )
        return CacheMark(mark, self._result_name(fingerprint), self._owner)

    def _result_name(self, fingerprint: Fingerprint) -> str:
        return result_name(fingerprint, keys=self.options.keys, seed=self.options.seed)

    def stats(self, stages: tuple[Stage, ...]) -> dict[str, Any]:
        """See `Pipeline.stats`."""
        counts = summed(self._ended_crews, {} if self._crew is None else self._crew.counts)
        named = {0: "reading", **{stage.number: str(stage) for stage in stages}}
        return {
            **{name: self.counts[name] for name in ("elements", "dropped", "skipped", "repeated", "batches")},
            "waited": self.waited,
            "workers": 0 if self._crew is None else self._crew.workers,
            "remote_workers": 0 if self._crew is None else self._crew.remote,
            "worker_deaths": self._deaths + (0 if self._crew is None else self._crew.deaths),
            "stages": {named[number]: described(counts[number]) for number in sorted(counts) if number in named},
            "results": {
                str(stage): described_results(counts.get(stage.number, StageCounts()))
                for stage in stages
                if stage.kind == AUTOCACHE
            },
        }

    def close(self) -> None:
        """End the workers, and close connections of this process."""
        self._end_crew()
        if self._inline is not None:
            self._inline.close()

    def _end_crew(self) -> None:
        if self._crew is not None:
            self._ended_crews = summed(self._ended_crews, self._crew.counts)
            self._deaths += self._crew.deaths
            self._crew.close()
            self._crew = None


class EpochStart(NamedTuple):
    """The start of an iteration: ranks, number of the epoch, and a saved state of it, if any."""

    ranks: Ranks
    epoch: int
    state: Mapping[str, Any] | None


class EpochElements:
    """One iteration: the elements or batches of this rank's share of an epoch.

    Args:
        loader: of the dataset; gives order and state.
        stages: of the pipeline.
        runtime: its workers.
        start: where to begin.

    Raises:
        StateError: the state is damaged, or of another dataset or rank.
        LarderError: the dataset cannot be described.
    """

    def __init__(self, loader: Loader, stages: PipelineStages, runtime: PipelineRuntime, start: EpochStart) -> None:
        self._loader = loader
        self._stages = stages
        self._runtime = runtime
        self._shard = Shard(start.ranks.rank, start.ranks.world, 0, 1)
        fresh = start.state is None
        begun = loader.start(start.epoch, *start.ranks) if fresh else loader.restored(start.state or {}, self._shard)
        loader.join(begun)
        self._start = runtime.owned(begun, loader.settings.job_name)
        self.epoch = self._start.epoch
        self._filtered = filtered(stages, runtime.options)
        self._together = start.ranks.world > 1
        self._refuse_uneven()
        self._tracker = Tracker(self._start)
        self._job = loader.settings.job if isinstance(loader.settings.job, Job) else None
        known = self._job is not None or runtime.cache is not None
        marks = fingerprints(stages.elements) if known else {}
        if self._job is not None:
            self._job.report_epoch(self.epoch)
            runtime.advised_by(self._job, stages.elements, marks, batched=bool(stages.batch))
        self._cache = runtime.cache_mark(marks, loader.info.items)
        self._cancelled = ""
        self._process = os.getpid()

    @property
    def progress(self) -> Progress:
        """All deliveries so far; after the whole epoch, the start of the next one."""
        settings = self._loader.settings
        return self._tracker.progress.settled(settings.batch_size, settings.tail)

    def state_dict(self) -> dict[str, Any]:
        """The state after the latest element or batch."""
        return self.progress.to_json()

    def _refuse_uneven(self) -> None:
        settings = self._loader.settings
        if self._stages.batch:
            self._start.refuse_uneven(settings.batch_size, settings.tail)
        else:
            refuse_uneven_elements(self._start, filtered=self._filtered)

    def cancel(self, why: str) -> None:
        """End the iteration: asking for more raises `StateError`, unless the epoch is complete. The workers are kept."""
        self._cancelled = why

    def __iter__(self) -> Iterator[Any]:
        """The values, in order.

        Raises:
            StateError: the iteration was cancelled, or belongs to another process.
            StageFailed: a function raised, hung, or killed its worker repeatedly.
            ItemError: an item could not be read.
            PipelineError: the pipeline cannot run, or elements do not make a batch.
        """
        delivered, batch = self._delivered(), self._stages.batch
        self._runtime.begin()
        while True:
            if self._cancelled:
                if self.progress.epoch != self.epoch:
                    return  # the workers may already be those of the next epoch
                raise StateError(self._cancelled)
            if self._process != os.getpid():
                raise StateError("this iteration belongs to the process that was forked; begin a new one")
            self._runtime.next_step(batch)
            began = perf_counter()
            piece = next(delivered, None)
            self._runtime.arrived(perf_counter() - began)
            if piece is None:
                return
            self._tracker.add(np.array(piece.places, np.int64), 0, piece.empty)
            self._runtime.counts["elements"] += len(piece.indices) - piece.repeated
            self._runtime.counts["repeated"] += piece.repeated
            self._runtime.measure(batch or 1)
            self._runtime.counts["batches"] += bool(batch)
            value = piece.value
            del piece  # the queue must not keep batches that the loop has
            yield value

    def _delivered(self) -> Iterator[Piece]:
        stages, options = self._stages, self._runtime.options
        sizes = BatchSizes(stages.batch, stages.tail, self._filtered, self._together)
        pieces = self._pieces(sizes)
        if stages.shuffle:
            before = len(self._start.done) - self._start.skipped
            pieces = shuffled(pieces, stages.shuffle, options.seed, self.epoch, before)
        if stages.batch:
            pieces = batched(pieces, sizes, stages.collate)
        return map(self._finished, pieces) if stages.batches else pieces

    def _pieces(self, sizes: BatchSizes) -> Iterator[Piece]:
        """The elements of the epoch in order, without those that are dropped or skipped."""
        loader, options = self._loader, self._runtime.options
        task = WorkerTask(loader.source, loader.info, self._stages.elements, options.seed, loader.settings.job_name)
        crew = self._runtime.crew(task, self._stages.batch, self._shard.world)
        for released in crew.elements(self._ledger):
            piece, lost = self._piece(released), len(released.places)
            if piece is not None:
                sizes.count(ends_batch=released.ends_batch, empty=released.empty)
                yield piece
                continue
            # Its slot is used when its batch is delivered, so that ranks stay in step; without planned batches, it is used now.
            sizes.count(ends_batch=released.ends_batch, empty=released.empty, lost=lost, kept=0)
            self._tracker.add(np.array(released.places, np.int64), lost, 0 if sizes.planned else lost + released.empty)

    def _ledger(self, numbers: Iterator[int]) -> SplitLedger:
        loader, settings = self._loader, self._loader.settings
        plan = EpochPlan(
            self._start.order(),
            self._shard,
            batch_size=settings.batch_size,
            substitute=1,
            # A single rank that leaves elements out fills its batches with later ones, so all must arrive.
            tail="short" if self._filtered and not self._together else settings.tail,
            progress=self._start,
            dataset=loader.info.id,
        )
        names = loader.keys.place if self._runtime.options.keys else None
        return SplitLedger(PlannedItems(plan), self.epoch, numbers, names, self._cache)

    def _piece(self, released: Released) -> Piece | None:
        """The element; ``None`` if it is dropped or skipped."""
        value = released.value
        if isinstance(value, ElementFailure):
            self._refuse(released.item, value)
            self._runtime.counts["skipped"] += 1
            return None
        # Ray's memory is read-only: stacking a batch copies it, and a single element for the loop is copied here.
        stacked = self._stages.batch and self._stages.collate is stack
        element = decode(value, copy=value.readonly and not stacked)
        if element is DROPPED:
            self._runtime.counts["dropped"] += 1
            return None
        return Piece(element, [released.item], list(released.places), 0 if self._stages.batch else released.empty)

    def _refuse(self, index: int, failure: ElementFailure) -> None:
        """Raise the error of an element, unless it is to be skipped."""
        options = self._runtime.options
        if (options.on_missing if failure.status else options.on_error) == "skip":
            return
        bucket = key = ""
        with suppress(LarderError):  # the name only helps; failing to get it is not the error to report
            bucket, key = self._loader.locate(index)
        if failure.status:
            raise item_error(ItemFailure(index, failure.status, bucket, key, failure.detail))
        cause = RemoteTraceback(failure.trace) if failure.trace else None
        raise StageFailed(index, bucket, key, failure.detail, failure.stage) from cause

    def _finished(self, piece: Piece) -> Piece:
        """Take a batch through the stages after ``batch``."""
        for stage in self._stages.batches:
            assert stage.function is not None
            with own_generators():
                seed_generators(self._runtime.options.seed, self.epoch, piece.indices[0], stage.number)
                try:
                    piece.value = stage.function(piece.value)
                except Exception as error:
                    shown = ", ".join(map(str, piece.indices[:8])) + (", ..." if len(piece.indices) > 8 else "")
                    raise PipelineError(
                        f"the batch of items {shown} failed in {stage}: {type(error).__name__}: {error}"
                    ) from error
        return piece
