"""Limits an origin's sending: bytes per second for all readers together, and a delay before each answer."""

from __future__ import annotations

import asyncio

PIECE = 16 * 1024
"""Bytes that are sent at a time; readers take turns piece by piece, so each gets a fair share."""


class SendingPace:
    """The sending side of a slow link.

    Args:
        bandwidth: bytes per second.
        latency: seconds before each answer.
    """

    def __init__(self, bandwidth: float, latency: float = 0.0) -> None:
        self._bandwidth = bandwidth
        self._latency = latency
        self._free_at = 0.0

    async def before_answer(self) -> None:
        """Wait for the latency of an answer."""
        if self._latency:
            await asyncio.sleep(self._latency)

    async def send(self, size: int) -> None:
        """Wait until ``size`` bytes have had their turn and are sent."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + size / self._bandwidth
        await asyncio.sleep(self._free_at - now)
