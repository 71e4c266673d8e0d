"""One pass of one process over its part of an epoch: from joining the round to the last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.dataset import DatasetInfo
from larder.errors import StateError
from larder.frames import HIT
from larder.loader import Loader, Shard
from larder.planner import Progress
from larder.run import Batch, EpochRun, Handed
from larder.torch.places import Ranks, Worker
from larder.torch.rounds import Rounds
from larder.torch.samples import Naming, Preparation

_VERSION = 1
_FIELDS = frozenset({"version", "worker", "workers", "epoch", "start", "own", "over"})


@dataclass(slots=True)
class Tag:
    """What goes with a batch to the training process, if that watches the loader.

    Args:
        number: of the round.
        epoch: that the batch is of.
        indices: of the items that were handed out, in order.
        hits: aligned; whether each was in the cache.
        handed: what the batch adds to the rank's progress.
        counts: what was counted since the last batch, by the names of `Stats`.
    """

    number: int
    epoch: int
    indices: list[NDArray[np.uint32]] = field(default_factory=list)
    hits: list[NDArray[np.bool_]] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


class Making(NamedTuple):
    """What a dataset gives to each of its iterations."""

    loader: Loader
    rounds: Rounds
    preparation: Preparation
    with_keys: bool

    def info(self) -> DatasetInfo:
        """The dataset, asked for once by all workers together."""
        if self.loader.known is None:
            self.loader.info = DatasetInfo(**self.rounds.once("dataset", lambda: asdict(self.loader.info)))
        return self.loader.info

    def begin(self, epoch: int, start: Mapping[str, Any] | None, shard: Shard, *, agreed: bool = False) -> Progress:
        """The state in which an epoch begins, in the order that all ranks and workers agree on.

        Args:
            epoch: its number.
            start: a saved state of it.
            shard: whose.
            agreed: the saved state is of this very iteration, with the order that was agreed on then.
        """
        loader = self.loader
        fresh = loader.start(epoch, shard.rank, shard.world) if start is None else loader.restored(start, shard)
        return fresh if agreed and start is not None else loader.begin(fresh, self.rounds.once)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How far one worker of a loader has come, in the terms of torchdata's ``StatefulDataLoader``, which asks each worker.

    Args:
        worker: its number.
        workers: how many there are; a state is loaded by the same worker of as many.
        epoch: what is under way.
        start: saved state of the rank with which the epoch began, if it began with one.
        own: progress of this worker, ``None`` before its first batch.
        over: whether it had nothing left to do.
    """

    worker: int
    workers: int
    epoch: int
    start: Mapping[str, Any] | None
    own: Mapping[str, Any] | None
    over: bool

    def to_json(self) -> dict[str, Any]:
        """With JSON types."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any], worker: Worker) -> WorkerState:
        """Read what ``to_json`` wrote, in the worker that goes on from it.

        Raises:
            StateError: it is something else, or another worker's.
        """
        if not isinstance(state, Mapping) or set(state) != _FIELDS or state["version"] != _VERSION:
            raise StateError("this is not the state of a DataLoader worker; load it before the workers are started")
        found = cls(**{name: value for name, value in state.items() if name != "version"})
        if (found.worker, found.workers) != (worker.number, worker.workers):
            raise StateError(
                f"this is the state of worker {found.worker} of {found.workers}, loaded by worker {worker.number} of "
                f"{worker.workers}; the state of larder.torch.watch(loader) does not depend on the number of workers"
            )
        return found


class Iteration:
    """An iterator over batches. It joins the round when it is made, and asks for nothing else before its first batch.

    Args:
        making: of the dataset.
        ranks: whose share.
        worker: whose part of the share.
        tag: see `Rounds.join`.
        restored: the state that this worker goes on from.
    """

    def __init__(
        self, making: Making, ranks: Ranks, worker: Worker, tag: list[int], restored: WorkerState | None = None
    ) -> None:
        self._making = making
        self._worker = worker
        self._shard = Shard(ranks.rank, ranks.world, worker.number, worker.workers)
        self._restored = restored
        join = making.rounds.join
        if restored is None:
            self._round = join(worker.number, worker.workers, tag)
        else:
            self._round = making.rounds.restore(
                worker.number, worker.workers, tag, epoch=restored.epoch, nothing_left=restored.over
            )
        self._cancelled = ""
        self._run: EpochRun | None = None
        self._counted: dict[str, float] = {}
        self.tag = Tag(self._round.number, self._round.epoch)

    @property
    def number(self) -> int:
        """Of the round that it is part of."""
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
            self.tag.indices.append(batch.indices)
            self.tag.hits.append((batch.flags & HIT) != 0)
            self.tag.handed.append(run.handed)
            try:
                made = self._made(batch)
            except BaseException:
                run.disown()  # who saves because of it has this batch still to come
                raise
            if run.over:
                self._finish()
            if made:
                return made[0]

    def _made(self, batch: Batch) -> tuple[Any, ...]:
        """What the training loop gets of it; nothing if no item could be transformed."""
        loader, preparation = self._making.loader, self._making.preparation
        naming = Naming(loader.keys if self._making.with_keys else None, loader.locate)
        samples = preparation.samples(batch.indices.tolist(), batch.data, naming, loader.stats)
        return (preparation.batch(samples),) if samples else ()

    def cancel(self, why: str) -> None:
        """Nothing comes any more, and who asks is told why; one that has come to its end stays there."""
        if self._run is None or not self._run.over:
            self._cancelled = why
        if self._run is not None:
            self._run.close()

    def told(self) -> Tag:
        """What the training process should know of the batch that was made last."""
        counts = self._making.loader.stats.counts()
        self.tag.counts = {name: more for name, count in counts.items() if (more := count - self._counted.get(name, 0))}
        self._counted = counts
        return self.tag

    def rank_state(self) -> dict[str, Any]:
        """The state of the rank, of which this is the only worker."""
        run = self._run or self._begin()
        return run.state_dict()

    def worker_state(self) -> dict[str, Any]:
        """The state of this worker alone."""
        if self._run is None and self._restored is not None:
            return self._restored.to_json()
        if self._run is None and not isinstance(self._making.loader.settings.job, str):
            self._begin()  # the order that other workers begin with must be in this one's state too
        own = None if self._run is None else self._run.progress.to_json()
        over = self._run is not None and self._run.over
        epoch = self._round.epoch
        return WorkerState(self._worker.number, self._worker.workers, epoch, self._round.start, own, over).to_json()

    def _begin(self) -> EpochRun:
        loader, shard, now = self._making.loader, self._shard, self._round
        self._making.info()
        epoch = self._making.rounds.settle(now)
        restored = self._restored
        if epoch != now.epoch:
            restored, now.epoch, now.start = None, epoch, None
        elif restored is not None:
            now.start = None if restored.start is None else dict(restored.start)
        start = self._making.begin(epoch, now.start, shard, agreed=restored is not None)
        if start.chunks is not None:
            now.start = start.to_json()
        own = None
        if restored is not None and restored.own is not None:
            own = Progress.from_json(restored.own, dataset=loader.info.id)
        self._run = loader.run(start, shard, own)
        self._counted = loader.stats.counts()
        return self._run

    def _finish(self) -> None:
        self._making.rounds.finish(self.number, self._worker.number)
