"""The embedded Redis for a process whose main thread is not an event loop: the supervisor of the workers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from pathlib import Path

from gateway.fleet.redis.embedded import EmbeddedRedis

_STOP_WITHIN = 10.0


class BackgroundRedis:
    """Runs an ``EmbeddedRedis`` on its own event loop, in a thread that lives as long as the process.

    The thread must not end before ``stop``: Linux ends the redis-server with the thread that started it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded-redis", daemon=True)
        self._redis: EmbeddedRedis | None = None
        self._starting: Future[None]

    def start(self) -> str:
        """Begin to start the server; returns its URL."""
        self._thread.start()
        self._redis = EmbeddedRedis(self._run_dir)
        self._starting = asyncio.run_coroutine_threadsafe(self._redis.start(), self._loop)
        return self._redis.url

    def wait(self) -> None:
        """Return once the server answers.

        Raises:
            ConfigError: there is no redis-server, or it does not start.
            OSError: the directory cannot be written.
        """
        self._starting.result()

    def stop(self) -> None:
        """Stop the server and the thread."""
        if self._redis is not None:
            wait((self._starting,), _STOP_WITHIN)  # otherwise a start in progress would complete after the stop
            asyncio.run_coroutine_threadsafe(self._redis.stop(), self._loop).result(_STOP_WITHIN)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_WITHIN)
        self._loop.close()
