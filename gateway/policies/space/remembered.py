"""The manager's memory between decisions: it travels in ``Plan.memory`` as JSON, and outlives the leader.

What cannot be read (another version wrote it, somebody edited it) is forgotten, job by job and dataset by dataset: the job is
probed again, the chunks in the plan stay. Nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gateway.policies.space.chunks import RotationMemory
from gateway.policies.space.probing import ProbeState
from gateway.policies.space.stream_space import StreamMemory

T = TypeVar("T")
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class RememberedJob:
    """A job. ``full`` and ``chunked``: its benefit as measured while its dataset was held so, 0 unknown."""

    dataset: str
    probe: ProbeState = field(default_factory=ProbeState)
    full: float = 0.0
    chunked: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {"dataset": self.dataset, "probe": self.probe.to_json(), "full": self.full, "chunked": self.chunked}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RememberedJob:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        probe = ProbeState.from_json(document["probe"])
        return cls(str(document["dataset"]), probe, float(document["full"]), float(document["chunked"]))


@dataclass(frozen=True, slots=True)
class ManagerMemory:
    """All of it.

    ``capacity``: the bytes that are believed in, 0 if none yet; ``below``: since when there have been fewer, in seconds.
    """

    capacity: int = 0
    below: float | None = None
    jobs: Mapping[str, RememberedJob] = field(default_factory=dict)
    rotations: Mapping[str, RotationMemory] = field(default_factory=dict)
    streams: StreamMemory = field(default_factory=StreamMemory)

    def believing(self, capacity: int, now: float, patience: float) -> ManagerMemory:
        """The same, of a fleet that has ``capacity`` now. More is believed at once, less after ``patience`` seconds."""
        if capacity >= self.capacity:
            return replace(self, capacity=capacity, below=None)
        below = now if self.below is None else min(self.below, now)
        if now - below >= patience:
            return replace(self, capacity=capacity, below=None)
        return replace(self, below=below)

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "capacity": self.capacity,
            "below": self.below,
            "jobs": {name: one.to_json() for name, one in self.jobs.items()},
            "rotations": {dataset: one.to_json() for dataset, one in self.rotations.items()},
            "streams": self.streams.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ManagerMemory:
        """As much of it as can be read; raises nothing."""
        try:
            capacity = int(document["capacity"])
            below = None if document["below"] is None else float(document["below"])
        except _UNREADABLE:
            capacity, below = 0, None
        jobs = _readable(document.get("jobs"), RememberedJob.from_json)
        rotations = _readable(document.get("rotations"), RotationMemory.from_json)
        return cls(capacity, below, jobs, rotations, StreamMemory.from_json(document.get("streams")))


def _readable(document: object, read: Callable[[Mapping[str, Any]], T]) -> dict[str, T]:
    found = {}
    for name, value in document.items() if isinstance(document, Mapping) else ():
        try:
            found[name] = read(value)
        except _UNREADABLE:
            continue
    return found
