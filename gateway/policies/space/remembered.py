"""The manager's memory between decisions: it travels with the plan, and outlives the leader.

Unreadable parts (another version wrote them, or an operator edited them) are forgotten job by job (gateway/fleet/jobs/plans.py):
the job is probed again, but keeps its space in the plan. Nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.policies.space.probing import ProbeState
from gateway.policies.space.stream_space import StreamMemory


@dataclass(frozen=True, slots=True)
class RememberedJob:
    """A job on a dataset, and its measurements."""

    dataset: str
    probe: ProbeState = field(default_factory=ProbeState)


@dataclass(frozen=True, slots=True)
class ManagerMemory:
    """The whole memory.

    ``capacity``: the bytes assumed for the fleet, 0 if none yet; ``below``: since when there have been fewer, in seconds.
    """

    capacity: int = 0
    below: float | None = None
    jobs: Mapping[str, RememberedJob] = field(default_factory=dict)
    streams: StreamMemory = field(default_factory=StreamMemory)

    def probe(self, job: str) -> ProbeState | None:
        """The measurements of a job, ``tenant/job``; ``None`` if there are none."""
        known = self.jobs.get(job)
        return None if known is None else known.probe

    def believing(self, capacity: int, now: float, patience: float) -> ManagerMemory:
        """The memory of a fleet with ``capacity`` now: an increase counts at once, a decrease after ``patience`` seconds."""
        if capacity >= self.capacity:
            return replace(self, capacity=capacity, below=None)
        below = now if self.below is None else min(self.below, now)
        if now - below >= patience:
            return replace(self, capacity=capacity, below=None)
        return replace(self, below=below)
