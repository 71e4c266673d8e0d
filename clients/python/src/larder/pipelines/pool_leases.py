"""Which pipeline has which worker of a shared pool. Pure.

A worker computes for one pipeline at a time (Cachew, ATC 2022, section 4.5), so that a function that hangs or kills its process
costs other pipelines nothing. A pool has at most ``most`` workers, but one for each pipeline at least: ranks that wait for each
other would otherwise wait forever.

Shares are max-min fair. Of the pipelines that wait, the one with the fewest workers gets the next, be it idle or just started. If
none is about to come, because of the bound or a full cluster, one is recalled from the pipeline with the most, as long as that
leaves it with at least as many as the one that waits then has.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import NamedTuple


class Grant(NamedTuple):
    """A worker for a request."""

    user: str
    ticket: int
    worker: int


class PoolLeases:
    """The leases of one pool.

    Args:
        most: workers.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._users: set[str] = set()
        self._waiting: dict[tuple[str, int], None] = {}
        """Requests by user and ticket, the oldest first."""
        self._held: dict[int, str] = {}
        self._recalled: set[int] = set()
        self._clearing: set[int] = set()
        self._starting: set[int] = set()
        self._late: set[int] = set()
        """Those of them that a cluster without room may not start soon."""
        self._idle: list[int] = []
        """The last one used is the next to be given: the others may grow cold."""
        self._numbers = count()

    @property
    def users(self) -> int:
        """Number of pipelines."""
        return len(self._users)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._held) + len(self._clearing) + len(self._starting) + len(self._idle)

    @property
    def recalled(self) -> frozenset[int]:
        """Workers that their pipelines should give back."""
        return frozenset(self._recalled)

    @property
    def idle(self) -> tuple[int, ...]:
        """Workers without work."""
        return tuple(self._idle)

    def join(self, user: str) -> None:
        """A pipeline begins to use the pool."""
        self._users.add(user)

    def leave(self, user: str) -> list[int]:
        """A pipeline is gone; returns the workers that it had, which are to be cleared."""
        self._users.discard(user)
        self._waiting = {request: None for request in self._waiting if request[0] != user}
        return [worker for worker, holder in self._held.items() if holder == user]

    def ask(self, user: str, ticket: int) -> None:
        """A pipeline wants one more worker. Tickets tell its requests apart."""
        if user in self._users:
            self._waiting[user, ticket] = None

    def cancel(self, user: str, ticket: int) -> bool:
        """Withdraw a request; ``False`` if it does not wait."""
        return self._waiting.pop((user, ticket), False) is None

    def start(self) -> int | None:
        """A new worker to start; ``None`` if enough will be idle, or there may be no more."""
        coming = len(self._idle) + len(self._clearing) + len(self._starting)
        if len(self._waiting) <= coming or self.workers >= max(self.most, len(self._users)):
            return None
        worker = next(self._numbers)
        self._starting.add(worker)
        return worker

    def late(self, worker: int) -> bool:
        """A worker has not started for long; ``True`` if nobody waits for it any more."""
        if worker not in self._starting:
            return False
        self._late.add(worker)
        return len(self._starting) > len(self._waiting)

    def grant(self) -> Grant | None:
        """The next worker that a pipeline gets; ``None`` if none waits, or none is idle."""
        if not self._waiting or not self._idle:
            return None
        held = Counter(self._held.values())
        user, ticket = min(self._waiting, key=lambda request: held[request[0]])
        del self._waiting[user, ticket]
        worker = self._idle.pop()
        self._held[worker] = user
        return Grant(user, ticket, worker)

    def recall(self) -> int | None:
        """A worker that its pipeline should give back for another one; ``None`` if shares are fair."""
        coming = len(self._recalled) + len(self._clearing) + len(self._starting - self._late)
        if len(self._waiting) <= coming:
            return None
        held = Counter(holder for worker, holder in self._held.items() if worker not in self._recalled)
        least = min(held[user] for user, _ in self._waiting)
        richest, most = max(held.items(), key=lambda share: share[1], default=("", 0))
        if most < least + 2:
            return None
        worker = max(
            worker for worker, holder in self._held.items() if holder == richest and worker not in self._recalled
        )
        self._recalled.add(worker)
        return worker

    def clear(self, user: str, worker: int) -> bool:
        """A worker is taken from a pipeline; ``False`` if that does not have it. It is idle once its last work has ended."""
        if self._held.get(worker) != user:
            return False
        del self._held[worker]
        self._recalled.discard(worker)
        self._clearing.add(worker)
        return True

    def ready(self, worker: int) -> None:
        """A worker has started, or its last work has ended."""
        for state in (self._starting, self._late, self._clearing):
            state.discard(worker)
        self._idle.append(worker)

    def gone(self, worker: int) -> None:
        """A worker has ended."""
        self._held.pop(worker, None)
        for state in (self._recalled, self._clearing, self._starting, self._late):
            state.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
