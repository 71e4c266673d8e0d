"""A dataset at a gateway for PyTorch's own `DataLoader`, each item exactly once per epoch over all ranks and workers."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Protocol, Unpack, cast

from torch.utils.data import IterableDataset

from larder.errors import StateError
from larder.loader import Loader, LoaderOptions, Shard
from larder.source import DatasetName
from larder.stats import Stats
from larder.torch.iteration import Iteration, Making, Tag, WorkerState
from larder.torch.places import (
    Ranks,
    distributed_ranks,
    environment_ranks,
    given_ranks,
    this_worker,
)
from larder.torch.ranks import refuse_disagreement, refuse_division
from larder.torch.rounds import Rounds
from larder.torch.samples import Collate, Preparation, Transform

_OWN_OPTIONS = ("transform", "collate", "on_error", "keys", "rank", "world")


class DatasetOptions(LoaderOptions, total=False):
    """Everything about a `CachedDataset` that has a default, in addition to `LoaderOptions`.

    Args:
        transform: makes a sample of an `Item`. Without one, a sample is the item's ``bytes``.
        collate: makes a batch of a list of samples; ``torch.utils.data.default_collate`` with a transform, else the list.
        on_error: a transform that raises (``"raise"``): raise `ItemUntransformable`, or ``"skip"`` the item and count it.
        keys: whether items come with bucket and key (``False``); they are asked of the gateway once per process.
        rank: of this training process, if neither ``torch.distributed`` nor the environment knows.
        world: how many training processes there are.
    """

    transform: Transform | None
    collate: Collate | None
    on_error: str
    keys: bool
    rank: int | None
    world: int | None


class Watcher(Protocol):
    """A watched loader, which knows what the training loop has received."""

    def state_dict(self) -> dict[str, Any]:
        """The state to save."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""

    def stats(self) -> Stats:
        """What was counted."""


class CachedDataset(IterableDataset[Any]):
    """Batches of a dataset, for ``DataLoader(dataset, batch_size=None, num_workers=...)``.

    ::

        dataset = CachedDataset("http://gateway:9000", "train", batch_size=256, transform=decode)
        loader = DataLoader(dataset, batch_size=None, num_workers=4, persistent_workers=True)
        for epoch in range(90):
            for batch in loader:
                ...

    Each complete iteration is the next epoch, without anybody saying so, whatever the loader does with its workers. One that
    is broken off is no epoch: the next iteration begins the same one again, unless ``set_epoch`` is called. (Of a loader with
    workers that is not watched, one that is broken off while its last batches wait in the loader, at most ``prefetch_factor *
    num_workers`` of them, may count as complete. A training loop of several ranks that breaks off there must call
    ``set_epoch``, or use `larder.torch.watch`, which knows.)

    Rank and world size are found when iteration begins: those given here, else those of ``torch.distributed``, else ``RANK`` and
    ``WORLD_SIZE`` of the environment, else a process alone. So a framework must not divide the batches among ranks once more:
    with Accelerate do not pass the loader to ``prepare``, which is refused with `ValueError` when iteration begins. Lightning
    leaves loaders of iterable datasets as they are.

    Nothing is asked of the gateway before it is needed. Can be forked, sent to workers by spawn and forkserver, pickled and
    deep-copied; a copy has an epoch of its own.

    Args:
        endpoint: address of the gateway.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or what `larder.Client.register` returned.
        batch_size: items of a batch.
        options: see `DatasetOptions` and `larder.loader.LoaderOptions`.

    Raises:
        ValueError: an option has a value that it cannot have.
        TypeError: there is no such option.
    """

    def __init__(
        self, endpoint: str, dataset: DatasetName, *, batch_size: int, **options: Unpack[DatasetOptions]
    ) -> None:
        rest = cast(LoaderOptions, {name: value for name, value in options.items() if name not in _OWN_OPTIONS})
        loader = Loader(endpoint, dataset, batch_size=batch_size, **rest)
        preparation = Preparation.of(options.get("transform"), options.get("collate"), options.get("on_error", "raise"))
        self._ranks = given_ranks(options.get("rank"), options.get("world"))
        self._making = Making(loader, Rounds(), preparation, options.get("keys", False))
        self._sent_by: Ranks | None = None
        self._iterations = 0
        self._iteration: Iteration | None = None
        self._restored: WorkerState | None = None
        self._watcher: weakref.ref[Watcher] | None = None

    def __iter__(self) -> Iteration:
        _refuse_batches_of_batches()
        refuse_division(self.ranks())
        worker = this_worker()
        if worker.inside:
            self._making.rounds.as_worker()
        self._iterations += 1
        tag = [int(worker.inside), worker.base_seed if worker.inside else os.getpid(), self._iterations]
        restored, self._restored = self._restored, None
        if self._iteration is not None:
            self._iteration.cancel(
                "another iteration over the same dataset has begun in this process; copy the dataset"
            )
        self._iteration = Iteration(self._making, self.ranks(), worker, tag, restored)
        return self._iteration

    def __len__(self) -> int:
        """How many batches this rank gets in a whole epoch, whatever the number of workers."""
        self._making.info()
        return self._making.loader.batches(*self.ranks())

    def ranks(self) -> Ranks:
        """Rank and world size, as they are known now."""
        found = self._ranks or distributed_ranks()
        if found is None and this_worker().inside:
            found = self._sent_by
        return found or environment_ranks()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is. One that is under way does not change.

        A saved state that was loaded, and is of this epoch, stays: the epoch goes on from there.

        Raises:
            ValueError: the epoch is no whole number of at least 0.
        """
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise ValueError(f"epoch must be a whole number of at least 0, not {epoch!r}")
        now = self._making.rounds.now()
        self._making.rounds.seek(epoch, now.start if now.epoch == epoch and not now.complete else None)

    def state_dict(self) -> dict[str, Any]:
        """The state to save, with JSON types: small, of this rank, and independent of the number of workers and the batch size.
        `larder.planner.merge_states` makes of those of all ranks one that loads under any world size.

        Called in a worker, as torchdata's ``StatefulDataLoader`` does, it is the state of that worker.

        Raises:
            StateError: worker processes read the dataset, and nobody watches what has come of it.
        """
        if this_worker().inside:
            if self._iteration is None:
                raise StateError("a worker has a state only while it iterates")
            return self._iteration.worker_state()
        if (watcher := self._watching()) is not None:
            return watcher.state_dict()
        now = self._making.rounds.now()
        if now.tag is not None and now.tag[0]:
            raise StateError(
                "worker processes read this dataset, and only the training loop knows which of their batches it has received: "
                "use loader = larder.torch.watch(loader), and save loader.state_dict()"
            )
        if now.tag is not None and self._iteration is not None and self._iteration.number == now.number:
            return self._iteration.rank_state()
        return self.state_of(now.epoch, now.start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next iteration delivers what is left of its epoch.

        Raises:
            StateError: it is damaged, of another dataset, of another rank or world size and not merged, or not of the step at
                which the other ranks' states were saved (as far as ``torch.distributed`` connects them; merge them with
                `larder.torch.merge_states`, and load the result in every rank); or it comes too late: worker processes have
                begun to read, and nobody watches the loader.
        """
        worker = this_worker()
        if worker.inside:
            self._restored = WorkerState.from_json(state, worker)
            return
        if (watcher := self._watching()) is not None:
            watcher.load_state_dict(state)
            return
        self.seek(state, unless_workers=True)

    def stats(self) -> Stats:
        """What was counted in this process; with `larder.torch.watch`, in the workers."""
        watcher = self._watching()
        return self._making.loader.stats if watcher is None else watcher.stats()

    def seek(self, state: Mapping[str, Any], *, unless_workers: bool = False) -> None:
        """`load_state_dict` without asking who watches."""
        if "worker" in state:
            raise StateError(
                "this is the state of one DataLoader worker; it belongs into the StatefulDataLoader that it came from"
            )
        self._making.info()
        loader = self._making.loader
        saved = loader.restored(state, Shard(*self.ranks(), 0, 1))
        refuse_disagreement(saved, saved.batches(loader.settings.batch_size, loader.settings.tail))
        same = state["epoch"] == saved.epoch
        self._making.rounds.seek(saved.epoch, dict(state) if same else saved.to_json(), unless_workers=unless_workers)
        if self._iteration is not None:
            self._iteration.cancel("a state was loaded while this iteration was under way; begin a new one")

    def state_of(self, epoch: int, start: Mapping[str, Any] | None) -> dict[str, Any]:
        """The state before the first batch of an epoch, which begins from a saved state or from nothing."""
        self._making.info()
        ranks = self.ranks()
        if start is None:
            return self._making.loader.start(epoch, *ranks).to_json()
        return self._making.loader.restored(start, Shard(*ranks, 0, 1)).to_json()

    @property
    def making(self) -> Making:
        """What iterations are made of."""
        return self._making

    def told(self) -> Tag | None:
        """What is to be told of the batch that was made last in this process."""
        return None if self._iteration is None else self._iteration.told()

    def watched_by(self, watcher: Watcher) -> None:
        """From now on the watcher knows what was received."""
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
    """Raise if the `DataLoader` that iterates was made with a batch size: it would collect batches into lists, with no error.

    A dataset is told nothing of its loader; but the fetcher that begins the iteration knows.
    """
    caller = sys._getframe(2)
    if caller.f_globals.get("__name__") == "torch.utils.data._utils.fetch" and caller.f_locals.get("auto_collation"):
        raise ValueError("a CachedDataset makes batches itself: use DataLoader(dataset, batch_size=None)")
