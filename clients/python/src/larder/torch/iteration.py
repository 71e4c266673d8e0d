"""One process's iteration over its part of an epoch: from joining the round to the last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo, restored_info
from larder.base.errors import LarderError, StateError
from larder.base.ranks import Ranks
from larder.planner import Progress
from larder.reading.frames import HIT
from larder.torch.ranks import Worker
from larder.torch.rounds import Rounds
from larder.torch.samples import ItemNames, SamplePipeline, Seed
from larder.training.loader import Loader, Shard
from larder.training.run import Batch, Delivered, EpochRun

_STATE_VERSION = 1
"""Version of a worker's saved state."""
_FIELDS = frozenset({"version", "worker", "workers", "epoch", "start", "own", "over"})


@dataclass(slots=True)
class Tag:
    """Metadata that travels with a batch to the training process of a watched loader.

    Args:
        number: number of the round.
        epoch: epoch of the batch.
        indices: indices of the delivered items, in order.
        hits: aligned; whether each item was in the cache.
        delivered: the batch's additions to the rank's progress.
        counts: counts since the previous batch, by the names of `Stats`.
    """

    number: int
    epoch: int
    indices: list[NDArray[np.uint32]] = field(default_factory=list)
    hits: list[NDArray[np.bool_]] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


class IterationContext(NamedTuple):
    """The parts of a dataset that all its iterations share."""

    loader: Loader
    rounds: Rounds
    pipeline: SamplePipeline
    with_keys: bool

    def info(self) -> DatasetInfo:
        """The dataset's description; one worker requests it for all workers."""
        if self.loader.known is None:
            self.loader.info = restored_info(self.rounds.once("dataset", lambda: asdict(self.loader.info)))
        return self.loader.info

    def begin(self, epoch: int, start: Mapping[str, Any] | None, shard: Shard) -> Progress:
        """The state in which an epoch begins, from a saved one if there is one."""
        loader = self.loader
        fresh = loader.start(epoch, shard.rank, shard.world) if start is None else loader.restored(start, shard)
        loader.join(fresh, self.rounds.once)
        return fresh


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The saved state of one `DataLoader` worker, as torchdata's ``StatefulDataLoader`` collects it.

    Args:
        worker: number of the worker.
        workers: number of workers; the state loads only in the same worker of equally many.
        epoch: epoch in progress.
        start: the rank's saved state with which the epoch began, if any.
        own: this worker's progress; ``None`` before its first batch.
        over: whether the worker had no batches left.
    """

    worker: int
    workers: int
    epoch: int
    start: Mapping[str, Any] | None
    own: Mapping[str, Any] | None
    over: bool

    def to_json(self) -> dict[str, Any]:
        """The state, with JSON types."""
        return {"version": _STATE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any], worker: Worker) -> WorkerState:
        """Parse the result of ``to_json`` in the worker that resumes from it.

        Raises:
            StateError: not such a state, or that of another worker.
        """
        if not isinstance(state, Mapping) or set(state) != _FIELDS or state["version"] != _STATE_VERSION:
            raise StateError("this is not the state of a DataLoader worker; load it before the workers are started")
        loaded = cls(**{name: value for name, value in state.items() if name != "version"})
        if (loaded.worker, loaded.workers) != (worker.number, worker.workers):
            raise StateError(
                f"this is the state of worker {loaded.worker} of {loaded.workers}, loaded by worker {worker.number} of "
                f"{worker.workers}; the state of larder.torch.watch(loader) does not depend on the number of workers"
            )
        return loaded


class Iteration:
    """An iterator over batches. Joins the round on construction; sends no request before its first batch.

    Args:
        context: of the dataset.
        ranks: rank and world size, which select the share.
        worker: worker, which selects the part of the share.
        tag: see `Rounds.join`.
        restored: the saved state from which this worker resumes.
    """

    def __init__(
        self,
        context: IterationContext,
        ranks: Ranks,
        worker: Worker,
        tag: list[int],
        restored: WorkerState | None = None,
    ) -> None:
        self._context = context
        self._worker = worker
        self._shard = Shard(ranks.rank, ranks.world, worker.number, worker.workers)
        self._restored = restored
        join = context.rounds.join
        if restored is None:
            self._round = join(worker.number, worker.workers, tag)
        else:
            self._round = context.rounds.restore(
                worker.number, worker.workers, tag, epoch=restored.epoch, nothing_left=restored.over
            )
        self._cancelled = ""
        self._run: EpochRun | None = None
        self._seed: Seed | None = None
        self._counted: dict[str, float] = {}
        self.tag = Tag(self._round.number, self._round.epoch)

    @property
    def number(self) -> int:
        """Number of its round."""
        return self._round.number

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._cancelled:
            raise StateError(self._cancelled)
        run = self._run or self._begin()
        self.tag = Tag(self.number, run.epoch)
        while True:
            try:
                batch = next(run)
            except StopIteration:
                self._finish()
                raise
            self.tag.indices.append(run.numbers)
            self.tag.hits.append((batch.flags & HIT) != 0)
            self.tag.delivered.append(run.delivered)
            try:
                samples = self._complete(run, batch, self._samples(run.numbers, batch.data))
                made = self._context.pipeline.batch(samples) if samples else None
            except BaseException:
                run.undo_last()  # a state saved now does not include this batch
                raise
            if run.over:
                self._finish()
            if samples:
                return made

    def _samples(self, numbers: NDArray[np.uint32], data: list[memoryview]) -> list[Any]:
        loader = self._context.loader
        names = ItemNames(loader.keys if self._context.with_keys else None, loader.locate, loader.mixture)
        return self._context.pipeline.samples(numbers.tolist(), data, names, loader.stats, self._seed)

    def _complete(self, run: EpochRun, batch: Batch, samples: list[Any]) -> list[Any]:
        """The samples of a batch; failed ones are replaced by repetitions if it must be full or other ranks deliver it too.

        Raises:
            LarderError: this one of several ranks has no sample for the batch.
        """
        loader = self._context.loader
        together = self._shard.world > 1
        wanted = len(batch) if loader.settings.tail != "short" else int(together)
        if len(samples) >= wanted:
            return samples
        repeated = samples or self._repetition(run)
        if not repeated and together:
            raise LarderError(
                "every item that could take the place of a failed sample fails as well, and the other ranks have this batch: "
                'use on_error="raise" to see why'
            )
        missing = wanted - len(samples) if repeated else 0
        loader.stats.add("padded", missing)
        return samples + list(islice(cycle(repeated), missing))

    def _repetition(self, run: EpochRun) -> list[Any]:
        """Samples of other items of the epoch; empty only if all fail."""
        made = (self._samples(other.numbers, other.data) for other in run.repetitions(1))
        return next(filter(None, made), [])

    def cancel(self, why: str) -> None:
        """End the iteration: asking for another batch raises `StateError`. A complete iteration stays complete."""
        if self._run is None or not self._run.over:
            self._cancelled = why
        if self._run is not None:
            self._run.close()

    def take_tag(self) -> Tag:
        """The tag of the latest batch, with the counts since the previous one."""
        counts = self._context.loader.stats.counts()
        self.tag.counts = {name: more for name, count in counts.items() if (more := count - self._counted.get(name, 0))}
        self._counted = counts
        return self.tag

    def rank_state(self) -> dict[str, Any]:
        """The rank's state, if this is its only worker."""
        run = self._run or self._begin()
        return run.state_dict()

    def worker_state(self) -> dict[str, Any]:
        """The state of this worker."""
        if self._run is None and self._restored is not None:
            return self._restored.to_json()
        own = None if self._run is None else self._run.progress.to_json()
        over = self._run is not None and self._run.over
        epoch = self._round.epoch
        return WorkerState(self._worker.number, self._worker.workers, epoch, self._round.start, own, over).to_json()

    def _begin(self) -> EpochRun:
        loader, shard, now = self._context.loader, self._shard, self._round
        self._context.info()
        epoch = self._context.rounds.settle(now)
        restored = self._restored
        if epoch != now.epoch:
            restored, now.epoch, now.start = None, epoch, None
        elif restored is not None:
            now.start = None if restored.start is None else dict(restored.start)
        start = self._context.begin(epoch, now.start, shard)
        own = None
        if restored is not None and restored.own is not None:
            own = Progress.from_json(restored.own, dataset=loader.info.id)
        self._run = loader.run(start, shard, own)
        self._seed = (start.seed, start.epoch)
        self._counted = loader.stats.counts()
        return self._run

    def _finish(self) -> None:
        self._context.rounds.finish(self.number, self._worker.number)
