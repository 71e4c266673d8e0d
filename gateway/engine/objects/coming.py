"""The body of an answer that is coming, from the origin or from another node."""

from __future__ import annotations

from typing import Protocol


class Coming(Protocol):
    """An answer whose head is there; end it with ``release`` or ``abort``."""

    async def next_chunk(self) -> bytes:
        """What has arrived; empty at the end. Raises LarderError when the rest does not come."""

    def release(self) -> None:
        """The whole body was read."""

    def abort(self) -> None:
        """Nobody wants the rest. Harmless after ``release``."""
