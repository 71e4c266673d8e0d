"""The status of a store, for metrics, admin pages and /-/readyz."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.model.units import format_size
from gateway.policies.health.breaker import BreakerState
from gateway.policies.watermarks import falls_short


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """``bytes``, ``blobs``, ``capacity``, ``datasets``, ``reserve`` and ``room`` are the node's; the counters are this worker's.

    ``bytes`` are those of blobs, ``datasets`` the bytes of registrations that count against the capacity. ``skipped_files`` are
    files that could not be removed. ``room`` is the bytes of blobs that the file system allows, at most ``capacity`` less
    ``datasets``; 0 while the disk is not in use.
    """

    bytes: int
    blobs: int
    capacity: int
    datasets: int
    reserve: int
    room: int
    filling: int
    state: BreakerState
    cause: str
    open_files: int
    corrupt_dropped: int
    missing_dropped: int
    evicted_blobs: int
    evicted_bytes: int
    released_bytes: int
    keeper: bool
    skipped_files: int

    @property
    def shortage(self) -> str:
        """The warning for a file system without room for the capacity; empty if there is enough."""
        if self.state is BreakerState.DOWN or not falls_short(self.room, self.capacity - self.datasets):
            return ""
        return (
            f"the file system has too little free space beside cache.reserve ({format_size(self.reserve)}): only "
            f"{format_size(self.room)} of cache.capacity ({format_size(self.capacity)}) can be used; "
            "free some space, or lower cache.capacity"
        )
