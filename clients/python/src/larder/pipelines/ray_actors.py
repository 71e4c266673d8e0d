"""Input workers as actors of a Ray cluster.

Ray places actors, runs them and delivers their results; their number and the splits of each are decided here, as for processes
(`larder.pipelines.crew`). An actor has one stream of events, a Ray generator: parts of splits, heartbeats, and its end. Elements
are bytes of `larder.pipelines.elements`, which Ray keeps in its object store and maps on the trainer's machine.

Ray repeats nothing: actors are not restarted and calls are not tried again, because splits that a dead worker has not returned go
to another one. An actor belongs to the driver that started it, so Ray ends it with the driver, however the driver ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import PipelineError
from larder.pipelines.crew import HEARTBEAT
from larder.pipelines.elements import ALIGNMENT, Encoded
from larder.pipelines.interrupts import interrupts_deferred
from larder.pipelines.splits import Split
from larder.pipelines.worker import SentPart, SplitWorker
from larder.pipelines.workers import Ended, Event

FETCHING = 30.0
"""Seconds that a part may take from the object store of its machine to the trainer's; after that its worker counts as dead."""
OPTIONS: Mapping[str, Any] = {"num_cpus": 1}
"""Defaults of an actor's options."""
_FIXED: Mapping[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
"""Options of every actor: two threads, one for its events and one that takes splits."""

_Sent = tuple[object, NDArray[np.uint8] | None]


class RayHost:
    """A `larder.pipelines.workers.WorkerHost` of Ray actors. Connects to Ray like ``ray.init()``, unless this process is
    connected.

    Args:
        payload: the task of the pipeline, from `larder.pipelines.worker.pickled`.
        heartbeat: seconds between two heartbeats.
        options: of the actors, as ``ray.remote`` takes them.

    Raises:
        PipelineError: Ray is not installed, or this process is a Ray client outside of the cluster.
    """

    advice: ClassVar[str] = "`ray status` says whether the cluster has room for them, `ray list actors` why they ended"

    def __init__(self, payload: bytes, heartbeat: float = HEARTBEAT, options: Mapping[str, Any] | None = None) -> None:
        self._ray = connected()
        self._actor = self._ray.remote(InputWorker).options(**{**OPTIONS, **(options or {}), **_FIXED})
        self._payload = self._ray.put(payload)  # once for each machine, not for each worker
        self._heartbeat = heartbeat
        self._actors: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._events: list[tuple[int, Event]] = []
        self._finish = weakref.finalize(self, _end, os.getpid(), self._ray, self._actors, self._streams)

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        actor = self._actors[worker] = self._actor.remote(self._heartbeat)
        self._streams[worker] = actor.events.options(num_returns="streaming").remote(self._payload)

    def assign(self, worker: int, split: Split) -> None:
        """See `WorkerHost`."""
        self._give(worker, split)

    def retire(self, worker: int) -> None:
        """See `WorkerHost`."""
        self._give(worker, None)

    def kill(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._actors:
            self._ray.kill(self._actors[worker])

    def remote(self, worker: int) -> bool:
        """See `WorkerHost`."""
        return True

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """See `WorkerHost`."""
        ready = self._ready(seconds, 1)
        with interrupts_deferred():
            while ready:
                for worker in ready:
                    self._events.append((worker, self._next_event(worker)))
                ready = self._ready(0.0, len(self._streams))
        return self._events

    def close(self) -> None:
        """See `WorkerHost`."""
        self._finish()

    def _give(self, worker: int, split: Split | None) -> None:
        # A dead worker shows by the end of its stream.
        if worker in self._actors:
            self._actors[worker].give.options(num_returns=0).remote(split)

    def _ready(self, seconds: float, most: int) -> list[int]:
        """Workers whose next event has arrived, or whose stream has ended."""
        if not self._streams:
            return []
        workers = {stream: worker for worker, stream in self._streams.items()}
        ready, _ = self._ray.wait(list(workers), num_returns=most, timeout=seconds)
        return [workers[stream] for stream in ready]

    def _next_event(self, worker: int) -> Event:
        try:
            message, data = self._ray.get(next(self._streams[worker]), timeout=FETCHING)
        except StopIteration:
            return self._ended(worker, "it retired")
        except self._ray.exceptions.RayError as error:
            return self._ended(worker, _in_a_line(error))
        if isinstance(message, SentPart):
            return message.received(memoryview(b"") if data is None else memoryview(data))
        event: Event = message
        return event

    def _ended(self, worker: int, reason: str) -> Ended:
        self.kill(worker)  # a retired worker frees its place on the cluster
        del self._actors[worker], self._streams[worker]
        return Ended(reason)


class InputWorker:
    """The actor.

    Args:
        heartbeat: seconds between two heartbeats.
    """

    cannot_load = (
        "Modules of your own must be on all machines of the cluster, "
        "which ray.init(runtime_env={'working_dir': '.'}) sends them to"
    )

    def __init__(self, heartbeat: float) -> None:
        self._worker = SplitWorker(self, heartbeat)
        self._events: SimpleQueue[_Sent | BaseException | None] = SimpleQueue()

    def events(self, payload: bytes) -> Iterator[_Sent]:
        """Work; yields events for the trainer, each with the memory of its part.

        Args:
            payload: the pickled `larder.pipelines.workers.WorkerTask`.
        """
        threading.Thread(target=self._work, args=(payload,), daemon=True).start()
        while isinstance(event := self._events.get(), tuple):
            yield event
        if event is not None:
            raise event

    def give(self, split: Split | None) -> None:
        """Queue a split; ``None`` retires this worker."""
        self._worker.give(split)

    def memory(self) -> PartBytes:
        """See `larder.pipelines.worker.WorkerLink`."""
        return PartBytes()

    def send(self, message: object, memory: Any = None) -> None:
        """See `larder.pipelines.worker.WorkerLink`."""
        self._events.put((message, None if memory is None else memory.array()))

    def _work(self, payload: bytes) -> None:
        failed = None
        try:
            self._worker.prepare(payload)
            self._worker.work()
        except BaseException as error:
            failed = error
        self._events.put(failed)


class PartBytes:
    """Elements of one part, one after the other; Ray copies them into its object store, from where the trainer reads them."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self._data)

    def append(self, element: Encoded) -> tuple[int, int]:
        """Copy an element; returns its offset and size."""
        start = -(-len(self._data) // ALIGNMENT) * ALIGNMENT
        self._data += bytes(start - len(self._data))
        for piece in element.buffers():
            self._data += piece
        return start, element.size

    def array(self) -> NDArray[np.uint8] | None:
        """The elements, which Ray passes on unchanged; ``None`` without any."""
        return np.frombuffer(self._data, np.uint8) if self._data else None

    def close(self) -> None:
        """See `larder.pipelines.worker.PartMemory`."""


def connected() -> Any:
    """The module ``ray``, connected to a cluster.

    Raises:
        PipelineError: Ray is not installed, or this process is a Ray client outside of the cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise PipelineError("workers=\"ray\" needs Ray: pip install 'larder[ray]'") from error
    if not ray.is_initialized():
        ray.init()
    client: Any = ray.util.client.ray
    if client.is_connected():
        raise PipelineError(
            'workers="ray" needs a training process on a machine of the cluster, not a Ray client (ray://): elements come '
            "through Ray's shared memory"
        )
    return ray


def elsewhere() -> Any:
    """Ray's strategy of scheduling for actors that use another machine than this one, as long as one has room.

    Raises:
        PipelineError: see `connected`.
    """
    ray = connected()
    strategies = ray.util.scheduling_strategies
    here = ray.get_runtime_context().get_node_id()
    return strategies.NodeLabelSchedulingStrategy(hard={}, soft={"ray.io/node-id": strategies.NotIn(here)})


def free_cpus() -> int:
    """The cluster's unreserved CPUs.

    Raises:
        PipelineError: see `connected`.
    """
    return int(connected().available_resources().get("CPU", 0))


def _in_a_line(error: BaseException) -> str:
    """The first line of Ray's long error message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _end(owner: int, ray: Any, actors: dict[int, Any], streams: dict[int, Any]) -> None:
    if (
        os.getpid() == owner and ray.is_initialized()
    ):  # not in a forked copy, and not after Ray's end, which ends actors
        for actor in actors.values():
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
    actors.clear()
    streams.clear()
