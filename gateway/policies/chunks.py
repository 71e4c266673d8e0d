"""The rotation of a dataset of which two chunks are held: what is loaded next, and when a chunk leaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ChunkReason(StrEnum):
    """What happened to a chunk, and why."""

    STARTED = "started"
    """Nodes begin to load it."""
    LOADED = "loaded"
    """Every node has its part of it; new jobs begin here."""
    MARKED = "marked"
    """A newer one is complete: only those that use it still do."""
    UNREFERENCED = "unreferenced"
    """It left: no job uses it, or is about to."""
    FORCED = "forced"
    """It left although a job uses it: others finished it long ago."""


@dataclass(frozen=True, slots=True)
class ChunkEvent:
    """One thing that happened to one chunk; ``jobs`` lost it, if it was forced out."""

    reason: ChunkReason
    chunk: int
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobView:
    """What the rotation knows of a job.

    ``upcoming``: the chunk in use first, then the rest of its epoch in order, then the first ones of the next; the first
    ``epoch_left`` belong to this epoch.
    """

    name: str
    upcoming: tuple[int, ...]
    epoch_left: int
