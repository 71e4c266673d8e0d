"""A worker, independent of where it runs: it computes a split while it reads the items of the next one, and sends heartbeats.

A `WorkerLink` connects it to the trainer: a socket (`larder.pipelines.processes`), or a stream of a Ray actor
(`larder.pipelines.ray_actors`). The parts of a split, their form in the trainer and the pickled task are also here, so that one
module has both ends of a link.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from larder.base.background import BackgroundThread
from larder.base.errors import LarderError, PipelineError
from larder.pipelines.elements import Encoded
from larder.pipelines.fingerprint import Fingerprint, fingerprints
from larder.pipelines.splits import Split, Value
from larder.pipelines.stages import Counts, ElementFailure, Stage, in_a_line
from larder.pipelines.workers import (
    Broken,
    Heartbeat,
    LoadedSplit,
    Notice,
    SplitComputation,
    SplitPart,
    Started,
    WorkerTask,
)

FLUSH_BYTES = 4 << 20
"""Bytes of elements after which a part is sent."""
FLUSH_SECONDS = 0.1
"""Seconds after which a part is sent: unsent elements are lost if the worker dies."""


class SentPart(NamedTuple):
    """A part as it is sent: offset and size of each element in its memory of ``size`` bytes, or its failure."""

    split: int
    first: int
    values: list[tuple[int, int] | ElementFailure]
    counts: Counts
    size: int

    def received(self, memory: memoryview) -> SplitPart:
        """The part with its elements, as views of its memory."""
        values: list[Value] = [
            value if isinstance(value, ElementFailure) else memory[value[0] : value[0] + value[1]]
            for value in self.values
        ]
        return SplitPart(self.split, self.first, values, self.counts)


class PartMemory(Protocol):
    """Memory that the elements of a part are written to."""

    @property
    def size(self) -> int:
        """Bytes so far."""

    def append(self, element: Encoded) -> tuple[int, int]:
        """Copy an element; returns its offset and size."""

    def close(self) -> None:
        """Release the memory here; may be called again. The trainer keeps sent elements."""


class WorkerLink(Protocol):
    """A worker's connection to the trainer."""

    cannot_load: str
    """The remedy if the functions of a pipeline cannot be loaded by a worker."""

    def memory(self) -> PartMemory:
        """Memory for a part."""

    def send(self, message: object, memory: Any = None) -> None:
        """Send a message, with the elements written to a memory of this link. For one thread at a time.

        Raises:
            EOFError: the trainer is gone.
        """


class _Loaded(NamedTuple):
    """A split, the items read for it, and the time that reading took."""

    loaded: LoadedSplit
    seconds: float


class SplitWorker:
    """Computes the splits that it is given.

    Args:
        link: to the trainer.
        heartbeat: seconds between two heartbeats.
    """

    def __init__(self, link: WorkerLink, heartbeat: float) -> None:
        self._link = link
        self.heartbeat = heartbeat
        self.marks: Mapping[int, Fingerprint] | None = None
        self._sending = threading.Lock()
        self._splits: SimpleQueue[Split | None] = SimpleQueue()
        self._background = BackgroundThread()
        self._over = threading.Event()

    def prepare(self, payload: bytes, marks: Mapping[int, Fingerprint] | None = None) -> None:
        """Load a task that `pickled` made, and tell the trainer that this worker is ready.

        Args:
            payload: the task.
            marks: fingerprints of its marks, from before any function ran in this process; by default none has.

        Raises:
            Exception: the task cannot be loaded; the trainer has the reason.
        """
        try:
            task = self._loaded(payload)
            # Now, before any function runs: state that functions keep must not change their fingerprints.
            self.marks = fingerprints(task.stages) if marks is None else marks
            self._computation = SplitComputation(task, self.marks)
        except Exception as error:
            self._send(Broken.by(error))
            raise
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # one process per core, as in PyTorch's DataLoader
        self._send(Started())
        threading.Thread(target=self._beat, daemon=True).start()

    def _loaded(self, payload: bytes) -> WorkerTask:
        try:
            task: WorkerTask = pickle.loads(payload)  # noqa: S301 - from our own process
        except Exception as error:
            reason = f"a worker cannot load the pipeline's functions ({in_a_line(error)})"
            raise PipelineError(f"{reason}. {self._link.cannot_load}") from error
        return task

    def give(self, split: Split | None) -> None:
        """Queue a split; ``None``: end after the queued ones."""
        self._splits.put(split)

    def work(self) -> None:
        """Compute each split while the items of the next one are read. Heartbeats end with the last split.

        Raises:
            EOFError: the trainer is gone.
        """
        try:
            self._work()
        finally:
            self._over.set()
            self._computation.close()

    def _work(self) -> None:
        reading = self._background.submit(self._read_next)
        while True:
            began = perf_counter()
            loaded = reading.result()
            if loaded is None:
                return
            reading = self._background.submit(self._read_next)
            try:
                if isinstance(loaded, LarderError):
                    raise loaded
                self._compute(loaded.loaded, min(loaded.seconds, perf_counter() - began))
            except EOFError:
                raise
            except Exception as error:
                self._send(Broken.by(error))
            for text in self._computation.take_notices():
                self._send(Notice(text))

    def _read_next(self) -> _Loaded | LarderError | None:
        split = self._splits.get()
        if split is None:
            return None
        began = perf_counter()
        try:
            loaded = self._computation.read(split)
        except LarderError as error:
            return error
        return _Loaded(loaded, perf_counter() - began)

    def _compute(self, loaded: LoadedSplit, waited: float) -> None:
        split = loaded.split
        values: list[tuple[int, int] | ElementFailure] = []
        memory, first, began = self._link.memory(), split.first, perf_counter()
        end = first + len(split.indices)
        try:
            for element in self._computation.elements(loaded, waited):
                values.append(element if isinstance(element, ElementFailure) else memory.append(element))
                late = perf_counter() - began > FLUSH_SECONDS
                # The last part waits for the split's work after its elements, whose counts belong to this epoch.
                if first + len(values) < end and (late or split.careful or memory.size >= FLUSH_BYTES):
                    self._send_part(split, first, values, memory)
                    first += len(values)
                    memory, values, began = self._link.memory(), [], perf_counter()
            if values:
                self._send_part(split, first, values, memory)
        finally:
            memory.close()

    def _send_part(
        self, split: Split, first: int, values: list[tuple[int, int] | ElementFailure], memory: PartMemory
    ) -> None:
        counts = self._computation.stages.take_counts()
        self._send(SentPart(split.number, first, values, counts, memory.size), memory)
        memory.close()

    def _send(self, message: object, memory: PartMemory | None = None) -> None:
        with self._sending:
            self._link.send(message, memory)

    def _beat(self) -> None:
        while not self._over.wait(self.heartbeat):
            running, beat = self._computation.stages.running, Heartbeat()
            if running is not None:
                beat = Heartbeat(running.split, running.place, str(running.stage), perf_counter() - running.since)
            try:
                self._send(beat)
            except (EOFError, OSError):
                return


def pickled(task: WorkerTask) -> bytes:
    """Pickle the task for another process; by cloudpickle, if it is installed, which also handles functions of notebooks.

    Raises:
        PipelineError: a function cannot be sent; the message names its stage.
    """
    dumps = _dumps()
    try:
        return bytes(dumps(task))
    except Exception as error:
        guilty = next((stage for stage in task.stages if not _can_be_sent(stage, dumps)), None)
        what = "the source" if guilty is None else str(guilty)
        remedy = (
            "Define the function in a module, or install cloudpickle (pip install 'larder[pipelines]'),"
            if dumps is pickle.dumps
            else "Let the function make what cannot be sent itself,"
        )
        raise PipelineError(
            f"{what} cannot be sent to worker processes ({type(error).__name__}: {error}). {remedy} or compute in the training "
            "process with workers=0"
        ) from error


def dumped(value: object) -> bytes:
    """A value pickled like a task."""
    return bytes(_dumps()(value))


def _can_be_sent(stage: Stage, dumps: Any) -> bool:
    try:
        dumps(stage.function)
    except Exception:
        return False
    return True


def _dumps() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps
    return cloudpickle.dumps
