"""A limit on what an origin sends: bytes per second for all its readers together, and a delay before each answer."""

from __future__ import annotations

import asyncio

PIECE = 16 * 1024
"""Bytes that are sent at a time; readers take turns piece by piece, so each gets a fair share."""


class SendingPace:
    """The sending side of a narrow road.

    Args:
        bandwidth: bytes per second.
        latency: seconds before each answer.
    """

    def __init__(self, bandwidth: float, latency: float = 0.0) -> None:
        self._bandwidth = bandwidth
        self._latency = latency
        self._free_at = 0.0

    async def before_answer(self) -> None:
        """Wait as long as an answer takes to begin."""
        if self._latency:
            await asyncio.sleep(self._latency)

    async def send(self, size: int) -> None:
        """Wait for the turn of ``size`` bytes, and until they are through."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + size / self._bandwidth
        await asyncio.sleep(self._free_at - now)
