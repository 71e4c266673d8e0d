"""A limit on the bytes that one worker holds in memory for one purpose."""

from __future__ import annotations


class MemoryBudget:
    """Counts the bytes held."""

    def __init__(self) -> None:
        self.used = 0


class MemoryLease:
    """A part of ``MemoryBudget``, returned when the last reference to it is gone."""

    def __init__(self, memory: MemoryBudget, size: int) -> None:
        self._memory = memory
        self._size = size
        memory.used += size

    def __del__(self) -> None:
        self._memory.used -= self._size
