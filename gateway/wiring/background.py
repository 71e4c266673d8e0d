"""Work that goes on until the worker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any


def keep_running(
    work: Coroutine[Any, Any, None], stack: AsyncExitStack, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run ``work`` until the stack is closed, and call ``then`` when it has ended."""
    task = asyncio.get_running_loop().create_task(work)

    async def end() -> None:
        while not task.done():
            task.cancel()
            # redis-py may turn a cancellation into a connection error, which a loop takes for a reason to go on.
            await asyncio.wait([task], timeout=0.1)
        if then is not None:
            await then()

    stack.push_async_callback(end)
