"""A `DataLoader` that knows what the training loop has received from it.

Workers make batches ahead of their use, so only the training process knows which batches count. Each batch carries a tag with
what it adds to the state, put on by the worker after the loader's own collation and taken off before the loop sees the batch.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from larder.errors import LarderError, StateError
from larder.loader import Shard
from larder.planner.upcoming import Upcoming
from larder.run import Tracker
from larder.stats import Stats
from larder.torch.dataset import CachedDataset
from larder.torch.iteration import Tag
from larder.torch.mapped import CachedMapDataset
from larder.torch.rounds import Round

_Watchable = CachedDataset | CachedMapDataset


def watch(loader: DataLoader[Any]) -> WatchedLoader:
    """Wrap a loader, so that it can be saved and resumed at any batch, and counts in the training process what it cost.

    The batches are those of the loader. The loader itself stays as it is; iterate over what this returns.

    Raises:
        TypeError: its dataset is neither a `CachedDataset` nor a `CachedMapDataset`.
        ValueError: its workers have been started already; watch it before its first iteration.
    """
    return WatchedLoader(loader)


class WatchedLoader:
    """See `watch`. Attributes that it does not have are those of the loader.

    Args:
        loader: of a `CachedDataset` or `CachedMapDataset`.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        dataset = loader.dataset
        if not isinstance(dataset, _Watchable):
            raise TypeError(
                f"only loaders of a CachedDataset or CachedMapDataset can be watched, not of {type(dataset).__name__}"
            )
        if getattr(loader, "_iterator", None) is not None:
            raise ValueError("the loader's workers have been started already; watch it before its first iteration")
        self._loader = copy.copy(loader)
        self._loader.collate_fn = _Tagging(loader.collate_fn, dataset)
        self._dataset = dataset
        self._stats = Stats()
        self._pass: _Pass | _EpochPass | None = None
        if isinstance(dataset, CachedDataset):
            dataset.watched_by(self)

    def __iter__(self) -> Iterator[Any]:
        before = self._pass
        if before is not None:
            before.cancel("another iteration of the same loader has begun")
        if isinstance(self._dataset, CachedDataset):
            earlier = before if isinstance(before, _EpochPass) else None
            self._pass = _EpochPass(self._loader, self._stats, self._dataset, earlier)
        else:
            self._pass = _Pass(self._loader, self._stats)
        return self._pass

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> dict[str, Any]:
        """The state to save: exactly what the training loop has received, whatever waits in the loader. See
        `CachedDataset.state_dict`.

        Raises:
            StateError: the dataset is indexed; then the order is the sampler's, and with it the state.
        """
        dataset = self._epochs()
        if isinstance(self._pass, _EpochPass):
            return self._pass.state_dict()
        return dataset.state_of(*_upcoming(dataset.making.rounds.now(), None))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state with the next iteration. An iteration that is under way raises `StateError` when it is asked
        for its next batch. Workers that persist are kept.

        Raises:
            StateError: the state is damaged, of another dataset, or of another rank or world size and not merged.
        """
        self._epochs().seek(state)
        if self._pass is not None and self._pass.begun:
            self._pass.cancel("a state was loaded while this iteration was under way; begin a new one")

    def upcoming(self) -> Upcoming | None:
        """Which chunks come next, by what the loop has received; ``None`` before the first batch, or if there are no chunks."""
        return self._pass.upcoming() if isinstance(self._pass, _EpochPass) else None

    def stats(self) -> Stats:
        """What was counted for the batches that the loop has received, and how long it waited for them."""
        return self._stats

    def _epochs(self) -> CachedDataset:
        if isinstance(self._dataset, CachedDataset):
            return self._dataset
        raise StateError(
            "the order of a CachedMapDataset is its sampler's, which alone can save it; torchdata's StatefulDataLoader does"
        )


class _Pass:
    """One iteration, as the training loop sees it."""

    def __init__(self, loader: DataLoader[Any], stats: Stats) -> None:
        self._loader = loader
        self._stats = stats
        self._iterator: Iterator[Any] | None = None
        self._cancelled = ""
        self._left_at = 0.0
        self.begun = False
        self.ended = False

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._cancelled:
            raise StateError(self._cancelled)
        if self.ended:
            raise StopIteration
        asked_at = perf_counter()
        if self._left_at:
            self._stats.add("computed", asked_at - self._left_at)
        if self._iterator is None:
            self.begin()
            self.begun = True
            self._iterator = iter(self._loader)
        try:
            tagged: _Tagged = next(self._iterator)
        except StopIteration:
            self.ended, self._iterator = True, None
            raise
        finally:
            self._left_at = perf_counter()
            self._stats.add("waited", self._left_at - asked_at)
        if tagged.tag is not None:
            self.receive(tagged.tag)
        return tagged.batch

    def begin(self) -> None:
        """Called before the first batch is asked for."""

    def receive(self, tag: Tag) -> None:
        """The loop gets a batch with this tag."""
        for name, value in tag.counts.items():
            # How long a worker waited says nothing: it works ahead of need, and then sleeps.
            if name not in ("waited", "computed"):
                self._stats.add(name, value)

    def cancel(self, why: str) -> None:
        """Nothing comes any more, and who asks is told why; workers that do not persist are ended."""
        if not self.ended:
            self._cancelled = why
        self._iterator = None


class _EpochPass(_Pass):
    """One iteration over an epoch of a `CachedDataset`."""

    def __init__(
        self, loader: DataLoader[Any], stats: Stats, dataset: CachedDataset, before: _EpochPass | None
    ) -> None:
        super().__init__(loader, stats)
        self.session = uuid.uuid4().hex
        self._dataset = dataset
        # The last one that began: it knows whether its epoch was complete.
        self._before: _EpochPass | None = before if before is None or before.begun else before.forerunner
        self._epoch = 0
        self._start: Mapping[str, Any] | None = None
        self._tracker: Tracker | None = None

    def begin(self) -> None:
        """Say which epoch it is: only here is it known whether the training loop received the one before."""
        making = self._dataset.making
        self._epoch, self._start = _upcoming(making.rounds.now(), self._before)
        self._before = None
        making.rounds.seek(self._epoch, self._start, session=self.session)
        making.info()
        self._stats.order.items = making.loader.info.items
        shard = Shard(*self._dataset.ranks(), 0, 1)
        self._tracker = Tracker(making.begin(self._epoch, self._start, shard))

    def receive(self, tag: Tag) -> None:
        """The loop gets a batch with this tag."""
        super().receive(tag)
        assert self._tracker is not None
        if tag.epoch != self._epoch:
            raise LarderError(f"a worker made a batch of epoch {tag.epoch} while epoch {self._epoch} is under way")
        for handed in tag.handed:
            self._tracker.add(*handed)
        for indices, hits in zip(tag.indices, tag.hits, strict=True):
            self._stats.order.observe(tag.epoch, indices, np.asarray(hits))

    def state_dict(self) -> dict[str, Any]:
        """What was received; at the end of the epoch, the start of the next. Another state, if one was sought meanwhile."""
        now = self._dataset.making.rounds.now()
        if self._tracker is None or now.session != self.session:
            return self._dataset.state_of(*_upcoming(now, self._before))
        settings = self._dataset.making.loader.settings
        progress = self._tracker.progress
        settled = progress.next_epoch() if self.ended else progress.settled(settings.batch_size, settings.tail)
        return settled.to_json()

    def upcoming(self) -> Upcoming | None:
        """Which chunks come next."""
        return None if self._tracker is None else self._tracker.upcoming()

    @property
    def complete(self) -> bool:
        """Whether the loop has received the whole epoch, though it may not have asked whether there is more."""
        if self._tracker is None:
            return False
        settings = self._dataset.making.loader.settings
        return self.ended or not self._tracker.progress.batches(settings.batch_size, settings.tail)

    @property
    def forerunner(self) -> _EpochPass | None:
        """The pass before it, until it begins."""
        return self._before

    @property
    def again(self) -> tuple[int, Mapping[str, Any] | None]:
        """The epoch and state that it began with."""
        return self._epoch, self._start


def _upcoming(now: Round, before: _EpochPass | None) -> tuple[int, Mapping[str, Any] | None]:
    """Which epoch is next, from which state: what the round says, unless it is that of a watched pass, which knows better."""
    if before is not None and now.session == before.session:
        return (before.again[0] + 1, None) if before.complete else before.again
    return (now.epoch + 1, None) if now.complete else (now.epoch, now.start)


class _Tagged:
    """A batch and its tag, on their way from a worker; memory is pinned for the batch only."""

    def __init__(self, batch: Any, tag: Tag | None) -> None:
        self.batch = batch
        self.tag = tag

    def pin_memory(self) -> _Tagged:
        """As ``torch.Tensor.pin_memory``; the loader calls it."""
        return _Tagged(pin_memory(self.batch), self.tag)  # type: ignore[no-untyped-call]


class _Tagging:
    """The loader's ``collate_fn``, and a tag on what it returns."""

    def __init__(self, collate: Callable[[Any], Any], dataset: _Watchable) -> None:
        self._collate = collate
        self._dataset: _Watchable | None = dataset

    def __call__(self, data: Any) -> _Tagged:
        info = get_worker_info()
        dataset = self._dataset if info is None else info.dataset
        batch = self._collate(data)
        return _Tagged(batch, dataset.told() if isinstance(dataset, _Watchable) else None)

    def __getstate__(self) -> dict[str, Any]:
        # A worker has the dataset already; sent once more with this, it would be another one.
        return {"_collate": self._collate, "_dataset": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
