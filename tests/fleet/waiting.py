"""Waiting for what Redis will say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[object]], within: float = 15.0) -> None:
    """Ask until the answer is true. Raises TimeoutError after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never came true")
        await asyncio.sleep(0.01)
