"""The place of a pipeline's input workers, and their first number: the option ``workers=``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from larder.base.options import whole_number
from larder.pipelines.processes import ProcessHost
from larder.pipelines.ray_actors import RayHost, free_cpus
from larder.pipelines.workers import WorkerHost

_ON_RAY = re.compile(r"ray(?::([1-9]\d{0,5}))?")


@dataclass(frozen=True)
class WorkerChoice:
    """The user's choice of workers.

    Args:
        number: of workers; 0: compute in the training process; ``None``: not set.
        on_ray: whether they are actors of a Ray cluster, not processes of this machine.
        ray_options: of the actors.
    """

    number: int | None = None
    on_ray: bool = False
    ray_options: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, workers: int | str | None, ray_options: Mapping[str, Any] | None) -> WorkerChoice:
        """The choice from the options ``workers=`` and ``ray_options=``.

        Raises:
            ValueError: invalid value.
        """
        if isinstance(workers, str):
            match = _ON_RAY.fullmatch(workers)
            if match is None:
                raise ValueError(f'workers must be a number, "ray", or "ray:" and a number, not {workers!r}')
            return cls(int(match[1]) if match[1] else None, True, ray_options)
        if ray_options is not None:
            raise ValueError('ray_options= needs workers="ray"')
        return cls(None if workers is None else whole_number("workers", workers, 0))

    def host(self, payload: bytes, heartbeat: float) -> WorkerHost:
        """A host of workers outside of this process.

        Args:
            payload: their task, pickled.
            heartbeat: seconds between two heartbeats.

        Raises:
            PipelineError: this process may not start workers.
        """
        return RayHost(payload, heartbeat, self.ray_options) if self.on_ray else ProcessHost(payload, heartbeat)

    def default(self, world: int) -> int:
        """Number of workers if none is set: the usable cores, or this rank's part of the cluster's free CPUs.

        Args:
            world: number of training processes, which share a cluster.
        """
        return max(1, free_cpus() // world) if self.on_ray else usable_cores()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
