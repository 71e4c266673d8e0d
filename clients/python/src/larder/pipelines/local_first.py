"""Input workers on this machine's cores first, and on a cluster when there are more (Cachew, ATC 2022, section 7).

The number of workers is decided elsewhere; this host only places them. So a job pays for the cluster only while workers beyond
the cores still shorten the time per batch, and scaling down takes the cluster's workers first.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import ClassVar

from larder.pipelines.interrupts import interrupts_deferred
from larder.pipelines.processes import ProcessHost
from larder.pipelines.ray_actors import RayHost
from larder.pipelines.splits import Split
from larder.pipelines.workers import Ended, Event, WorkerHost

LISTENING = 0.01
"""Seconds to wait for the cluster's events before looking at this machine's. Workers compute a second split meanwhile."""


class LocalFirstHost:
    """A `larder.pipelines.workers.WorkerHost` of two others.

    Args:
        local: runs workers on this machine.
        cluster: runs the others.
        places: workers that this machine has room for.
        clock: monotonic seconds.
    """

    advice: ClassVar[str] = f"{ProcessHost.advice}; {RayHost.advice}"

    def __init__(
        self, local: WorkerHost, cluster: WorkerHost, places: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._local = local
        self._cluster = cluster
        self._places = places
        self._clock = clock
        self._hosts: dict[int, WorkerHost] = {}
        self._leaving: set[int] = set()
        self._events: list[tuple[int, Event]] = []

    def start(self, worker: int) -> None:
        """See `WorkerHost`."""
        taken = sum(host is self._local for number, host in self._hosts.items() if number not in self._leaving)
        host = self._local if taken < self._places else self._cluster
        host.start(worker)
        self._hosts[worker] = host

    def assign(self, worker: int, split: Split) -> None:
        """See `WorkerHost`."""
        if worker in self._hosts:
            self._hosts[worker].assign(worker, split)

    def retire(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._hosts:
            self._leaving.add(worker)
            self._hosts[worker].retire(worker)

    def kill(self, worker: int) -> None:
        """See `WorkerHost`."""
        if worker in self._hosts:
            self._leaving.add(worker)
            self._hosts[worker].kill(worker)

    def remote(self, worker: int) -> bool:
        """See `WorkerHost`."""
        return self._hosts.get(worker) is self._cluster

    def poll(self, seconds: float) -> list[tuple[int, Event]]:
        """See `WorkerHost`."""
        if self._cluster not in self._hosts.values():
            self._take(self._local, seconds)
            return self._events
        until = self._clock() + seconds
        while True:
            self._take(self._local, 0.0)
            left = 0.0 if self._events else max(0.0, until - self._clock())
            self._take(self._cluster, min(LISTENING, left))
            if self._events or not left:
                return self._events

    def close(self) -> None:
        """See `WorkerHost`."""
        self._local.close()
        self._cluster.close()

    def _take(self, host: WorkerHost, seconds: float) -> None:
        arrived = host.poll(seconds)
        with interrupts_deferred():
            for worker, event in arrived:
                if isinstance(event, Ended):
                    self._hosts.pop(worker, None)
                    self._leaving.discard(worker)
            self._events += arrived
            arrived.clear()
