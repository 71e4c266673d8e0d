"""When blobs were last used, gathered in memory and written down in batches: a hit costs one dictionary entry."""

from __future__ import annotations


class Recency:
    """Uses that the index does not know yet, at most ``limit`` blobs."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._used: dict[bytes, float] = {}

    def touch(self, digest: bytes, now: float) -> bool:
        """Note a use; whether it is time to write everything down."""
        self._used[digest] = now
        return len(self._used) >= self._limit

    def take(self) -> dict[bytes, float]:
        """Everything noted since the last call."""
        used, self._used = self._used, {}
        return used
