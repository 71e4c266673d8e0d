"""A training loop under observation: how long its mini-batches take, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from time import perf_counter
from typing import Any, Protocol

from larder.planner.upcoming import Upcoming
from larder.run import Batch
from larder.stats import Stats
from larder.timing import IN_FLIGHT, Timing


class Observer(Protocol):
    """The side of a job that is told."""

    timing: Timing
    place: Upcoming
    place_wanted: bool

    def begin(self) -> None:
        """The loop has begun."""


class Loop:
    """Goes on over the batches of a loader, and tells of it. Attributes that it does not have are those of the loader.

    Args:
        observer: who is told.
        loader: a `DataLoader`, one that is watched, the batches of an epoch, or whatever else gives batches.
    """

    def __init__(self, observer: Observer, loader: Iterable[Any]) -> None:
        self._observer = observer
        self._loader: Any = _watched(loader)

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self._observer, self._loader)

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Pass:
    """One iteration. A mini-batch is from asking for it to asking for the next."""

    def __init__(self, observer: Observer, loader: Any) -> None:
        self._observer = observer
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._asked_at = self._waited = 0.0
        self._items = self._hits = 0
        self._first = True

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        now = perf_counter()
        if self._iterator is None:
            self._observer.timing.in_flight = _in_flight(self._loader)
            self._observer.begin()
            self._iterator = iter(self._loader)
        elif self._asked_at:
            self._note(now - self._asked_at)
        if self._observer.place_wanted:
            self._tell()
        self._asked_at = now
        try:
            batch = next(self._iterator)
        except BaseException:
            self._asked_at = 0.0
            self._tell()
            raise
        self._waited = perf_counter() - now
        self._count(batch)
        return batch

    def _note(self, seconds: float) -> None:
        if not self._first:
            self._observer.timing.add(seconds, self._waited, self._items, self._hits)
        self._first = False

    def _count(self, batch: Any) -> None:
        if isinstance(batch, Batch):
            self._items, self._hits = len(batch), batch.hits
            return
        stats = getattr(self._loader, "stats", None)
        counted = stats() if callable(stats) else None
        if isinstance(counted, Stats):
            before, self._seen = self._seen, (counted.items, counted.hits)
            self._items, self._hits = counted.items - before[0], counted.hits - before[1]

    _seen = (0, 0)

    def _tell(self) -> None:
        upcoming = getattr(self._loader, "upcoming", None)
        place = upcoming() if callable(upcoming) else None
        if place is not None:
            self._observer.place = place
            self._observer.place_wanted = False


def _watched(loader: Any) -> Any:
    """A loader of torch, watched: only then it is known what the loop has received. What is no dataset of ours stays as it is."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(getattr(loader, "dataset", None)).__mro__}
    ours = {"larder.torch.dataset.CachedDataset", "larder.torch.mapped.CachedMapDataset"}
    if not kinds & ours or callable(getattr(loader, "load_state_dict", None)):
        return loader
    return import_module("larder.torch").watch(loader)


def _in_flight(loader: Any) -> int:
    workers = getattr(loader, "num_workers", 0)
    return IN_FLIGHT if not workers else int(workers * ((loader.prefetch_factor or 0) + 1) + 1)
