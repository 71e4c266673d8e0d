"""The stages of a pipeline that work on single elements, and the run of one element through them.

Random numbers: before each function, the global generators of ``random``, numpy and PyTorch are seeded from the pipeline's seed,
the epoch, the item and the stage. So an element is the same whichever worker computes it, after a resume, and whether the stages
before a mark were computed or read from the cache.

Before a mark with several *versions* (Cachew, ATC 2022, section 7; Revamper, ATC 2021), the version takes the place of the epoch:
an item has so many elements there, of which each epoch uses one, whether or not results are stored. Functions are numbered there
without the marks between them, which do not change results.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, NamedTuple

from larder.base.errors import ElementUnstorable, LarderError
from larder.base.seeds import seed_generators, seed_of
from larder.pipelines.elements import DROPPED, Encoded
from larder.reading.source import Item

MAP, FILTER, AUTOCACHE = "map", "filter", "autocache"
MOST_VERSIONS = 1000
"""The most versions of a mark."""
_LONGEST_TRACEBACK = 20_000
"""The most characters of a traceback that are kept, from its end."""


@dataclass(frozen=True)
class Stage:
    """One operation on single elements.

    Args:
        kind: ``map``, ``filter`` or ``autocache``.
        number: place in the pipeline, from 1.
        function: of the user; ``None`` for a mark.
        where: file and line of the call that added the stage.
        versions: of a mark: elements of an item there.
    """

    kind: str
    number: int
    function: Callable[[Any], Any] | None = None
    where: str = ""
    versions: int = 1

    def __str__(self) -> str:
        argument = f"versions={self.versions}" if self.versions > 1 else ""
        return f"stage {self.number}, {self.kind}({argument if self.function is None else name_of(self.function)})"


def version_of(seed: int, epoch: int, item: int, versions: int) -> int:
    """The version of an item's element that an epoch uses, from 0.

    Successive epochs use the versions in turn, beginning with a random one of each item: none is used twice before all others
    were, and all are known after ``versions`` epochs, wherever these begin. With a divisor of ``versions``, it is the remainder.
    """
    return (seed_of("larder/version", seed, item) + epoch) % versions


class ElementFailure(NamedTuple):
    """Why an element has no value.

    Args:
        stage: the stage, in words.
        detail: the exception in a line, or the event.
        trace: its traceback; empty without one.
        status: status of an item that could not be read (`larder.reading.frames`); 0 for a failed function.
    """

    stage: str
    detail: str
    trace: str = ""
    status: int = 0


@dataclass
class StageCounts:
    """The counts of one stage (Cachew, ATC 2022, Table 1).

    Args:
        elements: number of elements that came out of it, dropped ones included.
        seconds: time spent in it and in all earlier stages, including reading.
        bytes: size of its results, as stored. Known for marks and for the last stage only.
        measured: number of elements that ``bytes`` counts.
        read: for a mark, elements that were read from the store, not computed.
        stored: for a mark, elements that were stored.
        refused: for a mark, elements that could not be stored.
        damaged: for a mark, stored elements that could not be used.
        hits: for reading, items that were in the cache.
        timed: for a mark, elements whose reading was timed.
        reading: their seconds, from the request to the decoded element.
        busy: processor seconds within ``reading``.
    """

    elements: int = 0
    seconds: float = 0.0
    bytes: int = 0
    measured: int = 0
    read: int = 0
    stored: int = 0
    refused: int = 0
    damaged: int = 0
    hits: int = 0
    timed: int = 0
    reading: float = 0.0
    busy: float = 0.0

    def add(self, other: StageCounts) -> None:
        """Add the counts of another worker or of a later time."""
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))


Counts = dict[int, StageCounts]
"""By number of the stage; 0 is reading."""


def summed(*parts: Counts) -> Counts:
    """The sums of several counts, as new objects."""
    total: Counts = {}
    for part in parts:
        for number, counts in part.items():
            total.setdefault(number, StageCounts()).add(counts)
    return total


class RunningFunction(NamedTuple):
    """A user's function that is running: the split and place of its element, its stage, and when it began."""

    split: int
    place: int
    stage: Stage
    since: float


@dataclass
class ElementStages:
    """Runs elements through the stages.

    Args:
        stages: in order, without those that work on more than one element.
        seed: of the pipeline.
        element: split and place of the current element.
        running: read by the thread that sends heartbeats; ``None`` while no function of the user runs.
    """

    stages: tuple[Stage, ...]
    seed: int
    counts: Counts = field(default_factory=dict)
    element: tuple[int, int] = (-1, -1)
    running: RunningFunction | None = None

    def __post_init__(self) -> None:
        self._versioned = _versioned(self.stages)

    def take_counts(self) -> Counts:
        """The counts since the last call."""
        taken, self.counts = self.counts, {}
        return taken

    def count(self, number: int, counts: StageCounts) -> None:
        """Add to the counts of a stage."""
        self._counted(number).add(counts)

    def read(self, elements: int, seconds: float, size: int, hits: int) -> None:
        """Count items that were read."""
        self._counted(0).add(StageCounts(elements, seconds, size, elements, hits=hits))

    def run(self, item: Item, epoch: int, spent: float = 0.0) -> Encoded | ElementFailure:
        """One element through all stages.

        Args:
            item: the item.
            epoch: epoch of the element.
            spent: seconds that reading the item took.
        """
        return self._through(self.stages, item, item.index, epoch, spent)

    def until(self, mark: int, item: Item, epoch: int, spent: float = 0.0) -> Encoded | ElementFailure:
        """Like ``run``, up to a mark."""
        return self._through([stage for stage in self.stages if stage.number <= mark], item, item.index, epoch, spent)

    def beyond(self, mark: int, value: Any, index: int, epoch: int, spent: float = 0.0) -> Encoded | ElementFailure:
        """Like ``run``, from a mark on, given the element's value there."""
        return self._through([stage for stage in self.stages if stage.number > mark], value, index, epoch, spent)

    def _through(
        self, stages: Sequence[Stage], value: Any, index: int, epoch: int, spent: float
    ) -> Encoded | ElementFailure:
        began = perf_counter() - spent
        stage = None
        try:
            for stage in stages:
                if value is not DROPPED:
                    value = self._step(stage, value, epoch, index)
                self._counted(stage.number).add(StageCounts(1, perf_counter() - began))
            return self._finish(value, stage)
        except ElementUnstorable as error:
            return ElementFailure(str(stage), str(error))
        except Exception as error:
            return ElementFailure(str(stage), in_a_line(error), trace_of(error))

    def _step(self, stage: Stage, value: Any, epoch: int, index: int) -> Any:
        if stage.function is None:
            self._measure(stage.number, Encoded(plain(value)))
            return plain(value)
        if (versioned := self._versioned.get(stage.number)) is None:
            seed_generators(self.seed, epoch, index, stage.number)
        else:
            place, versions = versioned
            seed_generators(self.seed, version_of(self.seed, epoch, index, versions), index, place)
        # One assignment: a heartbeat must not combine one element's place with another's time.
        self.running = RunningFunction(*self.element, stage, perf_counter())
        try:
            result = stage.function(value)
        finally:
            self.running = None
        if stage.kind == FILTER:
            return value if result else DROPPED
        return result

    def _finish(self, value: Any, last: Stage | None) -> Encoded:
        encoded = Encoded(plain(value))
        if last is None or last.kind != AUTOCACHE:
            self._measure(0 if last is None else last.number, encoded)
        return encoded

    def _measure(self, number: int, encoded: Encoded) -> None:
        if number:
            self._counted(number).add(StageCounts(bytes=encoded.size, measured=1))

    def _counted(self, number: int) -> StageCounts:
        return self.counts.setdefault(number, StageCounts())


def _versioned(stages: Sequence[Stage]) -> dict[int, tuple[int, int]]:
    """The functions before marks with several versions, by number: their place among the functions, and the versions of the next
    such mark."""
    versioned: dict[int, tuple[int, int]] = {}
    waiting: dict[int, int] = {}
    for stage in stages:
        if stage.function is not None:
            waiting[stage.number] = len(versioned) + len(waiting) + 1
        elif stage.versions > 1:
            versioned |= {number: (place, stage.versions) for number, place in waiting.items()}
            waiting = {}
    return versioned


class RemoteTraceback(LarderError):
    """The traceback of an error in a worker process; the cause of the error that the training loop gets."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0] if self.args else ""}"""'


def trace_of(error: BaseException) -> str:
    """The traceback of an error as text."""
    return "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]


def in_a_line(error: BaseException) -> str:
    """Class and message of a user's exception; its own code may raise, too."""
    try:
        message = str(error)
    except Exception as failed:
        message = f"(its message raised {type(failed).__name__})"
    return f"{type(error).__name__}: {message}"


def plain(value: Any) -> Any:
    """The value; for an item, its bytes."""
    return bytes(value.data) if type(value) is Item else value


def name_of(function: Any) -> str:
    """A function in words: its name without the scopes around it, or its class."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        inner = getattr(function, "func", None)
        return name_of(inner) if inner is not None else type(function).__name__
    return str(name).rpartition("<locals>.")[2]
