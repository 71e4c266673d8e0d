"""Input workers: the work of one, and the trainer's view of them, wherever they run.

A `WorkerHost` runs workers: as processes of this machine (`larder.pipelines.processes`), as actors of a Ray cluster
(`larder.pipelines.ray_actors`), or in the training process itself (`InlineHost`). It carries splits to them and brings events
back; `larder.pipelines.crew` assigns their work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from larder.base.dataset import DatasetInfo
from larder.base.errors import LarderError, PipelineError
from larder.base.seeds import own_generators
from larder.base.stats import Stats
from larder.pipelines.elements import Encoded, decode
from larder.pipelines.fingerprint import Fingerprint, result_name
from larder.pipelines.results import ReadThrough
from larder.pipelines.splits import CacheMark, Split, Value
from larder.pipelines.stages import (
    Counts,
    ElementFailure,
    ElementStages,
    Stage,
    StageCounts,
    in_a_line,
    trace_of,
    version_of,
)
from larder.reading.frames import HIT, ItemFailure
from larder.reading.results import Lookup
from larder.reading.source import ItemReader, ResultSource, Source, item_at

READING = "stage 0, reading"


@dataclass(frozen=True)
class WorkerTask:
    """The task of every worker of a pipeline, sent to it once.

    Args:
        source: reads the items.
        info: the dataset.
        stages: those that work on single elements.
        seed: of the pipeline.
        job: name of the training run; empty without one.
    """

    source: Source
    info: DatasetInfo
    stages: tuple[Stage, ...]
    seed: int
    job: str = ""


class Started(NamedTuple):
    """A worker is ready for splits."""


class SplitPart(NamedTuple):
    """Elements of a split, from place ``first`` on, in order."""

    split: int
    first: int
    values: list[Value]
    counts: Counts


class Heartbeat(NamedTuple):
    """A sign of life. While a user's function runs, it has the split and place of the element, the stage, and the seconds so
    far."""

    split: int = -1
    place: int = -1
    stage: str = ""
    seconds: float = 0.0


class Broken(NamedTuple):
    """A worker cannot continue: its gateway is gone, for example. The error ends the epoch; ``trace`` is that of its cause."""

    error: LarderError
    trace: str = ""

    @classmethod
    def by(cls, error: Exception) -> Broken:
        """An error of this process, to be raised by another one."""
        if isinstance(error, LarderError):
            return cls(error, "" if error.__cause__ is None else trace_of(error.__cause__))
        return cls(PipelineError(f"a worker failed: {in_a_line(error)}"), trace_of(error))


class Notice(NamedTuple):
    """A notice for the user; the epoch continues."""

    text: str


class Ended(NamedTuple):
    """A worker has ended, after ``retire`` or by itself; ``reason`` in words, such as its exit status."""

    reason: str = ""


class Recalled(NamedTuple):
    """A worker of a pool is wanted by another pipeline: it is to be retired. If it is needed here, another one is asked for."""


Event = Started | SplitPart | Heartbeat | Broken | Notice | Ended | Recalled


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None: ...


class WorkerHost(Protocol):
    """Runs workers. Workers have numbers, which are not used again."""

    advice: ClassVar[str]
    """The advice if workers end before they begin."""

    def start(self, worker: int) -> None:
        """Start a worker. A `Started` event follows, or an `Ended` one."""

    def assign(self, worker: int, split: Split) -> None:
        """Give a worker a split. It computes its splits in the order in which it got them."""

    def retire(self, worker: int) -> None:
        """Let a worker end once it has returned its splits."""

    def kill(self, worker: int) -> None:
        """End a worker at once. An `Ended` event follows."""

    def remote(self, worker: int) -> bool:
        """Whether a worker runs on a cluster. Such workers are retired before those of this machine."""

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """The events by worker, in their order; waits for the first one for a limited time.

        The caller removes each event once it has handled it. Remaining events are returned again by the next call.
        """

    def close(self) -> None:
        """End all workers at once and release everything."""


@dataclass
class LoadedSplit:
    """A split, the numbers of its results, those that are stored, and the items without one, by index."""

    split: Split
    numbers: Sequence[int]
    stored: Lookup
    items: dict[int, memoryview] = field(default_factory=dict)
    failed: dict[int, ItemFailure] = field(default_factory=dict)
    hits: int = 0

    def __post_init__(self) -> None:
        self.places = {index: place for place, index in enumerate(self.split.indices, self.split.first)}


class SplitComputation:
    """Computes splits: a worker's work, independent of where it runs.

    Args:
        task: of the pipeline.
        marks: fingerprints of its marks, computed in this process before any function has run; ``None`` in the training process.
    """

    def __init__(self, task: WorkerTask, marks: Mapping[int, Fingerprint] | None = None) -> None:
        self.task = task
        self._own = marks
        with _source_errors():
            self._reader: ItemReader = task.source.reader(task.info, Stats())
        self.stages = ElementStages(task.stages, task.seed)
        self._marks: dict[CacheMark, ReadThrough | None] = {}
        self._differing: set[str] = set()
        self._reported: set[str] = set()

    def read(self, split: Split) -> LoadedSplit:
        """A split's stored results, and the items without one.

        Raises:
            LarderError: as `larder.BatchReader.fetch`; a `PipelineError` for an error that is not one of Larder's.
        """
        with _source_errors():
            through, numbers = self._through(split), self._numbers(split)
            stored = Lookup() if through is None else through.look(numbers)
        loaded = LoadedSplit(split, numbers, stored)
        missing = (number for number in numbers if number not in stored.elements)
        self._fetch(loaded, [number % self.task.info.items for number in missing])
        return loaded

    def _numbers(self, split: Split) -> Sequence[int]:
        """The number of each element's result: its item's index, plus the number of items for each version before its own."""
        versions = 1 if split.cache is None else self._stage(split.cache.stage).versions
        if versions == 1:
            return split.indices
        seed, items = self.task.seed, self.task.info.items
        return [index + items * version_of(seed, split.epoch, index, versions) for index in split.indices]

    def _stage(self, number: int) -> Stage:
        return next(stage for stage in self.stages.stages if stage.number == number)

    def elements(self, loaded: LoadedSplit, seconds: float = 0.0) -> Iterator[Encoded | ElementFailure]:
        """Each element of a split, in order.

        Args:
            loaded: the split.
            seconds: time spent waiting for it.
        """
        split = loaded.split
        waited = seconds / max(1, len(split.indices))
        self.stages.read(len(loaded.items), seconds, sum(map(len, loaded.items.values())), loaded.hits)
        through = self._through(split)
        if through is None:
            for index in split.indices:
                yield self._element(loaded, index, waited)
        else:
            yield from self._read_through(through, loaded, waited)

    def _read_through(
        self, through: ReadThrough, loaded: LoadedSplit, waited: float
    ) -> Iterator[Encoded | ElementFailure]:
        split, stages = loaded.split, self.stages
        assert split.cache is not None
        mark, stored = split.cache.stage, loaded.stored
        asked = max(1, len(split.indices))
        items = self.task.info.items

        def compute(number: int) -> Encoded | ElementFailure:
            return self._element(loaded, number % items, spent=waited, mark=mark)

        def finish(number: int, element: bytearray | memoryview, spent: float) -> Encoded | ElementFailure:
            index = number % items
            stages.element = split.number, loaded.places[index]
            began = perf_counter()
            value = decode(element, copy=False)  # the element has its arrays
            decoding = perf_counter() - began
            if not spent:  # it was read, not computed
                stages.count(mark, StageCounts(1, waited + decoding, len(element), 1))
                if number in stored.elements:  # the wait was for another job's computation
                    asking, busy = stored.seconds / asked + decoding, stored.cpu_seconds / asked + decoding
                    stages.count(mark, StageCounts(timed=1, reading=asking, busy=busy))
            return stages.beyond(mark, value, index, split.epoch, waited + spent + decoding)

        yield from through.elements(loaded.numbers, loaded.stored, compute, finish, hurried=split.careful)
        counts, through.counts = through.counts, StageCounts()
        stages.count(mark, counts)

    def _element(
        self, loaded: LoadedSplit, index: int, spent: float, mark: int | None = None
    ) -> Encoded | ElementFailure:
        """One element, through all stages or up to a mark."""
        split = loaded.split
        self.stages.element = split.number, loaded.places[index]
        if index not in loaded.items and index not in loaded.failed:
            self._fetch(loaded, [index])  # its result was stored, but could not be used
        if (missing := loaded.failed.get(index)) is not None:
            return ElementFailure(READING, missing.detail, status=missing.status)
        place = None if split.names is None else split.names[loaded.places[index] - split.first]
        item = item_at(index, loaded.items[index], place)
        if mark is None:
            return self.stages.run(item, split.epoch, spent)
        return self.stages.until(mark, item, split.epoch, spent)

    def _fetch(self, loaded: LoadedSplit, indices: list[int]) -> None:
        if not indices:
            return
        split = loaded.split
        wanted = np.array(indices, np.uint32)
        with _source_errors():
            fetched = self._reader.fetch(wanted, mode="exact", epoch=split.epoch, job=self.task.job)
        loaded.items.update(zip(fetched.indices.tolist(), fetched.data, strict=True))
        loaded.failed.update(fetched.failed)
        loaded.hits += int(np.count_nonzero(fetched.flags & HIT))

    def take_notices(self) -> list[str]:
        """The notices for the user since the last call."""
        through = (through.notices for through in self._marks.values() if through is not None)
        new = self._differing.union(*through) - self._reported
        self._reported |= new
        return sorted(new)

    def close(self) -> None:
        """Close idle connections; it stays usable."""
        for reader in (self._reader, *self._marks.values()):
            if isinstance(reader, _Closable):
                reader.close()

    def _through(self, split: Split) -> ReadThrough | None:
        """Source of a split's results; ``None`` if its items are read and everything is computed."""
        if split.cache is None:
            return None
        if split.cache not in self._marks:
            self._forget(split.cache.stage)
            self._marks[split.cache] = self._opened(split, split.cache)
        return self._marks[split.cache]

    def _opened(self, split: Split, cache: CacheMark) -> ReadThrough | None:
        stage, source, seed = self._stage(cache.stage), self.task.source, self.task.seed
        if not isinstance(source, ResultSource):
            return None
        own, keys = cache.name, split.names is not None
        if self._own is not None:
            own = result_name(self._own[cache.stage], keys=keys, seed=seed)
        if own != cache.name:
            self._differing.add(
                f"results of {stage} are computed, and not stored: workers see other code or values than the training process, "
                "such as a global that was changed there, or another version of a package; pass as an argument what you change"
            )
            return None
        return ReadThrough(source.results(self.task.info, cache.name, cache.owner, stage.versions), str(stage))

    def _forget(self, stage: int) -> None:
        """Close the store of a mark whose functions have changed."""
        for mark in [mark for mark in self._marks if mark.stage == stage]:
            through = self._marks.pop(mark)
            if through is not None:
                through.close()


@contextmanager
def _source_errors() -> Iterator[None]:
    """Turn errors of a source, which may be the user's, into errors of Larder with their cause."""
    try:
        yield
    except LarderError:
        raise
    except Exception as error:
        raise PipelineError(f"the source of the items failed: {in_a_line(error)}") from error


@dataclass
class InlineHost:
    """Computes in the training process, one element per ``poll``; for debugging, and for functions that cannot be sent.

    It has the same events as other hosts, for any requested number of workers. A function that hangs blocks the training process.
    The computation outlives it, with its connections and their knowledge of the gateways.
    """

    advice: ClassVar[str] = ""
    computation: SplitComputation
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _splits: deque[tuple[int, Split]] = field(default_factory=deque)
    _retiring: list[int] = field(default_factory=list)
    _started: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._running: tuple[int, Split, Iterator[Encoded | ElementFailure], int] | None = None

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        self._started.add(worker)
        self._events.append((worker, Started()))

    def assign(self, worker: int, split: Split) -> None:
        """See `WorkerHost`."""
        self._splits.append((worker, split))

    def retire(self, worker: int) -> None:
        """See `WorkerHost`."""
        self._retiring.append(worker)

    def kill(self, worker: int) -> None:
        """See `WorkerHost`."""
        self._splits = deque(queued for queued in self._splits if queued[0] != worker)
        if self._running is not None and self._running[0] == worker:
            self._running = None
        self._started.discard(worker)
        self._events.append((worker, Ended()))

    def remote(self, worker: int) -> bool:
        """See `WorkerHost`."""
        return False

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """See `WorkerHost`; computes the next element."""
        if not self._events:
            self._advance()
        busy = {worker for worker, _ in self._splits} | ({self._running[0]} if self._running else set())
        for worker in [worker for worker in self._retiring if worker not in busy]:
            self._retiring.remove(worker)
            self._started.discard(worker)
            self._events.append((worker, Ended()))
        return self._events or [(worker, Heartbeat()) for worker in self._started]

    def close(self) -> None:
        """See `WorkerHost`."""
        self._splits.clear()
        self._running = None

    def _advance(self) -> None:
        if self._running is None:
            if not self._splits:
                return
            worker, split = self._splits.popleft()
            began = perf_counter()
            try:
                loaded = self.computation.read(split)
            except LarderError as error:
                self._events.append((worker, Broken(error)))
                return
            spent = perf_counter() - began
            self._running = worker, split, self.computation.elements(loaded, spent), split.first
        worker, split, elements, place = self._running
        with own_generators():
            element = next(elements, None)
            if place + 1 == split.first + len(split.indices):
                next(elements, None)  # finish the split's work: this epoch has no further poll
        self._events += [(worker, Notice(text)) for text in self.computation.take_notices()]
        if element is None:
            self._running = None
            return
        value = element if isinstance(element, ElementFailure) else memoryview(bytearray(element.to_bytes()))
        counts = self.computation.stages.take_counts()
        self._events.append((worker, SplitPart(split.number, place, [value], counts)))
        self._running = worker, split, elements, place + 1
