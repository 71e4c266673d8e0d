"""A pool of actors on a Ray cluster that pipelines share: those of one set of credentials, with the same functions.

A pool is a detached actor, the *keeper*, which Ray finds by name. It starts workers, lends them, and keeps idle ones warm:
starting an actor takes seconds, taking one over some milliseconds. Workers are children of the keeper, so that Ray ends them with
it. What it decides is in `larder.pipelines.pool_leases`.

Ray notices a pipeline that dies without leaving the pool. The pipeline owns the result of a call that does not return
(`PoolKeeper.stay`); when the owner dies, Ray raises an error in the keeper, which waits for that result.

Anybody on a Ray cluster may run code anywhere, so a name is no lock. It keeps apart what does not belong together: it is a digest
of the credentials, the fingerprint of all functions, and the options and environment of the actors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from time import monotonic
from typing import Any
from uuid import uuid4

from larder.base.options import whole_number
from larder.pipelines.fingerprint import fingerprints
from larder.pipelines.pool_leases import Grant, PoolLeases
from larder.pipelines.ray_actors import CLEARING, actor_class, connected
from larder.pipelines.stages import AUTOCACHE, Stage
from larder.pipelines.worker import dumped
from larder.pipelines.workers import WorkerTask
from larder.reading.source import IdentifiedSource

NAMESPACE = "larder"
"""The namespace of keepers on a Ray cluster."""
_ATTEMPTS = 3
"""Keepers that a pipeline starts after one has ended, before it gives up."""
_TENDING = 1.0
"""Seconds between two looks at idle workers."""
_UNUSED = 60.0
"""Seconds after which a keeper ends if no pipeline has joined it, because the one that started it died first."""
_CALLS = 10_000
"""Calls that a keeper may have open: one for each pipeline, and one for each worker that a pipeline waits for."""
_STARTING = 10.0
"""Seconds after which a worker that has not started is no longer counted on: the cluster may have no room."""
_ANSWERING = 5.0
"""Seconds within which an idle worker must answer, or the keeper takes it for dead."""


@dataclass(frozen=True)
class WorkerPool:
    """A pool of actors that pipelines with the same functions and credentials share. The bounds of the last one to join apply.

    Args:
        workers: the most actors of the pool; a pipeline gets one at least.
        warm: seconds that an actor is kept after its last use.

    Raises:
        ValueError: a value is out of range.
    """

    workers: int = 32
    warm: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", whole_number("workers", self.workers, 1))
        if isinstance(self.warm, bool) or not isinstance(self.warm, int | float) or not self.warm >= 0:
            raise ValueError(f"warm must be at least 0 seconds, not {self.warm!r}")


def pool_name(task: WorkerTask, options: Mapping[str, Any]) -> tuple[str, str]:
    """The name of the pool for a pipeline; or why its workers are not shared.

    Args:
        task: of the pipeline.
        options: of the actors.

    Raises:
        PipelineError: see `connected`.
        CredentialsMissing: no access key was found.
    """
    source, stages = task.source, task.stages
    end = Stage(AUTOCACHE, 1 + max((stage.number for stage in stages), default=0))
    functions = fingerprints((*stages, end))[end.number]
    if not functions.digest:
        return "", functions.reason
    identity = source.identity() if isinstance(source, IdentifiedSource) else dumped(source)
    numbers = [(stage.kind, stage.number) for stage in stages]
    environment = sorted(dict(connected().get_runtime_context().runtime_env).items())
    parts = identity, functions.digest, numbers, environment, sorted(options.items())
    return f"larder-inputs-{sha256(dumped(parts)).hexdigest()}", ""


class SharedActors:
    """A `larder.pipelines.ray_actors.SharedSupply`: one pipeline's view of a pool.

    Args:
        name: of the pool.
        options: of its actors, as ``ray.remote`` takes them.
        pool: its bounds.
    """

    def __init__(self, name: str, options: Mapping[str, Any], pool: WorkerPool) -> None:
        self._ray = connected()
        self._name, self._options, self._pool = name, dict(options), pool
        self._user = uuid4().hex
        self._asked: dict[int, Any] = {}
        self._ended = 0
        """Keepers that have ended since one answered."""
        self._join()

    def lease(self, worker: int) -> Any:
        """See `SharedSupply`."""
        self._asked[worker] = self._keeper
        return self._keeper.lease.remote(self._user, worker)

    def again(self, worker: int) -> Any | None:
        """See `SharedSupply`."""
        if self._asked[worker] is self._keeper:  # the first of its requests to fail
            self._ended += 1
            if self._ended > _ATTEMPTS:
                return None
            self._join()
        return self.lease(worker)

    def answered(self) -> None:
        """See `SharedSupply`."""
        self._ended = 0

    def cancel(self, worker: int) -> None:
        """See `SharedSupply`."""
        self._keeper.cancel.options(num_returns=0).remote(self._user, worker)

    def give_back(self, lease: int, *, alive: bool) -> None:
        """See `SharedSupply`."""
        self._keeper.give_back.options(num_returns=0).remote(self._user, lease, alive)

    def leave(self) -> None:
        """See `SharedSupply`."""
        with suppress(self._ray.exceptions.RayError):
            self._keeper.leave.options(num_returns=0).remote(self._user)

    def _join(self) -> None:
        keeper = self._ray.remote(PoolKeeper).options(
            name=self._name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_CALLS,
        )
        self._keeper = keeper.remote(self._options)
        self._present = self._keeper.stay.remote(self._user)
        self._keeper.join.remote(self._user, [self._present], self._pool)


class PoolKeeper:
    """The actor that has the workers of a pool.

    Ray starts the calls of an asynchronous actor in any order. So a request waits until its pipeline has joined, and what comes
    after the end of a pipeline or of a request changes nothing.

    Args:
        options: of the workers, as ``ray.remote`` takes them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._ray = connected()
        self._actor = actor_class(self._ray, options)
        self._leases = PoolLeases(1)
        self._warm = 0.0
        self._actors: dict[int, Any] = {}
        self._idle_since: dict[int, float] = {}
        self._numbers = count()
        self._lent: dict[int, tuple[int, str]] = {}
        """The latest lease of each worker, and its pipeline."""
        self._waiting: dict[tuple[str, int], asyncio.Future[tuple[int, Any] | None]] = {}
        self._staying: dict[str, asyncio.Event] = {}
        self._joined: dict[str, asyncio.Event] = {}
        self._left: set[str] = set()
        self._withdrawn: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tending = False
        self._failed = 0
        """Workers that have ended before they began, since one began."""
        self._unused = threading.Timer(_UNUSED, self._end)
        self._unused.daemon = True
        self._unused.start()

    async def stay(self, user: str) -> None:
        """Returns when a pipeline leaves; until then the result shows that the pipeline is there."""
        if user not in self._left:
            await self._staying.setdefault(user, asyncio.Event()).wait()

    async def join(self, user: str, present: list[Any], pool: WorkerPool) -> None:
        """A pipeline begins to use the pool.

        Args:
            user: names it.
            present: the reference to its call of `stay`.
            pool: bounds.
        """
        self._unused.cancel()
        if user in self._left:
            return
        self._leases.join(user)
        self._joined.setdefault(user, asyncio.Event()).set()
        self._leases.most, self._warm = pool.workers, pool.warm
        self._run(self._watch(user, present[0]))
        if not self._tending:
            self._tending = True
            self._run(self._tend())

    async def lease(self, user: str, ticket: int) -> tuple[int, Any] | None:
        """Wait for a worker; returns the number of its lease and the actor, or ``None`` if the pipeline no longer wants it."""
        if user in self._left:
            return None
        await self._joined.setdefault(user, asyncio.Event()).wait()
        if user in self._left or (user, ticket) in self._withdrawn:
            return None
        future: asyncio.Future[tuple[int, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[user, ticket] = future
        self._leases.ask(user, ticket)
        self._settle()
        return await future

    async def cancel(self, user: str, ticket: int) -> None:
        """Withdraw a request; a worker that it was given in the meantime is taken back."""
        self._withdrawn.add((user, ticket))
        self._leases.cancel(user, ticket)
        self._answer(user, ticket, None)
        self._settle()

    async def give_back(self, user: str, lease: int, alive: bool) -> None:
        """A pipeline no longer needs a worker, or has seen it end."""
        for worker in [worker for worker, lent in self._lent.items() if lent == (lease, user)]:
            if alive:
                self._clear(user, worker)
            else:
                self._drop(worker)
        self._settle()

    async def leave(self, user: str) -> None:
        """A pipeline is gone."""
        for worker in self._leases.leave(user):
            self._clear(user, worker)
        for asking, ticket in [request for request in self._waiting if request[0] == user]:
            self._answer(asking, ticket, None)
        self._left.add(user)
        self._withdrawn = {request for request in self._withdrawn if request[0] != user}
        for event in (self._staying.pop(user, None), self._joined.pop(user, None)):
            if event is not None:
                event.set()
        self._settle()

    async def _watch(self, user: str, present: Any) -> None:
        with suppress(self._ray.exceptions.RayError):
            await present
        await self.leave(user)

    async def _tend(self) -> None:
        """End workers that have been idle for ``warm`` seconds, and the pool with its last worker."""
        while self._leases.users or self._actors:
            await asyncio.sleep(_TENDING)
            for worker in self._leases.idle:
                if monotonic() - self._idle_since[worker] >= self._warm:
                    self._drop(worker)
        self._end()

    def _settle(self) -> None:
        """Lend idle workers, start missing ones, and recall those that other pipelines should have."""
        while (grant := self._leases.grant()) is not None:
            self._run(self._lend_idle(grant))
        while (worker := self._leases.start()) is not None:
            self._actors[worker] = self._actor.remote()
            self._run(self._started(worker))
        while (worker := self._leases.recall()) is not None:
            self._recall(worker)

    def _recall(self, worker: int) -> None:
        if worker in self._lent:
            self._actors[worker].recall.options(num_returns=0).remote(self._lent[worker][0])

    async def _started(self, worker: int) -> None:
        """Wait for the start of a worker; on a full cluster that may be long."""
        starting = asyncio.ensure_future(self._answers(self._actors[worker].clear.remote(-1), None))
        while not (await asyncio.wait({starting}, timeout=_STARTING))[0]:
            unwanted = self._leases.late(worker)
            if unwanted:
                self._drop(worker)
            self._settle()
            if unwanted:
                return
        if starting.result():
            self._failed = 0
            self._idle_since[worker] = monotonic()
            self._leases.ready(worker)
        else:
            self._drop(worker)
            self._failed += 1
        if self._failed >= _ATTEMPTS:
            for user, ticket in list(self._waiting):
                self._leases.cancel(user, ticket)
                self._answer(user, ticket, None)
        self._settle()

    async def _lend_idle(self, grant: Grant) -> None:
        """Lend a worker that was idle, unless it has died since, or its machine."""
        if await self._answers(self._actors[grant.worker].clear.remote(-1), _ANSWERING):
            self._lend(grant)
            return
        self._drop(grant.worker)
        if (grant.user, grant.ticket) in self._waiting:
            self._leases.ask(grant.user, grant.ticket)
        self._settle()

    def _lend(self, grant: Grant) -> None:
        lease, worker = next(self._numbers), grant.worker
        if not self._answer(grant.user, grant.ticket, (lease, self._actors[worker])):
            self._clear(grant.user, worker)  # the request was withdrawn
            return
        self._lent[worker] = lease, grant.user
        if worker in self._leases.recalled:
            self._recall(worker)

    def _answer(self, user: str, ticket: int, lease: tuple[int, Any] | None) -> bool:
        future = self._waiting.pop((user, ticket), None)
        if future is None or future.done():
            return False
        future.set_result(lease)
        return True

    def _clear(self, user: str, worker: int) -> None:
        if self._leases.clear(user, worker):
            self._run(self._cleared(worker))

    async def _cleared(self, worker: int) -> None:
        """Wait for the end of a worker's last work."""
        lease, _ = self._lent.pop(worker, (-1, ""))
        cleared = await self._answers(self._actors[worker].clear.remote(lease), CLEARING + _ANSWERING)
        if cleared and worker in self._actors:
            self._idle_since[worker] = monotonic()
            self._leases.ready(worker)
        else:
            self._drop(worker)
        self._settle()

    async def _answers(self, call: Any, seconds: float | None) -> bool:
        try:
            return bool(await asyncio.wait_for(call, seconds))
        except (self._ray.exceptions.RayError, asyncio.TimeoutError):
            return False

    def _drop(self, worker: int) -> None:
        """End a worker."""
        self._leases.gone(worker)
        self._lent.pop(worker, None)
        self._idle_since.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        self._ray.kill(self._ray.get_runtime_context().current_actor)
