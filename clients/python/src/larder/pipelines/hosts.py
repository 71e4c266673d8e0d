"""The place of a pipeline's input workers, and their first number: the option ``workers=``."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from larder.base.errors import LarderWarning
from larder.base.options import whole_number
from larder.pipelines.local_first import LocalFirstHost
from larder.pipelines.processes import ProcessHost
from larder.pipelines.ray_actors import RayHost, all_cpus, elsewhere, free_cpus
from larder.pipelines.ray_pool import SharedActors, WorkerPool, pool_name
from larder.pipelines.workers import WorkerHost, WorkerTask

_ON_RAY = re.compile(r"(local\+)?ray(?::([1-9]\d{0,5}))?")


@dataclass(frozen=True)
class WorkerChoice:
    """The user's choice of workers.

    Args:
        number: of workers; 0: compute in the training process; ``None``: not set.
        on_ray: whether they are actors of a Ray cluster, not processes of this machine.
        ray_options: of the actors.
        local_first: whether actors come only after as many processes as this machine has cores for.
        pool: shares the actors; ``None``: they are this pipeline's own.
    """

    number: int | None = None
    on_ray: bool = False
    ray_options: Mapping[str, Any] | None = None
    local_first: bool = False
    pool: WorkerPool | None = None

    @classmethod
    def of(
        cls, workers: int | str | None, ray_options: Mapping[str, Any] | None, pool: WorkerPool | None = None
    ) -> WorkerChoice:
        """The choice from the options ``workers=``, ``ray_options=`` and ``pool=``.

        Raises:
            ValueError: invalid value.
        """
        if isinstance(workers, str):
            match = _ON_RAY.fullmatch(workers)
            if match is None:
                raise ValueError(
                    f'workers must be a number, "ray" or "local+ray", or one of these, ":" and a number, not {workers!r}'
                )
            if pool is not None and not isinstance(pool, WorkerPool):
                raise ValueError(f"pool must be a larder.WorkerPool, not {pool!r}")
            return cls(int(match[2]) if match[2] else None, True, ray_options, bool(match[1]), pool)
        for name, value in (("ray_options", ray_options), ("pool", pool)):
            if value is not None:
                raise ValueError(f'{name}= needs workers="ray"')
        return cls(None if workers is None else whole_number("workers", workers, 0))

    def host(self, task: WorkerTask, payload: bytes, heartbeat: float) -> WorkerHost:
        """A host of workers outside of this process.

        Args:
            task: their task.
            payload: the same, pickled.
            heartbeat: seconds between two heartbeats.

        Raises:
            PipelineError: this process may not start workers.
        """
        if not self.on_ray:
            return ProcessHost(payload, heartbeat)
        options = {**(self.ray_options or {})}
        shared = self.shared(task, options)
        if self.local_first and shared is None:
            options.setdefault("scheduling_strategy", elsewhere())
        cluster = RayHost(payload, heartbeat, options, shared)
        return LocalFirstHost(ProcessHost(payload, heartbeat), cluster, local_places()) if self.local_first else cluster

    def shared(self, task: WorkerTask, options: Mapping[str, Any]) -> SharedActors | None:
        """The pool for a task; ``None`` if actors are not to be shared, or cannot be: then with a warning.

        Raises:
            PipelineError: see `larder.pipelines.ray_actors.connected`.
        """
        if self.pool is None:
            return None
        name, reason = pool_name(task, options)
        if name:
            return SharedActors(name, options, self.pool)
        warnings.warn(
            f"actors are not shared, because functions cannot be compared: {reason}", LarderWarning, stacklevel=2
        )
        return None

    def default(self, world: int) -> int:
        """Number of workers if none is set: the usable cores, or this rank's part of the cluster's free CPUs.

        With local ones first, it is this machine's part alone: without a fleet nobody measures whether more would help.

        Args:
            world: number of training processes, which share a cluster.
        """
        if self.local_first:
            return local_places()
        if not self.on_ray:
            return usable_cores()
        # Idle actors of a pool have CPUs that are not free, and are for this pipeline.
        return max(1, (free_cpus() if self.pool is None else min(self.pool.workers, all_cpus())) // world)


def local_places() -> int:
    """Workers that this training process may start on its machine: its part of the cores, which it shares with the other ranks
    there (``LOCAL_WORLD_SIZE``, as torchrun sets it)."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cores() // max(1, int(ranks) if ranks.isdecimal() else 1))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
