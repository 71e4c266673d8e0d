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
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from larder.base.errors import PipelineError
from larder.pipelines.crew import HEARTBEAT
from larder.pipelines.elements import ALIGNMENT, Encoded
from larder.pipelines.fingerprint import Fingerprint
from larder.pipelines.interrupts import interrupts_deferred
from larder.pipelines.splits import Split
from larder.pipelines.worker import SentPart, SplitWorker
from larder.pipelines.workers import Ended, Event, Recalled

FETCHING = 30.0
"""Seconds that a part may take from the object store of its machine to the trainer's; after that its worker counts as dead."""
_OPTIONS: Mapping[str, Any] = {"num_cpus": 1}
"""Defaults of an actor's options."""
_SPLITS = "splits"
"""The one thread of an actor that takes splits, so that they keep their order."""
_FIXED: Mapping[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3}
"""Options of every actor: threads for the events of its pipeline and of the one before, and to wait for the end of its work."""
CLEARING = 10.0
"""Seconds that the function which an actor computes may take to return when its pipeline is gone."""

_Sent = tuple[object, NDArray[np.uint8] | None]


class SharedSupply(Protocol):
    """Actors that several pipelines share, one pipeline after the other (`larder.pipelines.ray_pool`).

    A request yields a lease: its number and the actor; ``None`` if it was withdrawn.
    """

    def lease(self, worker: int) -> Any:
        """Ask for an actor; returns the reference to its lease."""

    def again(self, worker: int) -> Any | None:
        """Ask a new pool, because the one that was asked has ended; ``None`` if new ones end, too."""

    def answered(self) -> None:
        """A request was answered: its pool works."""

    def cancel(self, worker: int) -> None:
        """Withdraw a request."""

    def give_back(self, lease: int, *, alive: bool) -> None:
        """An actor is not needed any more, or is dead."""

    def leave(self) -> None:
        """Give everything back."""


class RayHost:
    """A `larder.pipelines.workers.WorkerHost` of Ray actors. Connects to Ray like ``ray.init()``, unless this process is
    connected.

    Args:
        payload: the task of the pipeline, from `larder.pipelines.worker.pickled`.
        heartbeat: seconds between two heartbeats.
        options: of the actors, as ``ray.remote`` takes them.
        shared: lends actors; by default they are this host's own.

    Raises:
        PipelineError: Ray is not installed, or this process is a Ray client outside of the cluster.
    """

    advice: ClassVar[str] = "`ray status` says whether the cluster has room for them, `ray list actors` why they ended"

    def __init__(
        self,
        payload: bytes,
        heartbeat: float = HEARTBEAT,
        options: Mapping[str, Any] | None = None,
        shared: SharedSupply | None = None,
    ) -> None:
        self._ray = connected()
        self._actor = actor_class(self._ray, options or {})
        self._shared = shared
        self._requests: dict[int, Any] = {}
        self._cancelled: set[int] = set()
        self._leases: dict[int, int] = {}
        self._payload = self._ray.put(payload)  # once for each machine, not for each worker
        self._heartbeat = heartbeat
        self._actors: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._events: list[tuple[int, Event]] = []
        self._finish = weakref.finalize(self, _end, os.getpid(), self._ray, self._actors, self._streams, shared)

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        if self._shared is None:
            self._begin(worker, 0, self._actor.remote())
        else:
            self._requests[worker] = self._shared.lease(worker)

    def _begin(self, worker: int, lease: int, actor: Any) -> None:
        self._actors[worker], self._leases[worker] = actor, lease
        events = actor.events.options(num_returns="streaming")
        self._streams[worker] = events.remote(lease, self._payload, self._heartbeat)

    def assign(self, worker: int, split: Split) -> None:
        """See `WorkerHost`."""
        self._give(worker, split)

    def retire(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._requests:
            self._cancel(worker)
        self._give(worker, None)

    def kill(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._requests:
            self._cancel(worker)
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
                    event = self._lent(worker) if worker in self._requests else self._next_event(worker)
                    if event is not None:
                        self._events.append((worker, event))
                ready = self._ready(0.0, len(self._streams) + len(self._requests))
        return self._events

    def close(self) -> None:
        """See `WorkerHost`."""
        self._finish()

    def _give(self, worker: int, split: Split | None) -> None:
        # A dead worker shows by the end of its stream.
        if worker in self._actors:
            give = self._actors[worker].give.options(num_returns=0, concurrency_group=_SPLITS)
            give.remote(self._leases[worker], split)

    def _cancel(self, worker: int) -> None:
        assert self._shared is not None
        self._shared.cancel(worker)
        self._cancelled.add(worker)

    def _ready(self, seconds: float, most: int) -> list[int]:
        """Workers whose next event has arrived, whose stream has ended, or whose request was answered."""
        if not self._streams and not self._requests:
            return []
        workers = {source: worker for worker, source in (*self._streams.items(), *self._requests.items())}
        ready, _ = self._ray.wait(list(workers), num_returns=most, timeout=seconds)
        return [workers[source] for source in ready]

    def _lent(self, worker: int) -> Event | None:
        """Begin with an actor that was lent; an event only if there is none."""
        assert self._shared is not None
        try:
            lease = self._ray.get(self._requests.pop(worker))
        except self._ray.exceptions.RayError as error:
            request = None if worker in self._cancelled else self._shared.again(worker)
            if request is None:
                return Ended(_in_a_line(error))
            self._requests[worker] = request
            return None
        self._shared.answered()
        if worker in self._cancelled:
            self._cancelled.discard(worker)
            if lease is not None:
                self._shared.give_back(lease[0], alive=True)
            return Ended("it retired")
        if lease is None:
            return Ended("the workers of its pool do not start")
        self._begin(worker, *lease)
        return None

    def _next_event(self, worker: int) -> Event:
        try:
            message, data = self._ray.get(next(self._streams[worker]), timeout=FETCHING)
        except StopIteration:
            return self._ended(worker, "it retired", alive=True)
        except self._ray.exceptions.RayError as error:
            return self._ended(worker, _in_a_line(error), alive=False)
        if isinstance(message, SentPart):
            return message.received(memoryview(b"") if data is None else memoryview(data))
        event: Event = message
        return event

    def _ended(self, worker: int, reason: str, *, alive: bool) -> Ended:
        if self._shared is None or not alive:
            self.kill(worker)  # a retired worker frees its place on the cluster
        if self._shared is not None:
            self._shared.give_back(self._leases[worker], alive=alive)
        del self._actors[worker], self._streams[worker], self._leases[worker]
        return Ended(reason)


class InputWorker:
    """The actor. It computes for one pipeline at a time, under a lease; the numbers of an actor's leases grow."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._work: _LeasedWork | None = None
        self._over = -1
        self._marks: Mapping[int, Fingerprint] | None = None

    def events(self, lease: int, payload: bytes, heartbeat: float) -> Iterator[_Sent]:
        """Work; yields events for the trainer, each with the memory of its part.

        Args:
            lease: number of the lease.
            payload: the pickled `larder.pipelines.workers.WorkerTask`. Under later leases its functions are the same.
            heartbeat: seconds between two heartbeats.
        """
        work = self._leased(lease)
        if work is None:
            return
        yield from work.events(payload, heartbeat, self._marks)
        self._marks = work.worker.marks

    def give(self, lease: int, split: Split | None) -> None:
        """Queue a split; ``None`` retires this worker."""
        work = self._leased(lease)
        if work is not None:
            work.worker.give(split)

    def recall(self, lease: int) -> None:
        """Ask the trainer to give this worker back."""
        work = self._leased(lease)
        if work is not None:
            work.tell(Recalled())

    def clear(self, lease: int) -> bool:
        """End the work under a lease and all before it; ``False`` if a function did not return in time."""
        with self._changing:
            self._over = max(self._over, lease)
            work, self._work = self._work, None
        return work is None or work.end(CLEARING)

    def _leased(self, lease: int) -> _LeasedWork | None:
        """The work under a lease; ``None`` if it is over: a late call of a trainer that is gone."""
        with self._changing:
            if lease <= self._over:
                return None
            if self._work is None:
                self._work = _LeasedWork()
            return self._work


class _LeasedWork:
    """The work of an actor under one lease; a `larder.pipelines.worker.WorkerLink`."""

    cannot_load = (
        "Modules of your own must be on all machines of the cluster, "
        "which ray.init(runtime_env={'working_dir': '.'}) sends them to"
    )

    def __init__(self) -> None:
        self.worker = SplitWorker(self, HEARTBEAT)
        self._events: SimpleQueue[_Sent | BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def events(self, payload: bytes, heartbeat: float, marks: Mapping[int, Fingerprint] | None) -> Iterator[_Sent]:
        """The events of the work, to its end."""
        self.worker.heartbeat = heartbeat
        self._thread = threading.Thread(target=self._work, args=(payload, marks), daemon=True)
        self._thread.start()
        while isinstance(event := self._events.get(), tuple):
            yield event
        if event is not None:
            raise event

    def memory(self) -> PartBytes:
        """See `larder.pipelines.worker.WorkerLink`."""
        return PartBytes()

    def send(self, message: object, memory: Any = None) -> None:
        """See `larder.pipelines.worker.WorkerLink`."""
        if self._ended:
            raise EOFError
        self._events.put((message, None if memory is None else memory.array()))

    def tell(self, event: Event) -> None:
        """Send an event that the work does not make."""
        self._events.put((event, None))

    def end(self, seconds: float) -> bool:
        """End the work without its splits; ``False`` if a function does not return."""
        self._ended = True
        self.worker.give(None)
        self._events.put(None)
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _work(self, payload: bytes, marks: Mapping[int, Fingerprint] | None) -> None:
        failed = None
        try:
            self.worker.prepare(payload, marks)
            self.worker.work()
        except BaseException as error:
            failed = error
        self._events.put(failed)


def actor_class(ray: Any, options: Mapping[str, Any]) -> Any:
    """The class of actors that are `InputWorker`.

    Args:
        ray: the module.
        options: of the actors, as ``ray.remote`` takes them.
    """
    actors: Any = ray.remote(concurrency_groups={_SPLITS: 1})(InputWorker)
    return actors.options(**{**_OPTIONS, **options, **_FIXED})


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


def all_cpus() -> int:
    """The cluster's CPUs.

    Raises:
        PipelineError: see `connected`.
    """
    return int(connected().cluster_resources().get("CPU", 0))


def _in_a_line(error: BaseException) -> str:
    """The first line of Ray's long error message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _end(owner: int, ray: Any, actors: dict[int, Any], streams: dict[int, Any], shared: SharedSupply | None) -> None:
    if (
        os.getpid() == owner and ray.is_initialized()
    ):  # not in a forked copy, and not after Ray's end, which ends actors
        if shared is not None:
            shared.leave()
        for actor in actors.values() if shared is None else ():
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
    actors.clear()
    streams.clear()
