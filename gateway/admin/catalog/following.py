"""A worker follows the catalog: it looks twice a second, and at once when somebody says that it has changed.

Looking is what makes a revocation hold everywhere within a second; being told is only quicker. So nothing depends on Redis. A
look that fails changes nothing: what was read last stays in force, above all what was revoked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.exceptions import RedisError

from gateway import metrics
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.errors import CatalogUnavailable
from gateway.fleet.connection import commands
from gateway.fleet.subscription import opened
from gateway.model.errors import ConfigError

PAUSE = 0.5
"""Seconds between two looks."""
_DOWN = (RedisError, OSError, TimeoutError)
_PATIENCE = 1.0
_SILENCE = 3600.0

log = logging.getLogger("larder.admin")


class Follower:
    """Looks at the catalog again and again.

    Args:
        catalog: whose followers are told of what is new.
        wait: waits for so many seconds, or until it is woken; ``None`` for the clock of the event loop.
    """

    def __init__(self, catalog: Catalog, wait: Callable[[float], Awaitable[None]] | None = None) -> None:
        self._catalog = catalog
        self._wait = wait or self._pause
        self._woken = asyncio.Event()
        self.problem = ""
        """What is wrong with the catalog, for /-/readyz; empty while it can be read."""

    async def look(self) -> None:
        """Look once.

        Raises:
            ConfigError: the catalog is there, and cannot be used with this configuration.
        """
        try:
            snapshot = await self._catalog.look()
        except CatalogUnavailable as error:
            metrics.CATALOG_REACHABLE.set(0)
            known = self._catalog.last is not None
            went = "what was last read of it stays in force" if known else "no request can be judged before it was read"
            self._note(f"the catalog cannot be reached ({error}); {went}")
            return
        metrics.CATALOG_REACHABLE.set(1)
        metrics.CATALOG_VERSION.set(snapshot.version)
        if self.problem:
            log.info("the catalog can be read again")
        self.problem = ""

    async def run(self) -> None:
        """Look for ever; never ends with an error."""
        while True:
            try:
                await self.look()
            except ConfigError as error:
                metrics.CATALOG_REACHABLE.set(0)
                self._note(str(error))
            except Exception:
                metrics.CATALOG_REACHABLE.set(0)
                log.exception("what is new in the catalog could not be put into force; trying again")
            await self._wait(PAUSE)

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


class Announcements:
    """Tells the other workers, through Redis, that the catalog has changed, and hears it from them.

    With Redis down nobody is told, and everybody looks all the same.

    Args:
        url: of Redis.
        channel: on which it is said.
    """

    def __init__(self, url: str, channel: str) -> None:
        self._url = url
        self._channel = channel
        self._redis = commands(url, _PATIENCE)

    async def say(self) -> None:
        """Tell the others."""
        with suppress(*_DOWN):
            await self._redis.publish(self._channel, "changed")

    async def hear(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever somebody has said it, for ever."""
        while True:
            with suppress(*_DOWN):
                async with opened(self._url, (self._channel,), _PATIENCE) as subscription:
                    # What was said before this subscription is seen by looking.
                    wake()
                    while True:
                        await subscription.next(_SILENCE)
                        wake()
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()
