"""Mini-batch timing of a training loop, by phase: the measurements that tell whether a job gains from the cache.

A mini-batch lasts from one request for data to the next: waiting for the data and computing with it. The fleet's manager refuses
a job cache hits for some mini-batches and compares the phases (Quiver, FAST 2020, section 4.5). Two kinds of mini-batches are
not counted: those in flight when the phase changes, which were read under the previous phase, and the first of an iteration,
which includes the start of worker processes.

One thread counts and another reads. Totals are immutable values that are replaced as a whole, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from larder.base.stats import Stats
from larder.training.run import Batch

PHASES = ("probe-miss", "measure", "steady")
IN_FLIGHT = 2
"""Mini-batches in flight without worker processes: the one waiting for the loop, and the one being read."""


class Totals(NamedTuple):
    """Counts of one phase: mini-batches, their seconds, the part of these spent waiting, items, and cache hits."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0


class Timing:
    """Counts mini-batches from the start of the job; none before the first phase is known."""

    def __init__(self) -> None:
        self.phase = ""
        self.in_flight = IN_FLIGHT
        """Mini-batches in flight when the phase changes."""
        self.totals: dict[str, Totals] = {}
        self._begun = False
        self._skip = 0

    def change(self, phase: str) -> None:
        """Count later mini-batches as ``phase``."""
        if phase != self.phase:
            self.phase = phase
            self._skip = self.in_flight if self._begun else 0

    def add(self, seconds: float, waited: float = 0.0, items: int = 0, hits: int = 0) -> None:
        """Count one mini-batch."""
        self._begun = True
        if self._skip or not self.phase:
            self._skip = max(0, self._skip - 1)
            return
        before = self.totals.get(self.phase, Totals())
        self.totals[self.phase] = Totals(
            before.steps + 1,
            before.seconds + seconds,
            before.waited + min(waited, seconds),
            before.items + items,
            before.hits + min(hits, items),
        )

    def as_json(self) -> dict[str, dict[str, float]]:
        """Totals by phase."""
        return {phase: totals._asdict() for phase, totals in list(self.totals.items())}


Counts = Mapping[str, tuple[int, int]]
"""Items and cache hits: the totals under the empty name, and those of each dataset of a mixture."""


def divided(seconds: float, waited: float, counts: Counts) -> dict[str, tuple[float, float]]:
    """Each dataset's share of a mixture's mini-batch time: seconds and waiting.

    Only uncached items cause waiting, so waiting is divided by misses; each dataset has the whole computing time. So the
    datasets' gains add up to the job's gain.
    """
    weights = {name: items - hits for name, (items, hits) in counts.items()}
    if not any(weights.values()):
        weights = {name: items for name, (items, _) in counts.items()}
    total = max(1, sum(weights.values()))
    parts = {name: waited * weight / total for name, weight in weights.items()}
    return {name: (seconds - waited + part, part) for name, part in parts.items()}


class Observer(Protocol):
    """Receives the measurements of a `TimedLoader`.

    ``epoch`` is the epoch that the loop reads.
    """

    epoch: int

    def begin(self, in_flight: int | None = None) -> None:
        """An iteration begins; ``in_flight`` mini-batches are in flight at a change of phase."""

    def step(self, seconds: float, waited: float, counts: Counts, in_flight: int) -> None:
        """A mini-batch has ended; ``in_flight`` are in flight now."""


@singledispatch
def watched(dataset: object, loader: Any) -> Any:
    """The loader, wrapped so that it knows which batches the training loop has received.

    Packages that define dataset classes register their wrapper here; other loaders stay unchanged.

    Args:
        dataset: of the loader; its class selects the wrapper.
        loader: gives batches.
    """
    return loader


class TimedLoader:
    """Iterates over a loader and reports timing and position. Other attributes are those of the loader.

    Args:
        observer: receives the measurements.
        loader: a ``DataLoader``, a watched one, the batches of an epoch, or any other iterable of batches.
    """

    def __init__(self, observer: Observer, loader: Iterable[Any]) -> None:
        self._observer = observer
        # A loader that keeps its own state is watched already.
        stateful = callable(getattr(loader, "load_state_dict", None))
        self._loader: Any = loader if stateful else watched(getattr(loader, "dataset", None), loader)

    def __iter__(self) -> Iterator[Any]:
        return _TimedIterator(self._observer, self._loader)

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _TimedIterator:
    """One iteration of a `TimedLoader`."""

    def __init__(self, observer: Observer, loader: Any) -> None:
        self._observer = observer
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._asked_at = self._waited = 0.0
        self._counts: Counts = {}
        self._before: Counts = {}
        self._first = True

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        now = perf_counter()
        if self._iterator is None:
            self._observer.begin(_in_flight(self._loader))
            self._iterator = iter(self._loader)
        elif self._asked_at:
            self._record(now - self._asked_at)
        self._asked_at = now
        try:
            batch = next(self._iterator)
        except BaseException:
            self._asked_at = 0.0
            raise
        self._waited = perf_counter() - now
        self._observer.epoch = getattr(self._loader, "reading", None) or 0
        self._count(batch)
        return batch

    def _record(self, seconds: float) -> None:
        if not self._first:
            self._observer.step(seconds, self._waited, self._counts, _in_flight(self._loader))
        self._first = False

    def _count(self, batch: Any) -> None:
        stats = getattr(self._loader, "stats", None)
        counted = stats() if callable(stats) else stats
        if isinstance(counted, Stats):
            now = {"": counted, **counted.by_dataset}
            before, self._before = self._before, {name: (sums.items, sums.hits) for name, sums in now.items()}
            self._counts = {name: _since(before.get(name, (0, 0)), sums) for name, sums in self._before.items()}
        if isinstance(batch, Batch):
            self._counts = {**self._counts, "": (len(batch), batch.hits)}


def _since(before: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    return now[0] - before[0], now[1] - before[1]


def _in_flight(loader: Any) -> int:
    workers = getattr(loader, "num_workers", 0)
    if not workers:
        return IN_FLIGHT + int(getattr(loader, "beside", 0))
    return int(workers * ((loader.prefetch_factor or 0) + 1) + 1)
