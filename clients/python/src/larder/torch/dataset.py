"""An iterable dataset at a gateway for PyTorch's `DataLoader`: each item exactly once per epoch over all ranks and workers."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Protocol, cast

from torch.utils.data import IterableDataset

from larder.base.errors import StateError
from larder.base.later import Unpack
from larder.base.options import refuse_unknown, whole_number
from larder.base.ranks import Ranks, environment_ranks, given_ranks
from larder.base.stats import Stats
from larder.reading.mixing import Mix, shown
from larder.reading.source import DatasetName
from larder.torch.iteration import Iteration, IterationContext, Tag, WorkerState
from larder.torch.ranks import (
    distributed_ranks,
    refuse_disagreement,
    refuse_division,
    this_worker,
)
from larder.torch.rounds import Rounds
from larder.torch.samples import Collate, SamplePipeline, Transform
from larder.training.loader import Loader, LoaderOptions, Shard

_OWN_OPTIONS = ("transform", "collate", "on_error", "seeded", "keys", "rank", "world")


class DatasetOptions(LoaderOptions, total=False):
    """The options of a `CachedDataset` that have a default, in addition to `LoaderOptions`.

    Args:
        transform: turns an `Item` into a sample. If left out, a sample is the item's ``bytes``.
        collate: turns a list of samples into a batch; by default `larder.torch.collate` with a transform, else the list
            itself.
        on_error: for a transform that raises: ``"raise"`` `ItemUntransformable` (default), or ``"skip"`` the item and count it.
        seeded: whether the generators of ``random``, numpy and PyTorch are seeded for each transform by ``seed``, epoch and
            item, and restored after the batch (``True``): a sample is the same whatever the number of workers and ranks, the
            batch size, and after a resume. Other generators are not seeded.
        keys: whether items have bucket and key (``False``), which each process requests from the gateway once.
        rank: rank of this training process, if neither ``torch.distributed`` nor the environment has it.
        world: number of training processes.
    """

    transform: Transform | None
    collate: Collate | None
    on_error: str
    seeded: bool
    keys: bool
    rank: int | None
    world: int | None


class Watcher(Protocol):
    """A watched loader, which knows which batches the training loop has received."""

    def state_dict(self) -> dict[str, Any]:
        """The state to save."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""

    def stats(self) -> Stats:
        """The counts."""


class CachedDataset(IterableDataset[Any]):
    """Batches of a dataset, for ``DataLoader(dataset, batch_size=None, num_workers=...)``.

    ::

        dataset = CachedDataset("http://gateway:9000", "train", batch_size=256, transform=decode)
        loader = DataLoader(dataset, batch_size=None, num_workers=4, persistent_workers=True)
        for epoch in range(90):
            for batch in loader:
                ...

    Each complete iteration advances the epoch, whatever the loader does with its workers. After a ``break`` the next iteration
    repeats the same epoch, unless ``set_epoch`` is called. (Without `larder.torch.watch`, a loader with workers may count an
    iteration as complete if the loop breaks while the last batches wait in the loader, at most ``prefetch_factor *
    num_workers`` of them. A training loop of several ranks that breaks there must call ``set_epoch`` or watch the loader.)

    Rank and world size are determined when iteration begins: the arguments, else ``torch.distributed``, else ``RANK`` and
    ``WORLD_SIZE`` of the environment, else rank 0 of 1. A framework must not divide the batches among ranks again: with
    Accelerate, do not pass the loader to ``prepare``, which raises `ValueError` when iteration begins. Lightning leaves loaders
    of iterable datasets unchanged.

    Sends no request before one is needed. Can be forked, sent to workers by spawn and forkserver, pickled and deep-copied; a copy
    has its own epoch.

    Args:
        endpoint: address of the gateway; ``None``: ``LARDER_ENDPOINT``, or that of AWS's tools.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), the result of `larder.Client.register`,
            or a `larder.Mix`.
        batch_size: items of a batch.
        options: see `DatasetOptions` and `larder.training.loader.LoaderOptions`.

    Raises:
        ValueError: invalid value of an option.
        TypeError: unknown option.
    """

    def __init__(
        self, endpoint: str | None, dataset: DatasetName | Mix, *, batch_size: int, **options: Unpack[DatasetOptions]
    ) -> None:
        refuse_unknown(options, "batch_size", *DatasetOptions.__annotations__)
        rest = cast(LoaderOptions, {name: value for name, value in options.items() if name not in _OWN_OPTIONS})
        loader = Loader(endpoint, dataset, batch_size=batch_size, **rest)
        pipeline = SamplePipeline.of(options)
        self._ranks = given_ranks(options.get("rank"), options.get("world"))
        self._context = IterationContext(loader, Rounds(), pipeline, options.get("keys", False))
        self._name = shown(dataset)
        self._sent_by: Ranks | None = None
        self._iterations = 0
        self._iteration: Iteration | None = None
        self._restored: WorkerState | None = None
        self._watcher: weakref.ref[Watcher] | None = None

    def __repr__(self) -> str:
        ranks = "" if self._ranks is None else f", rank={self._ranks.rank}, world={self._ranks.world}"
        return f"CachedDataset({self._name}, {self._context.loader.settings}{ranks})"

    def __iter__(self) -> Iteration:
        _refuse_batches_of_batches()
        refuse_division(self.ranks())
        worker = this_worker()
        if worker.inside:
            self._context.rounds.as_worker()
        self._iterations += 1
        tag = [int(worker.inside), worker.base_seed if worker.inside else os.getpid(), self._iterations]
        restored, self._restored = self._restored, None
        if self._iteration is not None:
            self._iteration.cancel(
                "another iteration over the same dataset has begun in this process; copy the dataset"
            )
        self._iteration = Iteration(self._context, self.ranks(), worker, tag, restored)
        return self._iteration

    def __len__(self) -> int:
        """Number of batches of a whole epoch on this rank, for any number of workers."""
        self._context.info()
        return self._context.loader.batches(*self.ranks())

    def ranks(self) -> Ranks:
        """Rank and world size, as known now."""
        known = self._ranks or distributed_ranks()
        if known is None and this_worker().inside:
            known = self._sent_by
        return known or environment_ranks()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. The current iteration is unaffected.

        A loaded state of this epoch stays in force: the epoch resumes from it.

        Raises:
            ValueError: the epoch is not a whole number of at least 0.
        """
        epoch = whole_number("epoch", epoch, 0)
        now = self._context.rounds.now()
        self._context.rounds.seek(epoch, now.start if now.epoch == epoch and not now.complete else None)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state to save: small, of JSON types, independent of the number of workers and the batch size.
        `larder.torch.merge_states` merges the states of all ranks into one that loads under any world size.

        In a worker, where torchdata's ``StatefulDataLoader`` calls it, returns the state of that worker.

        Raises:
            StateError: worker processes read the dataset, and the loader is not watched.
        """
        if this_worker().inside:
            if self._iteration is None:
                raise StateError("a worker has a state only during an iteration")
            return self._iteration.worker_state()
        if (watcher := self._watching()) is not None:
            return watcher.state_dict()
        now = self._context.rounds.now()
        if now.tag is not None and now.tag[0]:
            raise StateError(
                "worker processes read this dataset, and only the training loop knows which batches it has received: "
                "use loader = larder.torch.watch(loader), and save loader.state_dict()"
            )
        if now.tag is not None and self._iteration is not None and self._iteration.number == now.number:
            return self._iteration.rank_state()
        return self.state_of(now.epoch, now.start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration delivers the rest of its epoch.

        Raises:
            StateError: the state is damaged, of another dataset, or of another rank or world size and not merged; it was not
                saved at the same step as the other ranks' states, if ``torch.distributed`` connects them (merge them with
                `larder.torch.merge_states`, and load the result in every rank); or worker processes have begun to read, and the
                loader is not watched.
        """
        worker = this_worker()
        if worker.inside:
            self._restored = WorkerState.from_json(state, worker)
            return
        if (watcher := self._watching()) is not None:
            watcher.load_state_dict(state)
            return
        self.seek(state, unless_workers=True)

    def skip_batches(self, batches: int) -> None:
        """Skip the next batches of this rank without reading them: the next iteration begins after them.

        Raises:
            StateError: as ``state_dict`` and ``load_state_dict``.
            ValueError: ``batches`` is not a whole number of at least 0.
        """
        self.load_state_dict(self._context.loader.skipped(self.state_dict(), batches))

    def batches_left(self) -> int:
        """Number of batches that this rank's epoch still has; ``len`` is that of a whole epoch, also after a resume.

        Raises:
            StateError: as ``state_dict``.
        """
        return self._context.loader.batches_after(self.state_dict())

    def stats(self) -> Stats:
        """Counts of this process; for a watched loader, those of the batches that the loop has received."""
        watcher = self._watching()
        return self._context.loader.stats if watcher is None else watcher.stats()

    def seek(self, state: Mapping[str, Any], *, unless_workers: bool = False) -> None:
        """`load_state_dict` for the dataset itself, even of a watched loader."""
        if isinstance(state, Mapping) and "worker" in state:
            raise StateError("this is the state of one DataLoader worker; load it into a StatefulDataLoader")
        self._context.info()
        loader = self._context.loader
        saved = loader.restored(state, Shard(*self.ranks(), 0, 1))
        refuse_disagreement(saved, saved.batches(loader.settings.batch_size, loader.settings.tail))
        same = state["epoch"] == saved.epoch
        self._context.rounds.seek(saved.epoch, dict(state) if same else saved.to_json(), unless_workers=unless_workers)
        if self._iteration is not None:
            self._iteration.cancel("a state was loaded while this iteration was under way; begin a new one")

    def state_of(self, epoch: int, start: Mapping[str, Any] | None) -> dict[str, Any]:
        """The state before the first batch of an epoch, which begins from a saved state or fresh."""
        self._context.info()
        ranks = self.ranks()
        if start is None:
            return self._context.loader.start(epoch, *ranks).to_json()
        return self._context.loader.restored(start, Shard(*ranks, 0, 1)).to_json()

    @property
    def context(self) -> IterationContext:
        """The parts that all iterations share."""
        return self._context

    def take_tag(self) -> Tag | None:
        """The tag of this process's latest batch."""
        return None if self._iteration is None else self._iteration.take_tag()

    def watched_by(self, watcher: Watcher) -> None:
        """Delegate states and counts to a watched loader."""
        self._watcher = weakref.ref(watcher)

    def _watching(self) -> Watcher | None:
        return None if self._watcher is None else self._watcher()

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            refuse_division(self.ranks())
        return {
            **self.__dict__,
            "_sent_by": distributed_ranks() or self._sent_by,
            "_iteration": None,
            "_watcher": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _refuse_batches_of_batches() -> None:
    """Refuse a `DataLoader` with a batch size: it would silently collect batches into lists.

    A dataset does not know its loader, but the loader's fetcher, which begins the iteration, does.
    """
    caller = sys._getframe(2)
    if caller.f_globals.get("__name__") == "torch.utils.data._utils.fetch" and caller.f_locals.get("auto_collation"):
        raise ValueError("a CachedDataset yields whole batches: use DataLoader(dataset, batch_size=None)")
