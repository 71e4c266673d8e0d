"""uvicorn's server, which waits for its stop instead of looking for it ten times a second."""

from __future__ import annotations

import asyncio

from uvicorn.config import Config
from uvicorn.server import Server


class StoppableServer(Server):
    """Serves until ``should_exit`` is set, by a signal or from any thread. It has no limit of requests and no ``Date`` header."""

    def __init__(self, config: Config) -> None:
        self._exits = False
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Whether the server stops, or has stopped."""
        return self._exits

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._exits = exits
        if exits and self._serving is not None:
            loop, stopped = self._serving
            loop.call_soon_threadsafe(stopped.set)

    async def main_loop(self) -> None:
        """Wait for the stop."""
        self._serving = asyncio.get_running_loop(), asyncio.Event()
        try:
            # After this assignment no stop is missed: one that came before it is seen here.
            if not await self.on_tick(0):
                await self._serving[1].wait()
        finally:
            self._serving = None
