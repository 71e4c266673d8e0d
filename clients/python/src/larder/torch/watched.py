"""A `DataLoader` that knows which batches the training loop has received.

Workers make batches ahead of their use, so only the training process knows which batches count. The worker attaches a tag with
the batch's additions to the state, after the loader's collation; the training process removes it before the loop sees the batch.
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

from larder.base.errors import LarderError, StateError
from larder.base.stats import Stats
from larder.torch.dataset import CachedDataset
from larder.torch.iteration import Tag
from larder.torch.mapped import CachedMapDataset
from larder.torch.rounds import Round
from larder.training.loader import Shard
from larder.training.run import Tracker
from larder.training.timing import watched

_Watchable = CachedDataset | CachedMapDataset


def watch(loader: DataLoader[Any]) -> WatchedLoader:
    """Wrap a loader so that it can be saved and resumed at any batch, and has counts in the training process.

    The loader stays unchanged, and the batches are the same; iterate over the returned loader.

    Raises:
        TypeError: its dataset is neither a `CachedDataset` nor a `CachedMapDataset`.
        ValueError: its workers have started already; watch it before its first iteration.
    """
    return WatchedLoader(loader)


@watched.register(CachedDataset)
@watched.register(CachedMapDataset)
def _watched(dataset: _Watchable, loader: Any) -> Any:
    return watch(loader)


class WatchedLoader:
    """See `watch`. Other attributes are those of the loader.

    Args:
        loader: of a `CachedDataset` or `CachedMapDataset`.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        dataset = getattr(loader, "dataset", None)
        if dataset is None:
            raise TypeError(
                f"watch() takes the DataLoader of a CachedDataset or CachedMapDataset, not a {type(loader).__name__}"
            )
        if not isinstance(dataset, _Watchable):
            raise TypeError(
                f"only loaders of a CachedDataset or CachedMapDataset can be watched, not of {type(dataset).__name__}"
            )
        if getattr(loader, "_iterator", None) is not None:
            raise ValueError("the loader's workers have started already; watch it before its first iteration")
        self._loader = copy.copy(loader)
        self._loader.collate_fn = _Tagging(loader.collate_fn, dataset)
        self._dataset = dataset
        self._stats = Stats()
        self._current: _WatchedIterator | _EpochIterator | None = None
        if isinstance(dataset, CachedDataset):
            dataset.watched_by(self)

    def __repr__(self) -> str:
        return f"watch({self._dataset!r}, num_workers={self._loader.num_workers})"

    def __iter__(self) -> Iterator[Any]:
        before = self._current
        if before is not None:
            before.cancel("another iteration of the same loader has begun")
        if isinstance(self._dataset, CachedDataset):
            earlier = before if isinstance(before, _EpochIterator) else None
            self._current = _EpochIterator(self._loader, self._stats, self._dataset, earlier)
        else:
            self._current = _WatchedIterator(self._loader, self._stats)
        return self._current

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> dict[str, Any]:
        """The state to save: exactly the batches that the training loop has received. See `CachedDataset.state_dict`.

        Raises:
            StateError: the dataset is a `CachedMapDataset`, whose sampler has the state.
        """
        dataset = self._epochs()
        if isinstance(self._current, _EpochIterator):
            return self._current.state_dict()
        return dataset.state_of(*_upcoming(dataset.context.rounds.now(), None))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state with the next iteration. The current iteration raises `StateError` at its next batch.
        Persistent workers are kept.

        Raises:
            StateError: the state is damaged, of another dataset, or of another rank or world size and not merged.
        """
        self._epochs().seek(state)
        if self._current is not None and self._current.begun:
            self._current.cancel("a state was loaded while this iteration was under way; begin a new one")

    def skip_batches(self, batches: int) -> None:
        """Skip the next batches of this rank without reading them: the next iteration begins after them, and the current one
        raises `StateError`.

        Raises:
            StateError: the dataset is a `CachedMapDataset`, whose sampler has the state.
            ValueError: ``batches`` is not a whole number of at least 0.
        """
        self.load_state_dict(self._epochs().context.loader.skipped(self.state_dict(), batches))

    def batches_left(self) -> int:
        """Number of batches that the epoch still has for the training loop; ``len`` is that of a whole epoch, also after a
        resume.

        Raises:
            StateError: the dataset is a `CachedMapDataset`.
        """
        return self._epochs().context.loader.batches_after(self.state_dict())

    @property
    def reading(self) -> int | None:
        """The epoch of the current iteration; ``None`` before the first one."""
        return self._current.epoch if isinstance(self._current, _EpochIterator) else None

    def stats(self) -> Stats:
        """Counts of the batches that the loop has received, and the time that it waited for them."""
        return self._stats

    def _epochs(self) -> CachedDataset:
        if isinstance(self._dataset, CachedDataset):
            return self._dataset
        raise StateError(
            "the order of a CachedMapDataset is its sampler's: save the sampler's state, as torchdata's StatefulDataLoader does"
        )


class _WatchedIterator:
    """One iteration in the training process."""

    def __init__(self, loader: DataLoader[Any], stats: Stats) -> None:
        self._loader = loader
        self._stats = stats
        self._iterator: Iterator[Any] | None = None
        self._cancelled = ""
        self._left_at = 0.0
        self.begun = False
        self.ended = False

    def __iter__(self) -> _WatchedIterator:
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
            self.end()
            raise
        finally:
            self._left_at = perf_counter()
            self._stats.add("waited", self._left_at - asked_at)
        if tagged.tag is not None:
            self.receive(tagged.tag)
        return tagged.batch

    def begin(self) -> None:
        """Called before the first batch is requested."""

    def end(self) -> None:
        """Called after the last batch."""

    def receive(self, tag: Tag) -> None:
        """Count a batch that the loop receives."""
        for name, value in tag.counts.items():
            # A worker that works ahead waits by design.
            if name not in ("waited", "computed"):
                self._stats.add(name, value)

    def cancel(self, why: str) -> None:
        """End the iteration: asking for another batch raises `StateError`. Non-persistent workers are stopped."""
        if not self.ended:
            self._cancelled = why
        self._iterator = None


class _EpochIterator(_WatchedIterator):
    """One iteration over an epoch of a `CachedDataset`."""

    def __init__(
        self, loader: DataLoader[Any], stats: Stats, dataset: CachedDataset, before: _EpochIterator | None
    ) -> None:
        super().__init__(loader, stats)
        self.session = uuid.uuid4().hex
        self._dataset = dataset
        # The latest started iteration, which knows whether its epoch was complete.
        self._before: _EpochIterator | None = before if before is None or before.begun else before.predecessor
        self._epoch = 0
        self._start: Mapping[str, Any] | None = None
        self._tracker: Tracker | None = None

    def begin(self) -> None:
        """Set the epoch, because only here it is known whether the training loop received the whole previous epoch."""
        making = self._dataset.context
        self._epoch, self._start = _upcoming(making.rounds.now(), self._before)
        if self._before is not None and self._before.complete:
            self._before.end()  # a loop may end with the last batch, without asking for another
        self._before = None
        making.rounds.seek(self._epoch, self._start, session=self.session)
        making.info()
        self._stats.order.items = making.loader.info.samples
        shard = Shard(*self._dataset.ranks(), 0, 1)
        start = making.begin(self._epoch, self._start, shard)
        making.loader.begin_epoch(start, self._stats)
        self._tracker = Tracker(start)

    def end(self) -> None:
        """Count the epoch."""
        self._dataset.context.loader.end_epoch(self._epoch, self._stats)

    def receive(self, tag: Tag) -> None:
        """Count a batch that the loop receives."""
        super().receive(tag)
        assert self._tracker is not None
        if tag.epoch != self._epoch:
            raise LarderError(f"a worker delivered a batch of epoch {tag.epoch} during epoch {self._epoch}")
        for delivered in tag.delivered:
            self._tracker.add(*delivered)
        for indices, hits in zip(tag.indices, tag.hits, strict=True):
            self._stats.order.observe(tag.epoch, indices, np.asarray(hits))
        self._stats.add_to_epoch(tag.epoch, tag.counts)

    def state_dict(self) -> dict[str, Any]:
        """The state after the received batches; at the end of an epoch, the start of the next one. A state loaded meanwhile takes
        precedence."""
        now = self._dataset.context.rounds.now()
        if self._tracker is None or now.session != self.session:
            return self._dataset.state_of(*_upcoming(now, self._before))
        settings = self._dataset.context.loader.settings
        progress = self._tracker.progress
        settled = progress.next_epoch() if self.ended else progress.settled(settings.batch_size, settings.tail)
        return settled.to_json()

    @property
    def epoch(self) -> int:
        """The iteration's epoch, once it has begun."""
        return self._epoch

    @property
    def complete(self) -> bool:
        """Whether the loop has received the whole epoch, even if it has not asked for another batch."""
        if self._tracker is None:
            return False
        settings = self._dataset.context.loader.settings
        return self.ended or not self._tracker.progress.batches(settings.batch_size, settings.tail)

    @property
    def predecessor(self) -> _EpochIterator | None:
        """The previous iteration, until this one begins."""
        return self._before

    @property
    def beginning(self) -> tuple[int, Mapping[str, Any] | None]:
        """The epoch and the state with which the iteration began."""
        return self._epoch, self._start


def _upcoming(now: Round, before: _EpochIterator | None) -> tuple[int, Mapping[str, Any] | None]:
    """The next epoch and its start, from the round; from the watched iteration if the round belongs to it."""
    if before is not None and now.session == before.session:
        return (before.beginning[0] + 1, None) if before.complete else before.beginning
    return (now.epoch + 1, None) if now.complete else (now.epoch, now.start)


class _Tagged:
    """A batch with its tag, in transit from a worker; memory is pinned for the batch only."""

    def __init__(self, batch: Any, tag: Tag | None) -> None:
        self.batch = batch
        self.tag = tag

    def pin_memory(self) -> _Tagged:
        """Called by the loader, as ``torch.Tensor.pin_memory``."""
        return _Tagged(pin_memory(self.batch), self.tag)  # type: ignore[no-untyped-call]


class _Tagging:
    """The loader's ``collate_fn``, which also attaches the tag."""

    def __init__(self, collate: Callable[[Any], Any], dataset: _Watchable) -> None:
        self._collate = collate
        self._dataset: _Watchable | None = dataset

    def __call__(self, data: Any) -> _Tagged:
        info = get_worker_info()
        dataset = self._dataset if info is None else info.dataset
        batch = self._collate(data)
        return _Tagged(batch, dataset.take_tag() if isinstance(dataset, _Watchable) else None)

    def __getstate__(self) -> dict[str, Any]:
        # A worker already has the dataset; a second copy would be a separate dataset.
        return {"_collate": self._collate, "_dataset": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
