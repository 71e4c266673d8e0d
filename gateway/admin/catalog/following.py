"""Follows the catalog: polls it twice a second, and at once when Redis announces a change.

Polling alone enforces a revocation everywhere within a second, without Redis. A failed poll changes nothing: the last snapshot,
with its revocations, stays in force. A gateway that cannot reach the catalog learns of withdrawn rights through Redis
(gateway/admin/catalog/withdrawals.py).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.withdrawals import Withdrawal
from gateway.base import metrics
from gateway.base.tasks import repeat
from gateway.fleet.redis.connection import commands
from gateway.fleet.redis.subscription import opened
from gateway.model.errors import CatalogUnavailable, CatalogUnusable, ConfigError
from gateway.policies.health.troubles import Trouble

PAUSE = 0.5
"""Seconds between two polls."""
_DOWN = (RedisError, OSError, TimeoutError)
_PATIENCE = 1.0
"""Seconds for a command to Redis."""
_SILENCE = 10.0
"""Seconds of silence after which the subscription is renewed, because its connection may be dead."""
_KEPT = 86_400
"""Seconds for which Redis keeps withdrawn rights."""
_KEEP = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""

Withdraw = Callable[[Iterable[Withdrawal]], Awaitable[None]]

log = logging.getLogger("larder.admin")


class Follower:
    """Polls the catalog.

    Args:
        catalog: calls its followers with new snapshots.
        wait: waits for the given seconds, or until woken; ``None``: by the clock of the event loop.
    """

    def __init__(self, catalog: Catalog, wait: Callable[[float], Awaitable[None]] | None = None) -> None:
        self._catalog = catalog
        self._wait = wait or self._pause
        self._woken = asyncio.Event()
        self.trouble: Trouble | None = None
        """Why the catalog cannot be read; ``None`` while it can."""

    async def look(self) -> None:
        """Poll once.

        Raises:
            ConfigError: the catalog cannot be used with this configuration.
        """
        try:
            snapshot = await self._catalog.look()
        except CatalogUnusable as error:
            self._set_trouble("catalog-tables", f"the catalog cannot be used ({error}); {self._consequence()}")
            return
        except CatalogUnavailable as error:
            self._set_trouble("catalog", f"the catalog cannot be reached ({error}); {self._consequence()}")
            return
        metrics.CATALOG_REACHABLE.set(1)
        metrics.CATALOG_VERSION.set(snapshot.version)
        if self.trouble is not None:
            log.info("the catalog is reachable again")
        self.trouble = None

    async def run(self) -> None:
        """Poll until cancelled."""
        await repeat("catalog", self._run_once)

    async def _run_once(self) -> None:
        try:
            await self.look()
        except ConfigError as error:
            self._set_trouble("catalog-tables", str(error))
        except Exception as error:
            if self._set_trouble("catalog-tables", f"the newest catalog is not in force: {type(error).__name__}"):
                log.exception("applying the newest catalog failed; trying again")
        await self._wait(PAUSE)

    def wake(self) -> None:
        """Look at the catalog now instead of after the pause."""
        self._woken.set()

    def _set_trouble(self, kind: str, problem: str) -> bool:
        """Record a problem; if its kind differs from the last one's, log it and return true."""
        metrics.CATALOG_REACHABLE.set(0)
        new = self.trouble is None or self.trouble.kind != kind
        if new:
            log.warning("%(error)s", {"error": problem})
        self.trouble = Trouble.of(kind, problem)
        return new

    def _consequence(self) -> str:
        known = self._catalog.last is not None
        return "its last snapshot stays in force" if known else "requests are refused until it has been read"

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


class Announcements:
    """Announces changes of the catalog to the other workers through Redis, and listens for theirs.

    Without Redis all workers still poll; withdrawn rights are announced once it is back.

    Args:
        url: of Redis.
        channel: of the announcements.
        secret: of the fleet, which signs withdrawals; empty: unsigned.
    """

    def __init__(self, url: str, channel: str, secret: str = "") -> None:
        self._url = url
        self._channel = channel
        self._secret = secret
        self._place = f"{channel}:withdrawn"
        self._me = uuid.uuid4().hex.encode()
        self._pending: dict[str, None] = {}
        self._redis = commands(url, _PATIENCE)
        self._keep: Any = self._redis.register_script(_KEEP)

    async def say(self, withdrawn: Sequence[Withdrawal]) -> None:
        """Announce a change, and the rights that it withdrew."""
        self._pending.update((withdrawal.to_text(self._secret, self._place), None) for withdrawal in withdrawn)
        with suppress(*_DOWN):
            await self._flush()
            await self._redis.publish(self._channel, self._me)

    async def hear(self, wake: Callable[[], None], withdraw: Withdraw) -> None:
        """Listen to the other workers until cancelled.

        Args:
            wake: called at every announcement.
            withdraw: called with withdrawn rights, including known ones.
        """

        async def listen() -> None:
            async with opened(self._url, (self._channel,), _PATIENCE) as subscription:
                # The poll finds changes that were announced before this subscription.
                await self._flush()
                await self._hear_once(wake, withdraw)
                while True:
                    # The worker that made the change has polled already.
                    if (await subscription.next(_SILENCE))[1] != self._me:
                        await self._hear_once(wake, withdraw)

        await repeat("catalog announcements", listen, PAUSE, _DOWN)

    async def _hear_once(self, wake: Callable[[], None], withdraw: Withdraw) -> None:
        wake()
        kept: list[bytes] = await self._redis.zrange(self._place, 0, -1)  # type: ignore[assignment]  # without scores
        read = [Withdrawal.from_text(text, self._secret, self._place) for text in kept]
        if None in read:
            log.warning(
                "ignoring an entry of %(place)s in Redis that is not signed with this fleet.secret",
                {"place": self._place},
            )
        try:
            await withdraw(withdrawal for withdrawal in read if withdrawal is not None)
        except Exception:
            log.exception("applying withdrawn rights failed; trying again")

    async def _flush(self) -> None:
        """Write pending withdrawals to Redis."""
        if pending := list(self._pending):
            await self._keep(keys=[self._place], args=[_KEPT, *pending])
            for text in pending:
                self._pending.pop(text, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
