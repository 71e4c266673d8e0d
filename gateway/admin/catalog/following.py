"""A worker follows the catalog: it looks twice a second, and at once when somebody says that it has changed.

Looking is what makes a revocation hold everywhere within a second; being told is only quicker. So nothing depends on Redis. A
look that fails changes nothing: what was read last stays in force, above all what was revoked. Only for a gateway that cannot
look there is more to Redis: it hears there which rights were taken away since (gateway/admin/catalog/withdrawals.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from gateway import metrics
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.withdrawals import Withdrawal
from gateway.fleet.connection import commands
from gateway.fleet.subscription import opened
from gateway.model.errors import CatalogUnavailable, CatalogUnusable, ConfigError
from gateway.policies.troubles import Trouble
from gateway.tasks import repeat

PAUSE = 0.5
"""Seconds between two looks."""
_DOWN = (RedisError, OSError, TimeoutError)
_PATIENCE = 1.0
_SILENCE = 10.0
"""Seconds without a word after which the connection may be a dead one: what was said is asked for again, over a new one."""
_KEPT = 86_400
"""Seconds for which rights that were taken away are kept in Redis."""
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
    """Looks at the catalog again and again.

    Args:
        catalog: whose followers are told of what is new.
        wait: waits for so many seconds, or until it is woken; ``None`` for the clock of the event loop.
    """

    def __init__(self, catalog: Catalog, wait: Callable[[float], Awaitable[None]] | None = None) -> None:
        self._catalog = catalog
        self._wait = wait or self._pause
        self._woken = asyncio.Event()
        self.trouble: Trouble | None = None
        """What is wrong with the catalog; ``None`` while it can be read."""

    async def look(self) -> None:
        """Look once.

        Raises:
            ConfigError: the catalog is there, and cannot be used with this configuration.
        """
        try:
            snapshot = await self._catalog.look()
        except CatalogUnusable as error:
            self._note("catalog-tables", f"the catalog cannot be used ({error}); {self._meanwhile()}")
            return
        except CatalogUnavailable as error:
            self._note("catalog", f"the catalog cannot be reached ({error}); {self._meanwhile()}")
            return
        metrics.CATALOG_REACHABLE.set(1)
        metrics.CATALOG_VERSION.set(snapshot.version)
        if self.trouble is not None:
            log.info("the catalog can be read again")
        self.trouble = None

    async def run(self) -> None:
        """Look at the catalog until cancelled."""
        await repeat("catalog", self._turn)

    async def _turn(self) -> None:
        try:
            await self.look()
        except ConfigError as error:
            self._note("catalog-tables", str(error))
        except Exception as error:
            if self._note("catalog-tables", f"what is new in the catalog is not in force: {type(error).__name__}"):
                log.exception("what is new in the catalog could not be put into force; trying again")
        await self._wait(PAUSE)

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def _note(self, kind: str, problem: str) -> bool:
        """Note what is wrong, and log it once for each change of kind; whether it is one."""
        metrics.CATALOG_REACHABLE.set(0)
        new = self.trouble is None or self.trouble.kind != kind
        if new:
            log.warning("%s", problem)
        self.trouble = Trouble.of(kind, problem)
        return new

    def _meanwhile(self) -> str:
        known = self._catalog.last is not None
        return "what was last read of it stays in force" if known else "no request can be judged before it was read"

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


class Announcements:
    """Tells the other workers, through Redis, that the catalog has changed, and hears it from them.

    With Redis down nobody is told, and everybody looks all the same; rights that were taken away meanwhile are told when it is
    back.

    Args:
        url: of Redis.
        channel: on which it is said.
        secret: of the fleet, which signs what takes rights away; empty where there is none.
    """

    def __init__(self, url: str, channel: str, secret: str = "") -> None:
        self._url = url
        self._channel = channel
        self._secret = secret
        self._place = f"{channel}:withdrawn"
        self._owed: dict[str, None] = {}
        self._redis = commands(url, _PATIENCE)
        self._keep: Any = self._redis.register_script(_KEEP)

    async def say(self, withdrawn: Sequence[Withdrawal]) -> None:
        """Tell the others of a change, and of the rights that it took away."""
        self._owed.update((each.to_text(self._secret, self._place), None) for each in withdrawn)
        with suppress(*_DOWN):
            await self._pay()
            await self._redis.publish(self._channel, "changed")

    async def hear(self, wake: Callable[[], None], withdraw: Withdraw) -> None:
        """Listen to the other workers until cancelled.

        Args:
            wake: called whenever somebody has said that the catalog has changed.
            withdraw: called with rights that were taken away, known ones included.
        """

        async def listen() -> None:
            async with opened(self._url, (self._channel,), _PATIENCE) as subscription:
                # What was said before this subscription is seen by looking.
                await self._pay()
                await self._hear_once(wake, withdraw)
                while True:
                    await subscription.next(_SILENCE)
                    await self._hear_once(wake, withdraw)

        await repeat("catalog announcements", listen, PAUSE, _DOWN)

    async def _hear_once(self, wake: Callable[[], None], withdraw: Withdraw) -> None:
        wake()
        kept: list[bytes] = await self._redis.zrange(self._place, 0, -1)  # type: ignore[assignment]  # without scores
        read = [Withdrawal.from_text(each, self._secret, self._place) for each in kept]
        if None in read:
            log.warning("%s in Redis has what no gateway with this fleet.secret wrote; it is left out", self._place)
        try:
            await withdraw(each for each in read if each is not None)
        except Exception:
            log.exception("rights that were taken away could not be put into force; trying again")

    async def _pay(self) -> None:
        """Have Redis keep what it was not told yet."""
        if owed := list(self._owed):
            await self._keep(keys=[self._place], args=[_KEPT, *owed])
            for each in owed:
                self._owed.pop(each, None)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()
